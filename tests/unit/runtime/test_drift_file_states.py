"""The script that looks at files inside an engine: run as it is sent, against folders of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from shardwright.runtime import file_states

PAST = 10**9


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """An installation with a record of its files."""
    folder = tmp_path / "site-packages"
    (folder / "vllm" / "models").mkdir(parents=True)
    (folder / "vllm-1.dist-info").mkdir()
    files = ["vllm/__init__.py", "vllm/models/glm.py", "vllm/notes.txt"]
    for name in files:
        (folder / name).write_text("x")
    (folder / "vllm-1.dist-info" / "RECORD").write_text("".join(f"{name},sha256=x,1\n" for name in files))
    return folder


def changed(folder: Path, since: float, programs: list[str] | None = None) -> list[str]:
    found = file_states.changed_code([str(folder)], programs or [], since)
    return sorted(str(Path(path).relative_to(folder.parent)) for path in found)


def test_a_file_is_known_by_content_and_identity(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"content")
    content, inode, written_at, changed_at = file_states.file_state(str(file))
    assert content == hashlib.sha256(b"content").hexdigest()
    assert inode == file.stat().st_ino and abs(time.time() - written_at) < 60 and changed_at >= written_at - 1
    assert file_states.file_state(str(tmp_path))[0] == ""
    assert file_states.file_state(str(tmp_path / "none"))[:2] == (None, None)


def test_a_link_that_was_made_to_point_elsewhere_is_changed_though_nothing_there_was(tmp_path: Path) -> None:
    (tmp_path / "v2").mkdir()
    before = file_states.file_state(str(tmp_path / "v2"))
    while time.time() <= before[3] + 0.02:
        time.sleep(0.01)
    (tmp_path / "current").symlink_to(tmp_path / "v2")
    after = file_states.file_state(str(tmp_path / "current"))
    assert after[:3] == before[:3] and after[3] > before[3]


def test_a_file_that_is_too_large_to_hash_is_told_by_its_inode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_states, "MOST_BYTES", 4)
    (tmp_path / "a").write_bytes(b"12345")
    assert file_states.file_state(str(tmp_path / "a"))[0] == ""
    (tmp_path / "b").write_bytes(b"1234")
    assert file_states.file_state(str(tmp_path / "b"))[0]


def test_only_code_and_only_later_changes_count(packages: Path) -> None:
    assert changed(packages, time.time() + 60) == []
    assert changed(packages, PAST) == ["site-packages/vllm/__init__.py", "site-packages/vllm/models/glm.py"]


def test_an_engine_file_that_is_gone_is_found_and_bytecode_is_not(packages: Path) -> None:
    (packages / "vllm" / "models" / "glm.py").unlink()
    (packages / "vllm" / "notes.txt").unlink()
    (packages / "vllm" / "late.pyc").write_text("")
    assert changed(packages, PAST) == ["site-packages/vllm/__init__.py", "site-packages/vllm/models/glm.py"]
    assert changed(packages, time.time() + 60) == [], "it was not there in the image either"


def test_an_engine_folder_that_is_gone_is_found(packages: Path) -> None:
    (packages / "vllm" / "models" / "glm.py").unlink()
    (packages / "vllm" / "models").rmdir()
    assert "site-packages/vllm/models/glm.py" in changed(packages, PAST)


def test_the_record_of_another_package_is_not_asked(packages: Path) -> None:
    (packages / "vllm-1.dist-info" / "RECORD").write_text("other/gone.py,sha256=x,1\n")
    assert "site-packages/other/gone.py" not in changed(packages, PAST)


def test_programs_count_and_a_folder_with_two_names_counts_once(packages: Path, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "vllm").write_text("")
    (tmp_path / "sbin").symlink_to(programs)
    both = [str(programs), str(tmp_path / "sbin"), str(tmp_path / "none")]
    assert changed(packages, PAST, both).count("bin/vllm") == 1


def test_it_runs_as_it_is_sent(packages: Path) -> None:
    request = {"paths": [str(packages / "vllm" / "__init__.py")], "folders": [str(packages)], "since": PAST}
    script = Path(file_states.__file__).read_text()
    environment = {**os.environ, "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, json.dumps(request)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    line = done.stdout.splitlines()[-1]
    answer: Any = json.loads(line.removeprefix(file_states.MARK))
    assert list(answer["files"]) == request["paths"]
    assert set(answer["changed"]) == {str(packages / "vllm" / name) for name in ("__init__.py", "models/glm.py")}
