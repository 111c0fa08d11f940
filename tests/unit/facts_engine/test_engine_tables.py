"""The bundled tables: whole, of exactly the version asked for, and small."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from shardwright.connect.project import open_project
from shardwright.facts import parsers
from shardwright.facts.engine_tables import all_tables, bundled_table, encode_table, release, retired_names

VERSIONS = ("0.28.0", "0.30.0", "0.32.0", "0.33.0")
COUNTS = {"0.28.0": (284, 295), "0.30.0": (300, 302), "0.32.0": (316, 316), "0.33.0": (320, 318)}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_bundled_table_holds_every_flag_and_variable_of_its_release(version: str) -> None:
    table = bundled_table(open_project({}), version)
    assert table is not None
    assert table.vllm == version
    assert (len(table.flags), len(table.envs)) == COUNTS[version]
    names = [flag.name for flag in table.flags]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_bundled_table_is_small_and_written_by_the_script(version: str, project_root: Path) -> None:
    file = project_root / "configs" / "engines" / f"flags-{version}.json"
    table = bundled_table(open_project({}), version)
    assert table is not None
    assert file.stat().st_size < 150_000
    assert file.read_text() == encode_table(table)
    assert "/" not in table.source


@pytest.mark.parametrize("version", ["0.29.0", "0.31.0", "0.33.1", "0.30.0rc1", "0.30.1.dev5", "1.0", "nonsense"])
def test_another_version_is_unknown_and_never_the_nearest_table(version: str) -> None:
    assert bundled_table(open_project({}), version) is None


@pytest.mark.parametrize(
    ("text", "found"), [("0.30", "0.30.0"), ("0.30.0+cpu", "0.30.0"), ("0.30.0.post1", None), ("٠.30", None)]
)
def test_a_release_is_told_from_what_only_looks_like_one(text: str, found: str | None) -> None:
    assert release(text) == found


def test_tables_are_ordered_by_release_and_not_by_letters() -> None:
    assert tuple(table.vllm for table in all_tables(open_project({}))) == VERSIONS


def test_a_retired_name_does_not_come_back_in_a_later_table() -> None:
    retired = retired_names(open_project({}))
    tables = all_tables(open_project({}))
    for names in (
        [(set(table.envs) & set(retired.envs)) for table in tables],
        [({flag.name for flag in table.flags} & set(retired.flags)) for table in tables],
    ):
        assert names[-1] == set()
        assert all(later <= earlier for earlier, later in pairwise(names))


def test_known_changes_between_releases_are_in_the_tables() -> None:
    tables = {table.vllm: table for table in all_tables(open_project({}))}
    flags = {version: {flag.name: flag for flag in table.flags} for version, table in tables.items()}
    assert "--enable-bf16x3-router-gemm" in flags["0.28.0"] and "--enable-bf16x3-router-gemm" not in flags["0.30.0"]
    assert "nvfp4_ds_mla" not in flags["0.28.0"]["--kv-cache-dtype"].choices
    assert "nvfp4_ds_mla" in flags["0.30.0"]["--kv-cache-dtype"].choices
    assert "ultraquant_4bit" in flags["0.32.0"]["--kv-cache-dtype"].choices
    assert "deepseek_v41" not in tables["0.28.0"].tool_parsers and "deepseek_v41" in tables["0.30.0"].tool_parsers
    assert "plamo3" not in tables["0.30.0"].reasoning_parsers and "plamo3" in tables["0.32.0"].reasoning_parsers
    assert "VLLM_KIMI_K3_GEMM_RS" in tables["0.30.0"].envs and "VLLM_KIMI_K3_GEMM_RS" not in tables["0.32.0"].envs


@pytest.mark.parametrize("model_type", sorted(parsers.USUAL))
def test_a_parser_that_is_suggested_is_one_that_the_engines_have(model_type: str) -> None:
    usual = parsers.usual_parsers(model_type)
    assert usual is not None
    for table in all_tables(open_project({})):
        assert usual[0] in table.tool_parsers and usual[1] in table.reasoning_parsers


def test_the_facts_schema_names_the_keys_that_are_read(project_root: Path) -> None:
    schema = json.loads((project_root / "configs" / "engines" / "facts.schema.json").read_text())
    keys = {"model", "checkpoint", "engine", "gpus", "links", "host", "nodes", "log"}
    assert set(schema["properties"]) == keys
