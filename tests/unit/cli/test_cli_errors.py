"""Mistakes end in one clear line and the documented exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from shardwright.cli import main as main_module
from shardwright.cli.main import run
from shardwright.errors import DeployError, ExitCode, UsageError
from tests.unit.helpers import BASE, ROOT, Result, clean_environment, write_layout

Cli = Callable[..., Result]
DEPLOY = [sys.executable, str(ROOT / "deploy.py")]


@pytest.mark.parametrize(
    "words",
    [
        ("cmd", "--nope"),
        ("cmd", "a", "b"),
        ("cmd", "--set"),
        ("frobnicate",),
        ("cmd", "no-such-layout"),
        ("cmd", "no/such/file.yaml"),
        ("cmd", "a" * 5000),
        ("cmd", "\x00"),
        ("cmd", ".."),
        ("cmd", ""),
        ("check", "  "),
        ("stop", ""),
        ("vtp", "plan", "dsv4flash-tp3-lucifer", "--tp", "0"),
        ("cmd", "--set", "x"),
        ("defaultcheck", "glm53-tp4pp2", "--all"),
        ("wait", "--timeout", "soon"),
    ],
)
def test_a_request_that_cannot_be_understood_exits_64(cli: Cli, words: tuple[str, ...]):
    result = cli(*words)
    assert (result.code, result.out) == (64, "")
    assert "Traceback" not in result.err
    assert result.err


def test_no_verb_at_all_shows_the_help_and_exits_64(cli: Cli):
    result = cli()
    assert result.code == 64
    assert "Usage: deploy" in result.out + result.err


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (("chek",), "Did you mean check?"),
        (("defaultchek",), "Did you mean defaultcheck?"),
        (("cmd", "glm53-tp4pp"), "did you mean 'glm53-tp4pp2'?"),
        (("cmd", "tiny-cpu-pp"), "did you mean 'tiny-cpu-pp2'?"),
        (("cmd", "zzz"), "deploy layouts lists them"),
        (("patch", "check", "pp-index-transprot"), "deploy patch list"),
    ],
)
def test_a_typo_gets_the_nearest_name(cli: Cli, words: tuple[str, ...], suggestion: str):
    result = cli(*words)
    assert (result.code, suggestion in result.err) == (64, True)


@pytest.mark.parametrize(
    ("given", "suggestion"), [("tiny-cpu", "did you mean tiny-cpu.yaml?"), ("x", "name a file below")]
)
def test_a_parent_that_is_not_there_gets_the_nearest_name(cli: Cli, tmp_path: Path, given: str, suggestion: str):
    layout = tmp_path / "mine.yaml"
    layout.write_text(f"name: mine\nextends: {given}\n")
    result = cli("cmd", str(layout))
    assert (result.code, suggestion in result.err) == (64, True)


@pytest.mark.parametrize("words", [("boots", "tiny-cpu"), ("verify", "tiny-cpu-pp2", "--ablate", "pp-cpu-eager")])
def test_nobody_is_asked_to_stop_what_does_not_run(cli: Cli, words: tuple[str, ...]):
    result = cli(*words)
    assert result.code == 1
    assert "does not run" in result.err
    assert "nobody is there" not in result.err


def test_an_error_says_what_why_and_what_next(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def fail(**_: object) -> None:
        raise DeployError("it broke", why="it matters", fix="deploy mend", code=ExitCode.INCONCLUSIVE)

    monkeypatch.setattr(main_module.cli, "main", fail)
    assert run([]) == 3
    assert capsys.readouterr().err == "error: it broke\n  why: it matters\n  fix: deploy mend\n"


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (UsageError("u"), 64),
        (DeployError("d"), 1),
        (DeployError("t", code=ExitCode.TIMEOUT), 124),
        (click.UsageError("u"), 64),
        (click.ClickException("c"), 1),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left on device", "/full"), 1),
    ],
)
def test_no_failure_ends_in_an_undocumented_code(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(**_: object) -> None:
        raise raised

    monkeypatch.setattr(main_module.cli, "main", fail)
    assert run([]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_ends_with_130_and_one_word():
    script = (
        "import os, signal\n"
        "import shardwright.cli.look as look, shardwright.cli.main as m\n"
        "def stop(*a, **k): os.kill(os.getpid(), signal.SIGINT); signal.pause()\n"
        "look.load = stop\n"
        "m.main(['cmd'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "interrupted")


@pytest.mark.parametrize("words", [("cmd",), ("cmd", "--json"), ("--help",), ("layouts",), ("check",)])
def test_a_reader_that_went_away_gets_no_complaint(words: tuple[str, ...]):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*DEPLOY, *words], cwd=ROOT, env=clean_environment(), stdout=writing, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writing)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert done.returncode == 1, "a verdict that nobody could read is no success"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line_and_no_success():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*DEPLOY, "cmd"], cwd=ROOT, env=clean_environment(), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert "error: No space left on device" in done.stderr


def test_the_command_runs_from_a_checkout_and_from_anywhere(tmp_path: Path):
    write_layout(tmp_path, BASE)
    done = subprocess.run(
        [*DEPLOY, "cmd", "demo"], cwd=tmp_path / "configs", env=clean_environment(), capture_output=True, text=True
    )
    assert (done.returncode, "org/model" in done.stdout) == (0, True)
    assert f"shardwright.project={tmp_path}" in done.stdout


def test_a_working_directory_that_is_gone_is_one_line(tmp_path: Path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
    words = [sys.executable, "-c", script, str(gone), *DEPLOY, "cmd"]
    done = subprocess.run(words, env=clean_environment(), capture_output=True, text=True)
    assert done.returncode == 64
    assert done.stderr == "error: the current folder was removed\n  fix: cd to one that is there\n"


def test_lines_of_the_audit_that_are_no_entries_are_passed_over(cli: Cli, tmp_path: Path):
    entry = {"at": "now", "user": "u", "host": "h", "verb": "start", "layout": "demo", "instance": "demo-1"}
    lines = ["{}", "[" * 100_000, "no json", json.dumps({**entry, "waived": [], "detail": ""}), '{"at": "tor']
    (tmp_path / ".deploy").mkdir()
    (tmp_path / ".deploy" / "audit.jsonl").write_text("\n".join(lines))
    result = cli("audit", DEPLOY_PROJECT=str(tmp_path))
    assert (result.code, result.out) == (0, "now  u@h  start    demo-1\n")


def test_a_python_without_the_packages_is_one_line():
    done = subprocess.run([sys.executable, "-S", str(ROOT / "deploy.py"), "layouts"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the package click is not installed for ") and "Traceback" not in done.stderr


def test_a_project_that_is_no_folder_is_not_taken_for_an_empty_one(cli: Cli, tmp_path: Path):
    (tmp_path / "file").write_text("")
    for named in (tmp_path / "missing", tmp_path / "file"):
        result = cli("cmd", "tiny-cpu", DEPLOY_PROJECT=str(named))
        assert (result.code, result.out) == (64, "")
        assert result.err.startswith(f"error: DEPLOY_PROJECT={named} is no folder\n")


def test_a_log_that_cannot_be_read_is_no_known_cause_of_death(cli: Cli, tmp_path: Path):
    for words in (("doctor",), ("plan", "glm53-tp4pp2", "--log")):
        assert cli(*words, str(tmp_path)).code == 64
        assert cli(*words, str(tmp_path / "missing")).code == 64


@pytest.mark.parametrize("address", ["ftp://x", "http://", "http:///v1", "127.0.0.1:8000"])
def test_an_address_without_a_host_is_refused_before_anybody_is_asked(cli: Cli, address: str):
    result = cli("smoke", "--base-url", address)
    assert (result.code, result.err.splitlines()[0]) == (64, f"error: --base-url {address!r} is not an http address")


def test_layout_files_that_cannot_be_read_are_named(cli: Cli, tmp_path: Path):
    write_layout(tmp_path, BASE).write_bytes(b"\xff\xfe")
    result = cli("cmd", "demo", DEPLOY_PROJECT=str(tmp_path))
    assert (result.code, result.err.splitlines()[0]) == (64, "error: configs/layouts/demo.yaml is not UTF-8 text")


def test_one_broken_layout_does_not_hide_the_others(cli: Cli, tmp_path: Path):
    write_layout(tmp_path, BASE, "good")
    write_layout(tmp_path, "nonsense: [", "bad")
    result = cli("layouts", "--json", DEPLOY_PROJECT=str(tmp_path))
    rows = {row["name"]: row for row in result.data}
    assert result.code == 0
    assert rows["good"]["status"] == "testing"
    assert rows["bad"]["status"] == "broken"
    assert "configs/layouts/bad.yaml:2" in rows["bad"]["shape"]
