from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from shardwright.probes.journal import Journal, Record
from shardwright.probes.pool import TrialRun, finished_trials, lost_trials, run_trials
from shardwright.probes.wire import TransportError


def ok(_: object) -> Record:
    return {"class": "OK", "detail": ""}


def lost(_: object) -> Record:
    raise TransportError("broken", "gone")


def test_all_keys_are_worked_once_and_never_two_kept_at_a_time() -> None:
    kept: list[int] = []
    inside = []

    def keep(key: int, _: Record) -> None:
        inside.append(key)
        assert len(inside) == 1
        time.sleep(0.001)
        kept.append(key)
        inside.clear()

    assert run_trials(range(50), ok, 8, keep)
    assert sorted(kept) == list(range(50))


def test_no_more_at_a_time_than_asked_for() -> None:
    now = most = 0
    lock = threading.Lock()

    def work(_: int) -> Record:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.005)
        with lock:
            now -= 1
        return {"class": "OK"}

    run_trials(range(20), work, 3, lambda *_: None)
    assert most == 3


def test_three_lost_trials_in_a_row_end_it_and_two_do_not() -> None:
    kept: list[int] = []

    def work(key: int) -> Record:
        return {"class": "ERROR" if key % 3 or key > 20 else "OK"}

    assert not run_trials(range(60), work, 1, lambda key, _: kept.append(key))
    assert kept == list(range(22))


def test_enough_ends_it() -> None:
    kept: list[int] = []

    def keep(key: int, _: Record) -> bool:
        kept.append(key)
        return key == 4

    assert not run_trials(range(60), ok, 1, keep)
    assert kept == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("where", ["work", "keep"])
def test_what_is_raised_inside_is_raised_here_and_ends_it(where: str) -> None:
    calls: list[int] = []

    def fail(*_: object) -> Record:
        calls.append(1)
        raise RuntimeError(where)

    with pytest.raises(RuntimeError, match=where):
        run_trials(range(50), fail if where == "work" else ok, 2, fail if where == "keep" else lambda *_: None)
    assert len(calls) <= 2


def make(journal: Journal, keys: list[str]) -> TrialRun:
    return TrialRun(journal, "x", "p", keys, is_failure=lambda record: record["class"] == "BAD")


def test_a_lost_trial_is_asked_again_later_and_both_attempts_stay_on_file(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    with Journal(file) as journal:
        run = make(journal, ["a", "b"])
        assert run.work(lambda key: lost(key) if key == "b" else ok(key), 1, header={"note": 1})
        assert (len(run.records), len(run.errors), run.failures) == (1, 1, 0)
    with Journal(file) as journal:
        run = make(journal, ["a", "b"])
        assert (run.taken_up, run.waiting) == (1, ["b"])
        run.work(ok, 1)
        assert set(run.records) == {"a", "b"}
        answered = finished_trials(journal.records, "p")
        assert (set(answered), lost_trials(journal.records, "p", answered)) == ({"a", "b"}, {})
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["kind"], one.get("trial"), one.get("class")) for one in lines] == [
        ("plan", None, None),
        ("trial", "a", "OK"),
        ("trial", "b", "ERROR"),
        ("plan", None, None),
        ("trial", "b", "OK"),
    ]
    assert lines[0]["note"] == 1
    assert lines[2]["error"] == {"kind": "broken", "status": None, "detail": "gone"}


def test_parts_share_the_header_and_a_dead_server_is_not_asked_on(tmp_path: Path) -> None:
    with Journal(tmp_path / "t.jsonl") as journal:
        run = make(journal, list("abcdef"))
        assert run.work(ok, 1, only=["a"])
        assert run.work(lost, 1, only=["b", "c"])
        assert run.work(lost, 1, only=["d"])
        assert not run.work(ok, 1, only=["e", "f"])
        assert [one["kind"] for one in journal.records].count("plan") == 1
        assert set(run.records) == {"a"}


def test_a_trial_on_file_twice_counts_once_as_first_written() -> None:
    records = [
        {"kind": "trial", "plan": "p", "trial": 1, "class": "OK"},
        {"kind": "trial", "plan": "p", "trial": 1, "class": "BAD"},
        {"kind": "trial", "plan": "q", "trial": 2, "class": "OK"},
        {"kind": "trial", "plan": "p", "trial": None, "class": "OK"},
        {"kind": "result", "plan": "p", "trial": 3, "class": "OK"},
    ]
    assert finished_trials(records, "p") == {1: records[0]}
