from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardwright.errors import DeployError
from shardwright.probes.journal import Journal, JournalBusyError
from shardwright.probes.runs import open_run


def write(path: Path, *kinds: str, **fields: object) -> None:
    with Journal(path) as journal:
        for kind in kinds:
            journal.append(kind, fields)


def test_records_come_back_and_new_ones_are_added(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "trials.jsonl"
    write(file, "plan", text="a\u2028b\ud800")
    write(file, "trial")
    with Journal(file) as journal:
        assert [record["kind"] for record in journal.records] == ["plan", "trial"]
        assert journal.records[0]["text"] == "a\u2028b\ud800"
    assert file.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("torn", ['{"kind": "tri', "{", '{"kind": "trial"}', '{"kind": "trial", "text": "\\u'])
def test_a_torn_last_line_is_cut_off_and_the_rest_kept(tmp_path: Path, torn: str) -> None:
    file = tmp_path / "trials.jsonl"
    write(file, "plan", "trial")
    with file.open("a") as handle:
        handle.write(torn)
    write(file, "result")
    assert [json.loads(line)["kind"] for line in file.read_text().splitlines()] == ["plan", "trial", "result"]


@pytest.mark.parametrize("content", ["my notes", "my notes\n", "[1]\n", '{"a": 1}\n', '{"a": 1}', "1\n", "\n"])
def test_a_file_of_somebody_else_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    file = tmp_path / "notes"
    file.write_text(content)
    with pytest.raises(DeployError, match=r"notes:1: not a record"):
        Journal(file)
    assert file.read_text() == content


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    write(file, "plan", "trial")
    file.write_bytes(file.read_bytes() + b"\xff\xfe\n")
    with pytest.raises(DeployError, match=r":3: not a record"):
        Journal(file)


def test_secrets_do_not_reach_the_file(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    with Journal(file, ["sk-planted", "sk-planted-longer", ""]) as journal:
        written = journal.append("trial", {"text": "it is sk-planted-longer", "error": {"detail": ["sk-planted"]}})
    assert "planted" not in file.read_text()
    assert "longer" not in file.read_text()
    assert written["error"] == {"detail": ["[redacted]"]}


def test_a_key_that_equals_one_of_our_words_does_not_change_a_class(tmp_path: Path) -> None:
    with Journal(tmp_path / "trials.jsonl", ["EMPTY"]) as journal:
        assert journal.append("trial", {"class": "EMPTY", "text": "EMPTY"}) == {
            "kind": "trial",
            "class": "EMPTY",
            "text": "[redacted]",
        }


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    with Journal(file), pytest.raises(JournalBusyError, match="another run is writing"):
        Journal(file)
    Journal(file).close()


def test_a_killed_writer_leaves_no_lock_and_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    program = (
        "import sys\nfrom pathlib import Path\nfrom shardwright.probes.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "while True: journal.append('trial', {'text': 'x' * 5000})\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(file)])
    deadline = time.monotonic() + 20
    while not (file.exists() and file.stat().st_size > 500_000) and time.monotonic() < deadline:
        time.sleep(0.005)
    writer.kill()
    writer.wait()
    with Journal(file) as journal:
        assert len(journal.records) > 10
        assert {len(record["text"]) for record in journal.records} == {5000}


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="cannot write") as caught:
        Journal(tmp_path)
    assert "--output" in caught.value.fix
    (tmp_path / "file").write_text("")
    with pytest.raises(DeployError, match="cannot write"):
        Journal(tmp_path / "file" / "trials.jsonl")


def test_a_device_takes_trials_without_being_read_back() -> None:
    with Journal(Path("/dev/null")) as journal:
        journal.append("trial", {})
    with Journal(Path("/dev/null")) as journal:
        assert journal.records == []


def test_an_unfinished_run_is_taken_up_and_a_finished_one_is_not(tmp_path: Path) -> None:
    with open_run(tmp_path, "degen-x", "0123456789") as first:
        first.append("trial", {"plan": "0123456789"})
    with open_run(tmp_path, "degen-x", "0123456789") as again:
        assert again.path == first.path
        again.append("result", {"plan": "0123456789", "trials": 3, "planned": 4})
    with open_run(tmp_path, "degen-x", "0123456789") as third:
        assert third.path == first.path
        third.append("result", {"plan": "0123456789", "trials": 4, "planned": 4})
    first.path.rename(first.path.with_name("degen-x-01234567-20200101T000000Z-1.jsonl"))
    with open_run(tmp_path, "degen-x", "0123456789") as fresh:
        assert fresh.records == []
        assert len(list(tmp_path.glob("degen-x-01234567-*.jsonl"))) == 2


def test_a_run_of_another_plan_or_of_a_running_process_is_not_taken_up(tmp_path: Path) -> None:
    with open_run(tmp_path, "degen-x", "a" * 16) as first:
        with open_run(tmp_path, "degen-x", "b" * 16) as other:
            assert other.path != first.path
        busy = first.path.with_name("degen-x-aaaaaaaa-20200101T000000Z-1.jsonl")
        first.path.rename(busy)
        with open_run(tmp_path, "degen-x", "a" * 16) as fresh:
            assert fresh.path != busy
