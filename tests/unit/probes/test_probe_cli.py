from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from stub_server import StubServer

from shardwright.cli.main import run
from shardwright.cli.probe_common import show_head
from shardwright.probes.report import ProbeReport

Start = Callable[[str], StubServer]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AGENT_PROBE_TRIALS", "VLLM_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def deploy(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = run(list(argv))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_smoke_exit_codes(stub: Start, capsys: pytest.CaptureFixture[str], free_port: int) -> None:
    assert deploy(capsys, "smoke", "--base-url", stub("healthy").base_url)[0] == 0
    assert deploy(capsys, "smoke", "--base-url", stub("stream-differs").base_url)[0] == 2
    code, _, err = deploy(capsys, "smoke", "--base-url", f"http://127.0.0.1:{free_port}")
    assert code == 4
    assert "nobody answers" in err


def test_smoke_shows_each_check_and_json(stub: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = stub("no-template")
    _, out, _ = deploy(capsys, "smoke", "--base-url", server.base_url)
    assert "SKIP  chat" in out
    assert "8 passed, 0 failed, 1 skipped" in out
    code, out, _ = deploy(capsys, "smoke", "--json", "--base-url", server.base_url)
    assert (code, json.loads(out)["verdict"]) == (0, "PASS")


@pytest.mark.parametrize(
    "mode, code, word",
    [("healthy", 0, "PASS"), ("loop", 2, "FAIL"), ("some-http-500", 3, "INCONCLUSIVE"), ("http-500", 4, "FAULT")],
)
def test_degen_exit_codes(stub: Start, capsys: pytest.CaptureFixture[str], mode: str, code: int, word: str) -> None:
    found, out, err = deploy(capsys, "degen", "--base-url", stub(mode).base_url, "--trials", "7")
    assert found == code
    assert out.startswith(f"{word}: ")
    # A bound of trials that nobody answered would be a number about nothing.
    assert ("the true rate is at most" in out.splitlines()[0]) == (word != "FAULT")
    assert "7 trials, 5 prompts in turn" in err


def test_what_would_decide_is_said_beside_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    report = ProbeReport("degen", "INCONCLUSIVE", (), 200, 2, 0, {}, "", "", 94, {"upper_bound": 0.0312})
    show_head(report, "2 of 200 trials degenerate")
    assert capsys.readouterr().out.splitlines() == [
        "INCONCLUSIVE: 2 of 200 trials degenerate; with 95 % confidence the true rate is at most 3.12 %",
        "  94 more trials would decide",
    ]


def test_degen_of_nobody(capsys: pytest.CaptureFixture[str], free_port: int) -> None:
    code, out, err = deploy(capsys, "degen", "--base-url", f"http://127.0.0.1:{free_port}")
    assert (code, out) == (4, "")
    assert "nobody answers" in err
    assert not Path("runs").exists()


def test_the_number_of_trials(stub: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ("degen", "--json", "--base-url", stub("healthy").base_url)
    assert json.loads(deploy(capsys, *argv)[1])["trials"] == 40
    monkeypatch.setenv("AGENT_PROBE_TRIALS", "3")
    _, out, err = deploy(capsys, *argv)
    assert json.loads(out)["trials"] == 3
    assert "override AGENT_PROBE_TRIALS=3" in err
    assert json.loads(deploy(capsys, *argv, "--trials", "2")[1])["trials"] == 2


@pytest.mark.parametrize("text", ["0", "-1", "many", "1e3", "９"])
def test_a_number_of_trials_that_is_none(
    stub: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("AGENT_PROBE_TRIALS", text)
    code, _, err = deploy(capsys, "degen", "--base-url", stub("healthy").base_url)
    assert code == 64
    assert "AGENT_PROBE_TRIALS" in err


def test_own_prompts_and_interface(stub: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = stub("healthy")
    argv = ("--prompt", "one", "--prompt", "two", "--api", "completions", "--max-tokens", "9", "--trials", "4")
    _, out, _ = deploy(capsys, "degen", "--json", "--base-url", server.base_url, *argv)
    assert json.loads(out)["per_prompt"] == {"p1": {"failures": 0, "trials": 2}, "p2": {"failures": 0, "trials": 2}}
    assert {body["prompt"] for body in server.requests} == {"one", "two"}
    assert {body["max_tokens"] for body in server.requests} == {9}


def test_trials_go_under_runs_and_asking_again_measures_again(stub: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = stub("healthy")
    argv = ("degen", "--base-url", server.base_url, "--trials", "3", "--concurrency", "2")
    deploy(capsys, *argv)
    (first,) = Path("runs").iterdir()
    first.rename(first.with_name(first.name.replace("T", "S")))
    asked = len(server.requests)
    deploy(capsys, *argv)
    assert len(server.requests) == 2 * asked
    assert len(list(Path("runs").iterdir())) == 2


def test_a_named_file_is_taken_up(stub: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = stub("healthy")
    argv = ("degen", "--base-url", server.base_url, "--trials", "3", "--output", "deep/trials.jsonl")
    deploy(capsys, *argv)
    asked = len(server.requests)
    code, out, _ = deploy(capsys, *argv)
    assert (code, len(server.requests)) == (0, asked)
    assert "3 of these trials were on file already" in out


def test_a_planted_key_appears_nowhere(
    stub: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-planted")
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    server = stub("healthy")
    argv = ("--base-url", server.base_url, "--api-key-env", "MY_KEY")
    prompts = ("--prompt", "what does hf_planted mean", "--trials", "2", "--output", "t.jsonl")
    printed = "".join(str(deploy(capsys, *verb, *argv)) for verb in (("smoke",), ("degen", *prompts)))
    assert server.headers[-1]["Authorization"] == "Bearer sk-planted"
    assert "planted" not in printed + Path("t.jsonl").read_text()


def test_a_control_server_is_asked_once_and_its_trials_decide(stub: Start, capsys: pytest.CaptureFixture[str]) -> None:
    control, server = stub("healthy"), stub("some-loops")
    argv = ("degen", "--base-url", server.base_url, "--trials", "24", "--control", control.base_url)
    code, out, err = deploy(capsys, *argv)
    assert code == 2
    assert "control: 0 of 24; so many more failures come by luck with p = " in out
    (kept,) = Path("runs/control").iterdir()
    assert str(kept) in err
    asked = len(control.requests)
    result = json.loads(deploy(capsys, *argv, "--json")[1])
    assert len(control.requests) == asked
    assert 0 < result["p_value_vs_control"] < 0.05
    # The file of a control serves as well, and one of other questions is refused.
    assert json.loads(deploy(capsys, *argv[:-1], str(kept), "--json")[1])["control"]["trials"] == 24
    code, _, err = deploy(capsys, *argv[:-1], str(kept), "--prompt", "Who?")
    assert (code, "not comparable" in err) == (64, True)


def test_a_control_file_that_is_none(stub: Start, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("degen", "--base-url", stub("healthy").base_url, "--trials", "2", "--control")
    assert deploy(capsys, *argv, "missing.jsonl")[0] == 64
    Path("odd.jsonl").write_text("no record\n")
    assert deploy(capsys, *argv, "odd.jsonl")[0] == 64


def test_quick_and_full(capsys: pytest.CaptureFixture[str]) -> None:
    from shardwright.probes.faulty.server import FaultyServer

    with FaultyServer("healthy", seed=1) as server:
        code, out, err = deploy(capsys, "degen", "--quick", "--base-url", server.base_url, "--json")
        assert (code, json.loads(out)["trials"]) == (0, 20)
        assert "20 trials, 5 prompts in turn" in err
    with FaultyServer("multi-turn-garbage", seed=1) as server:
        argv = ("--base-url", server.base_url, "--trials", "5", "--max-tokens", "300")
        code, out, err = deploy(capsys, "degen", "--full", *argv, "--json")
        result = json.loads(out)
        assert (code, result["verdict"], result["classes"]["GARBAGE"]) == (2, "FAIL", 4)
        assert result["per_task"]["agent"]["failures"] == 4
        assert "40 long texts" in err


def test_help_names_the_exit_codes() -> None:
    from shardwright.cli.main import cli

    for verb, words in (("smoke", "Exit 2"), ("degen", "Exit 2")):
        result = CliRunner().invoke(cli, [verb, "--help"])
        assert result.exit_code == 0
        assert words in result.output
