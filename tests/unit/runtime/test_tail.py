"""A log that grows, is rotated, cut short, or is not there yet."""

from __future__ import annotations

from pathlib import Path

from shardwright.connect.tail import read_tail, tail_file


class Growth:
    """Runs one step per question whether the file still grows; false when the steps are used up."""

    def __init__(self, *steps: object) -> None:
        self._steps = list(steps)

    def __call__(self) -> bool:
        if not self._steps:
            return False
        step = self._steps.pop(0)
        if callable(step):
            step()
        return True


def append(path: Path, text: str) -> object:
    def step() -> None:
        with path.open("a") as file:
            file.write(text)

    return step


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert list(read_tail(tmp_path / "absent.log")) == []


def test_the_last_lines_are_enough(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("one\ntwo\nthree\nhalf")
    assert list(read_tail(log, 2)) == ["three", "half"]
    assert list(read_tail(log, 0)) == []
    assert list(read_tail(log)) == ["one", "two", "three", "half"]


def test_a_log_that_comes_late_and_grows_is_followed(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    growth = Growth(None, append(log, "one\ntw"), append(log, "o\n"), append(log, "three"))
    assert list(tail_file(log, growth)) == ["one", "two", "three"]


def test_following_from_the_last_lines_goes_on_with_new_ones(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("one\ntwo\n")
    assert list(tail_file(log, Growth(None, append(log, "three\n")), tail=1)) == ["two", "three"]


def test_a_rotated_log_loses_no_line(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("one\n")

    def rotate() -> None:
        with log.open("a") as file:
            file.write("two\n")
        log.rename(tmp_path / "engine.log.1")
        log.write_text("three\n")

    assert list(tail_file(log, Growth(None, rotate, None, None))) == ["one", "two", "three"]


def test_a_log_that_was_cut_short_is_read_anew(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("a long first line\n")
    assert list(tail_file(log, Growth(None, lambda: log.write_text("new\n")))) == ["a long first line", "new"]


def test_progress_bars_are_lines(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"shards 1/2\rshards 2/2\r\ndone \xff\n")
    assert list(read_tail(log)) == ["shards 1/2", "shards 2/2", "done \ufffd"]
