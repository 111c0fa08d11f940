"""`--facts FILE`: read strictly, and in place of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli.main import run
from shardwright.errors import UsageError
from shardwright.facts.facts_file import read_facts_file


def written(tmp_path: Path, content: Any, name: str = "facts.json") -> Path:
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_cards_count_and_keep_what_is_free(tmp_path: Path) -> None:
    given = read_facts_file(written(tmp_path, {"gpus": [{"cc": "8.0", "mem_gib": 79.25, "free_gib": 70, "count": 8}]}))
    assert given.gpus is not None and len(given.gpus) == 8
    assert given.gpus[7].free_gib == 70.0


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("all", "all"),
        ("NVLink between all cards", "all"),
        ("4 NVLink pairs + PCIe/SYS", "pairs"),
        ("pcie, topo -p2p r = OK", "pcie"),
        ("no NVLink", "pcie"),
        ("NV12 between all", "all"),
    ],
)
def test_links_are_read_from_the_words_that_people_use(words: str, kind: str, tmp_path: Path) -> None:
    assert read_facts_file(written(tmp_path, {"links": words})).links == kind


def test_an_absent_tensor_is_not_taken_for_a_present_one(tmp_path: Path) -> None:
    given = read_facts_file(written(tmp_path, {"checkpoint": {"tensors": {"a": False, "b": True, "c": "shard-1"}}}))
    assert given.checkpoint is not None
    assert given.checkpoint.tensors == {"b", "c"}


def test_yaml_is_read_too(tmp_path: Path) -> None:
    given = read_facts_file(written(tmp_path, "engine: {vllm: 0.30.0}\n", "facts.yaml"))
    assert given.engine_version == "0.30.0"


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"gpu": []}, "gpu"),
        ({"gpus": [{"memory": 3}]}, "memory"),
        ({"gpus": 8}, "gpus"),
        ({"links": "somehow"}, "links"),
        ({"engine": {"vllm": "new"}}, "new"),
        ({"host": {"listening": ["http"]}}, "listening"),
        ({"nodes": {"rank": 0}}, "nodes"),
        ({"checkpoint": {"tensors": 3}}, "tensors"),
        ("{", "JSON"),
        ("[]", "map"),
    ],
)
def test_a_wrong_facts_file_is_refused_with_its_name_and_key(content: Any, key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_facts_file(written(tmp_path, content))
    text = caught.value.what + caught.value.fix
    assert key in text


def test_a_missing_facts_file_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "glm53-tp4pp2", "--facts", str(tmp_path / "none.json")]) == 64
    assert "none.json" in capsys.readouterr().err


def test_the_engine_of_a_facts_file_replaces_the_layouts_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, {"engine": {"vllm": "0.30.0", "provides": {}}, "gpus": [{"cc": "8.0", "count": 8}]})
    assert run(["check", "glm53-tp8pp1", "--facts", str(file)]) == 1
    assert "no sparse-MLA attention backend for compute capability 8.0" in capsys.readouterr().out


def test_hf_overrides_of_the_layout_act_on_the_given_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, {"model": {"num_attention_heads": 64, "num_hidden_layers": 78}})
    arguments = ["check", "glm53-tp8pp1", "--facts", str(file), "--json"]
    run([*arguments, "--set", "serve.hf_overrides={num_attention_heads: 12}"])
    assert "12 attention heads % 8" in capsys.readouterr().out


def test_the_documented_facts_file_reads_and_names_every_key(tmp_path: Path, project_root: Path) -> None:
    page = (project_root / "docs" / "gates.md").read_text()
    text = page.split("```yaml\n", 1)[1].split("```", 1)[0]
    given = read_facts_file(written(tmp_path, text, "facts.yaml"))
    assert given.config is not None and given.gpus is not None and given.checkpoint is not None
    schema = json.loads((project_root / "configs" / "engines" / "facts.schema.json").read_text())
    assert [key for key in schema["properties"] if f"\n{key}:" not in f"\n{text}"] == []
