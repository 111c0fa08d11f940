"""Secrets must reach the engine byte for byte, and nobody else."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.runtime.secret_file import discard_secrets, write_secrets


@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_value_survives_the_shell(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    file = tmp_path_factory.getbasetemp() / "secrets.env"
    write_secrets(file, {"TOKEN": value, "OTHER": "x"})
    script = f'. {file}; printf %s "$TOKEN"'
    assert subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout == value.encode()


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    old_mask = os.umask(0)
    try:
        write_secrets(tmp_path / "folder" / "secrets.env", {"TOKEN": "x"})
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE((tmp_path / "folder" / "secrets.env").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700


def test_a_planted_link_is_replaced_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    (tmp_path / "secrets.env").symlink_to(elsewhere)
    write_secrets(tmp_path / "secrets.env", {"TOKEN": "x"})
    assert elsewhere.read_text() == "untouched"
    assert (tmp_path / "secrets.env").read_text() == "TOKEN=x\n"


def test_discarding_twice_is_fine(tmp_path: Path) -> None:
    write_secrets(tmp_path / "secrets.env", {})
    discard_secrets(tmp_path / "secrets.env")
    discard_secrets(tmp_path / "secrets.env")
    assert not list(tmp_path.iterdir())
