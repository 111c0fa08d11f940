"""`deploy defaultcheck`: drift is seen token by token, and nothing else is called drift."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.helpers import BASE, GLM, Result, write_layout

Cli = Callable[..., Result]
TEXT = GLM + "parallel: {tensor: 4, pipeline: 2, layer_partition: [42, 36]}\nserve: {seed: 1, max_model_len: 9}\n"


@pytest.fixture
def check(cli: Cli, tmp_path: Path) -> Cli:
    """`deploy defaultcheck` in a project of its own that has one layout."""
    write_layout(tmp_path, TEXT)

    def call(*words: str, **settings: str) -> Result:
        return cli("defaultcheck", *words, DEPLOY_PROJECT=str(tmp_path), **settings)

    return call


def golden(root: Path, name: str = "demo") -> Path:
    return root / "configs" / "golden" / f"{name}.json"


def test_without_a_golden_file_nothing_is_called_fine(check: Cli):
    result = check("demo")
    assert (result.code, result.out) == (1, "")
    assert "error: there is no golden file configs/golden/demo.json" in result.err
    assert "deploy defaultcheck demo --update" in result.err


def test_no_drift_right_after_an_update(check: Cli, tmp_path: Path):
    assert check("demo", "--update").out == "demo: golden file written\n"
    result = check("demo")
    assert (result.code, result.out, result.err) == (0, "demo: no drift\n", "")
    assert json.loads(golden(tmp_path).read_text())["layout"] == "demo"


@pytest.mark.parametrize(
    ("old", "new", "tokens"),
    [
        ("max_model_len: 9", "max_model_len: 10", ('"9"', '"10"')),
        ("max_model_len: 9", "max_model_len: 9, enforce_eager: true", ('"--enforce-eager"',)),
        ("{seed: 1, max_model_len: 9}", "{max_model_len: 9, seed: 1}", ('"--max-model-len"',)),
        ("[42, 36]", "[38, 40]", ('"VLLM_PP_LAYER_PARTITION": "42,36"', '"VLLM_PP_LAYER_PARTITION": "38,40"')),
        ("serve:", "env: {NEW: 1}\nserve:", ('"NEW": "1"',)),
        ("serve:", "env: {NCCL_DEBUG: null}\nserve:", ('"NCCL_DEBUG": "WARN"',)),
        ("serve:", "secrets: [HF_TOKEN]\nserve:", ('"VLLM_API_KEY"',)),
        ("serve:", "patches: [pp-index-transport]\nserve:", ("/_overlay",)),
    ],
)
def test_drift_is_shown_by_token(check: Cli, tmp_path: Path, old: str, new: str, tokens: tuple[str, ...]):
    check("demo", "--update")
    write_layout(tmp_path, TEXT.replace(old, new))
    result = check("demo")
    assert (result.code, result.out) == (2, "")
    assert "demo: DRIFT" in result.err
    changed = [line for line in result.err.splitlines() if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    for token in tokens:
        assert any(token in line for line in changed), changed


def test_a_hand_edited_golden_file_is_drift_too(check: Cli, tmp_path: Path):
    check("demo", "--update")
    file = golden(tmp_path)
    lines = file.read_text().splitlines()
    seed = next(index for index, line in enumerate(lines) if '"--seed"' in line)
    lines[seed], lines[seed + 2] = lines[seed + 2], lines[seed]
    file.write_text("\n".join(lines) + "\n")
    assert check("demo").code == 2


def test_a_variable_left_in_the_shell_is_drift(check: Cli):
    check("demo", "--update")
    result = check("demo", MAX_MODEL_LEN="77")
    assert result.code == 2
    assert "override env MAX_MODEL_LEN" in result.err
    assert '"77"' in result.err


def test_a_comment_or_another_place_is_no_drift(check: Cli, cli: Cli, tmp_path: Path):
    check("demo", "--update")
    write_layout(tmp_path, "# moved\n" + TEXT)
    assert check("demo").code == 0
    elsewhere = tmp_path / "else" / "where"
    write_layout(elsewhere, TEXT)
    golden(elsewhere).parent.mkdir(parents=True)
    golden(elsewhere).write_bytes(golden(tmp_path).read_bytes())
    assert cli("defaultcheck", "demo", DEPLOY_PROJECT=str(elsewhere)).code == 0


def test_all_checks_every_layout_and_reports_the_one_that_drifted(check: Cli, tmp_path: Path):
    write_layout(tmp_path, BASE.replace("name: demo", "name: other"), "other")
    written = check("--all", "--update")
    assert written.code == 0
    assert {"demo: golden file written", "other: golden file written", "tiny-cpu: golden file written"} <= set(
        written.out.splitlines()
    )
    assert check("--all").code == 0
    write_layout(tmp_path, TEXT.replace("seed: 1", "seed: 2"))
    drifted = check("--all")
    assert (drifted.code, "demo: DRIFT" in drifted.err, "other: no drift" in drifted.out) == (2, True, True)


def test_all_does_not_hide_the_override_that_made_everything_drift(check: Cli):
    check("--all", "--update")
    result = check("--all", MAX_MODEL_LEN="77")
    assert (result.code, "override env MAX_MODEL_LEN" in result.err) == (2, True)


def test_a_damaged_golden_file_is_drift_and_no_crash(check: Cli, tmp_path: Path):
    golden(tmp_path).parent.mkdir(parents=True)
    golden(tmp_path).write_bytes(b"\xff\xfe\x00")
    assert check("demo").code == 2


def test_update_writes_into_the_project_and_leaves_nothing_half_written(check: Cli, tmp_path: Path):
    check("demo", "--update")
    assert [path.name for path in golden(tmp_path).parent.iterdir()] == ["demo.json"]
