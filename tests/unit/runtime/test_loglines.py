"""The first traceback of a log is the root cause; those after it are echoes."""

from __future__ import annotations

from runtime_samples import HEALTHY, recorded

from shardwright.runtime.loglines import first_traceback, parse_line


def test_a_line_is_taken_apart_into_worker_level_and_message() -> None:
    line = parse_line("(Worker_PP1 pid=6309) ERROR 11-30 21:12:07 [multiproc_executor.py:944] WorkerProc failed.")
    assert (line.worker, line.level, line.message) == ("Worker_PP1 pid=6309", "ERROR", "WorkerProc failed.")
    assert parse_line("(APIServer pid=1)   File \"x\"").message == '  File "x"'  # fmt: skip
    assert parse_line("[rank3]: RuntimeError: x").worker == "rank3"
    assert parse_line("(RayWorkerWrapper pid=10858, ip=10.0.0.2) hello").worker.startswith("RayWorkerWrapper")
    assert parse_line("plain (not a worker) text").message == "plain (not a worker) text"


def test_the_workers_traceback_wins_over_those_of_the_processes_above_it() -> None:
    found = first_traceback(recorded("partition-sum.log"))
    assert found is not None
    assert found.worker == "Worker_PP1 pid=6309"
    assert found.error == "ValueError: sum(partitions)=4 does not match num_hidden_layers=3."
    assert found.lines[0] == "Traceback (most recent call last):"
    assert not any("Worker_PP0" in line or "EngineCore" in line for line in found.lines)


def test_an_exception_of_several_lines_stays_whole() -> None:
    found = first_traceback(recorded("heads-not-divisible.log"))
    assert found is not None
    assert "1 validation error for VllmConfig" in found.error
    assert "Total number of attention heads (4) must be divisible by tensor parallel size (3)" in found.error


def test_a_traceback_that_was_only_a_warning_is_no_cause() -> None:
    lines = [
        "WARNING 11-30 21:10:57 [x.py:1] optional thing failed",
        "WARNING 11-30 21:10:57 [x.py:1] Traceback (most recent call last):",
        'WARNING 11-30 21:10:57 [x.py:1]   File "a.py", line 1, in <module>',
        "WARNING 11-30 21:10:57 [x.py:1] ImportError: optional",
        "Traceback (most recent call last):",
        '  File "b.py", line 2, in <module>',
        "ValueError: the real one",
    ]
    found = first_traceback(lines)
    assert found is not None
    assert found.error == "ValueError: the real one"


def test_lines_of_other_workers_and_levels_in_between_are_left_out() -> None:
    lines = [
        "(W pid=1) ERROR 11-30 21:10:57 [x.py:1] Traceback (most recent call last):",
        "(V pid=2) ERROR 11-30 21:10:57 [x.py:1] Traceback (most recent call last):",
        '(W pid=1) ERROR 11-30 21:10:57 [x.py:1]   File "w.py", line 1, in f',
        "(W pid=1) INFO 11-30 21:10:57 [y.py:1] unrelated",
        '(V pid=2) ERROR 11-30 21:10:57 [x.py:1]   File "v.py", line 1, in g',
        "(V pid=2) ERROR 11-30 21:10:57 [x.py:1] KeyError: 'v'",
        "(W pid=1) ERROR 11-30 21:10:57 [x.py:1] KeyError: 'w'",
        "(W pid=1) ERROR 11-30 21:10:57 [x.py:1] Traceback (most recent call last):",
    ]
    found = first_traceback(lines)
    assert found is not None
    assert found.lines == ("Traceback (most recent call last):", '  File "w.py", line 1, in f', "KeyError: 'w'")


def test_a_cut_off_traceback_is_still_found() -> None:
    found = first_traceback(["Traceback (most recent call last):", '  File "b.py", line 2, in <module>'])
    assert found is not None
    assert found.error == 'File "b.py", line 2, in <module>'


def test_an_excerpt_keeps_the_last_frames_and_the_exception() -> None:
    found = first_traceback(recorded("partition-sum.log"))
    assert found is not None
    excerpt = found.excerpt(2)
    assert excerpt[1].endswith("frames left out ...")
    assert sum(line.startswith("  File ") for line in excerpt) == 2
    assert excerpt[-1].startswith("ValueError: sum(partitions)=4")
    assert found.excerpt(1000) == found.lines


def test_a_healthy_log_has_no_traceback() -> None:
    assert first_traceback(recorded(HEALTHY)) is None
