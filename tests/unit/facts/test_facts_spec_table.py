"""Every row of the shipped speculation table, looked up once; and tables that do not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.errors import UsageError
from shardwright.facts.spec_support import TABLE, SpecTable, read_spec_table
from tests.unit.helpers import ROOT

AUXILIARY = ("eagle3", "dflash", "dspark", "extract_hidden_states")
# One row each: methods, version, model type, runner, and what the table must say.
LOOKUPS = [
    (("mtp",), "0.28.0", "glm_moe_dsa", "v1", "refused"),
    (("mtp",), "0.30.0", "glm_moe_dsa", "v1", "broken"),
    (("mtp",), "0.32.0", "glm_moe_dsa", "v1", "unverified"),
    (("mtp",), "0.30.0", "glm_moe_dsa", "v2", "works"),
    (("eagle",), "0.28.0", "llama", "v1", "refused"),
    (("eagle",), "0.33.0", "llama", "v2", "works"),
    (AUXILIARY, "0.28.0", "llama", "v1", "refused"),
    (AUXILIARY, "0.30.0", "llama", "v2", "works"),
    (AUXILIARY, "0.32.0", "minimax_m3", "v2", "works"),
    (AUXILIARY, "0.30.0", "minimax_m3", "v2", "refused"),
    (("ngram", "ngram_gpu"), "0.30.0", "llama", "v2", "refused"),
    (("ngram", "ngram_gpu"), "0.32.0", "llama", "v2", "unverified"),
    (("draft_model",), "0.30.0", "llama", "v2", "refused"),
    (("draft_model",), "0.33.0", "llama", "v2", "broken"),
    (("suffix", "custom_class"), "0.30.0", "llama", "v2", "refused"),
    (("medusa", "mlp_speculator"), "0.32.0", "llama", "v2", "refused"),
    (("medusa", "mlp_speculator"), "0.33.0", "llama", "v2", "refused"),
]


@pytest.fixture(scope="module")
def table() -> SpecTable:
    return read_spec_table(ROOT / TABLE)


@pytest.mark.parametrize(("methods", "version", "model_type", "runner", "support"), LOOKUPS)
def test_a_row_of_the_table_does_not_change_unnoticed(
    table: SpecTable, methods: tuple[str, ...], version: str, model_type: str, runner: str, support: str
):
    for method in methods:
        row = table.lookup(method, version, model_type, runner)
        assert row is not None
        assert (row.support, bool(row.why)) == (support, True)


def test_every_row_is_reached_by_one_of_these_lookups(table: SpecTable):
    reached = [table.lookup(methods[0], *rest) for methods, *rest, _ in LOOKUPS]
    assert [rule for rule in table.rules if rule not in reached] == []
    assert len(reached) == len(table.rules)


@pytest.mark.parametrize("version", ["0.34.0", "0.40.0", "1.0.0"])
def test_a_version_that_nobody_read_is_unknown_and_not_like_the_nearest(table: SpecTable, version: str):
    for method in table.methods():
        assert table.lookup(method, version, "llama", "v2") is None


def test_an_unknown_method_is_not_in_the_table(table: SpecTable):
    assert table.lookup("tree", "0.30.0", "llama", "v2") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the key 'schema' is missing"),
        ("schema: x\nrules: 7", ":2: rules: expected a list"),
        ("schema: x\nrules: [{methods: [mtp]}]", "the key 'vllm' is missing"),
        ("schema: x\nrules: [{methods: [mtp], vllm: '', support: maybe, why: w}]", "'maybe' is not one of"),
        ("schema: x\nrules: [{methods: [mtp], vllm: new, support: works, why: w}]", "'new' is not a version range"),
        ("schema: x\nrules: [{methods: [mtp], vllm: '', support: works, why: w, runer: v1}]", "unknown key"),
    ],
)
def test_a_projects_own_table_with_a_fault_is_named(tmp_path: Path, text: str, reason: str):
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_spec_table(tmp_path / "t.yaml")
    assert TABLE in caught.value.what
    assert reason in caught.value.what
