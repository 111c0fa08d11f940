"""Files and folders that appear whole or not at all, whatever happens in between."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardwright.connect.atomic import staged_directory, write_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole_with_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "sub" / "file"
    umask = os.umask(0)
    try:
        write_file(target, b"one")
        write_file(target, b"two", mode=0o600)
    finally:
        os.umask(umask)
    assert target.read_bytes() == b"two" and target.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path / "sub") == ["file"]


def test_a_file_that_cannot_be_put_in_place_leaves_no_rest(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "inside").write_text("")
    with pytest.raises(OSError):
        write_file(tmp_path / "file", b"data")
    assert names(tmp_path) == ["file"]


def test_a_failing_block_leaves_the_old_folder_untouched(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with staged_directory(target) as staged:
        (staged / "old").write_text("")
    with pytest.raises(KeyboardInterrupt), staged_directory(target) as staged:
        (staged / "new").write_text("")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["target"] and names(target) == ["old"]


def test_nothing_is_seen_before_the_block_ends_and_all_after(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    with staged_directory(target) as staged:
        (staged / "a").mkdir(mode=0o700)
        (staged / "a" / "file").write_text("")
        assert not target.exists()
    assert names(target) == ["a"] and names(target.parent) == ["target"]
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in (target, target / "a"))


def test_a_link_or_a_file_in_the_way_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "target").symlink_to(tmp_path / "elsewhere")
    with staged_directory(tmp_path / "target") as staged:
        (staged / "file").write_text("")
    assert not (tmp_path / "target").is_symlink() and names(tmp_path / "elsewhere") == []


def test_many_writers_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    def write(number: int) -> None:
        with staged_directory(tmp_path / "target") as staged:
            for name in "abc":
                (staged / name).write_text(str(number))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(24)))
    assert names(tmp_path) == ["target"]
    assert len({path.read_text() for path in (tmp_path / "target").iterdir()}) == 1


def test_a_place_that_was_taken_and_left_again_between_two_looks_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, taken = Path.rename, [OSError(errno.ENOTEMPTY, "taken")]

    def unlucky(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp" and taken:
            raise taken.pop()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", unlucky)
    with staged_directory(tmp_path / "target") as staged:
        (staged / "file").write_text("new")
    assert names(tmp_path) == ["target"] and not taken


def test_a_reader_keeps_the_folder_that_it_has_open(tmp_path: Path) -> None:
    with staged_directory(tmp_path / "target") as staged:
        (staged / "file").write_text("old")
    with (tmp_path / "target" / "file").open() as held:
        with staged_directory(tmp_path / "target") as staged:
            (staged / "file").write_text("new")
        assert held.read() == "old" and (tmp_path / "target" / "file").read_text() == "new"
