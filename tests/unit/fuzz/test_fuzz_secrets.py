"""Values of secrets appear nowhere: not on a screen, not in a golden file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.fuzz.fuzz_driver import SECRETS, call
from tests.unit.helpers import BASE, SHIPPED, write_layout

OWN = BASE + "secrets: [HF_TOKEN, VLLM_API_KEY]\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_layout(tmp_path, OWN)
    return tmp_path


@pytest.mark.parametrize("layout", [*SHIPPED, "demo"])
@pytest.mark.parametrize(
    "words",
    [("cmd",), ("cmd", "--json"), ("cmd", "--explain"), ("check",), ("check", "--json"), ("defaultcheck", "--update")],
)
def test_no_secret_is_shown(root: Path, layout: str, words: tuple[str, ...]):
    result = call(root, words[0], layout, *words[1:])
    assert result.code in (0, 1)
    for value in SECRETS.values():
        assert value not in result.out + result.err


def test_no_secret_is_written(root: Path):
    assert call(root, "defaultcheck", "--all", "--update").code == 0
    assert call(root, "defaultcheck", "--all").code == 0
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) > len(SHIPPED)
    for path in files:
        for value in SECRETS.values():
            assert value.encode() not in path.read_bytes()


def test_the_names_are_shown_so_that_one_knows_what_is_read(root: Path):
    data = json.loads(call(root, "cmd", "demo", "--json").out)
    assert data["secrets"] == ["HF_TOKEN", "VLLM_API_KEY"]


def test_a_value_pasted_into_the_layout_is_refused_and_not_repeated(root: Path):
    for secrets in ("[hf_plantedtokenvalue]", "[HF_TOKEN=hf_plantedtokenvalue]", "{HF_TOKEN: hf_plantedtokenvalue}"):
        write_layout(root, BASE + f"secrets: {secrets}\n")
        result = call(root, "cmd", "demo")
        assert result.code == 64
        assert "planted" not in result.out + result.err
