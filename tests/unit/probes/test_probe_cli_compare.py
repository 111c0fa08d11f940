"""The verbs needle, parity and repeat: exit codes, files, and what they print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardwright.cli.main import cli, run
from shardwright.probes.faulty.behaviour import Sizes
from shardwright.probes.faulty.server import FaultyServer

SIZES = Sizes(index_topk=256, deep=400, max_model_len=1024)

SMALL = Sizes(index_topk=64, deep=100, max_model_len=160)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("VLLM_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def healthy() -> Iterator[FaultyServer]:
    with FaultyServer(seed=1, sizes=SIZES) as server:
        yield server


@pytest.fixture
def small() -> Iterator[FaultyServer]:
    with FaultyServer(seed=1, sizes=SMALL) as server:
        yield server


def deploy(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = run(list(argv))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_needle_prints_budget_map_and_verdict(healthy: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("needle", "--base-url", healthy.base_url, "--lengths", "200, 300", "--depths", "0,100")
    code, out, err = deploy(capsys, *argv)
    assert code == 0
    assert "needle: 16 requests in 4 cells" in err
    assert "       200      E     E" in out
    assert "PASS: needle, 0 of 16 trials failed" in out


def test_needle_warns_of_short_lengths_before_it_asks(
    healthy: FaultyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("--base-url", healthy.base_url, "--lengths", "200", "--depths", "50", "--index-topk", "2048")
    code, out, err = deploy(capsys, "needle", "--json", *argv)
    assert code == 0
    warning = "needle prompt 200 <= index_topk 2048"
    assert warning in err
    assert any(warning in reason for reason in json.loads(out)["reasons"])


def test_a_model_that_always_thinks_can_be_given_room(
    healthy: FaultyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("needle", "--base-url", healthy.base_url, "--lengths", "900", "--depths", "50", "--max-tokens", "700")
    code, _, err = deploy(capsys, *argv)
    assert code == 0
    assert "at most 1240 tokens of answers" in err, "ten requests with the 124 tokens that the server has room for"


def test_needle_fails_and_draws_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer(mode="topk-cliff", seed=1, sizes=SIZES) as server:
        argv = ("needle", "--base-url", server.base_url, "--lengths", "200,300", "--depths", "50")
        assert deploy(capsys, *argv, "--map", "map.svg")[0] == 2
        code, out, _ = deploy(capsys, *argv, "--map", "map.html", "--json", "--output", "t.jsonl")
    assert code == 2
    assert json.loads(out)["verdict"] == "FAIL"
    assert Path("map.svg").read_text().startswith("<svg")
    page = Path("map.html").read_text()
    assert "DISTRACTOR" in page
    assert "<svg" in page
    assert Path("t.jsonl").is_file()


def test_needle_of_the_whole_server_with_quick_and_full(
    healthy: FaultyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = deploy(capsys, "needle", "--quick", "--json", "--base-url", healthy.base_url)
    assert (code, json.loads(out)["verdict"]) == (0, "PASS")
    assert json.loads(out)["longest_tokens"] == 1024 - 64


@pytest.mark.parametrize(
    "argv",
    [
        ("--lengths", "many"),
        ("--lengths", "1,,2"),
        ("--depths", "101"),
        ("--depths", "-1"),
        ("--lengths", "300", "--quick"),
        ("--seeds", "3"),
        ("--thinking",),
        ("--map", "map.png"),
        ("--lengths", "20"),
    ],
)
def test_a_needle_that_cannot_be_asked_is_a_mistake_of_the_user(
    healthy: FaultyServer, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    code, _, err = deploy(capsys, "needle", "--base-url", healthy.base_url, *argv)
    assert code == 64
    assert "error: " in err


def test_parity_records_and_compares(small: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--base-url", small.base_url)
    assert deploy(capsys, "parity", "record", *at, "--output", "a.jsonl")[0] == 0
    with FaultyServer(mode="topology-salad", seed=1, sizes=SMALL) as other:
        assert deploy(capsys, "parity", "record", "--base-url", other.base_url, "--output", "b.jsonl")[0] == 0
    code, out, _ = deploy(capsys, "parity", "compare", "a.jsonl", "a.jsonl", "--noise", "a.jsonl")
    assert code == 0
    assert "PASS: parity" in out
    code, out, _ = deploy(capsys, "parity", "compare", "a.jsonl", "b.jsonl", "--json")
    assert code == 2
    assert json.loads(out)["distance"]["mean_kl"] > 1


def test_parity_refuses_what_is_no_pair_of_recordings(small: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--base-url", small.base_url)
    deploy(capsys, "parity", "record", *at, "--output", "a.jsonl")
    deploy(capsys, "parity", "record", *at, "--output", "b.jsonl", "--index-topk", "90")
    for pair in (("a.jsonl", "b.jsonl"), ("a.jsonl", "none.jsonl"), ("a.jsonl", "text")):
        Path("text").write_text("hello\n")
        code, _, err = deploy(capsys, "parity", "compare", *pair)
        assert code == 64
        assert "error: " in err


def test_repeat_passes_and_fails(small: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = deploy(capsys, "repeat", "--base-url", small.base_url)
    assert code == 0
    assert "PASS: repeat, 0 of 2 trials failed" in out
    assert "requests of other traffic" in err
    with FaultyServer(mode="stale-index", seed=1, sizes=SMALL) as stale:
        code, out, _ = deploy(capsys, "repeat", "--json", "--base-url", stale.base_url)
    assert (code, json.loads(out)["classes"]) == (2, {"CHANGED": 2})


def test_nobody_answers(capsys: pytest.CaptureFixture[str], free_port: int) -> None:
    at = ("--base-url", f"http://127.0.0.1:{free_port}")
    for verb in (("needle",), ("repeat",), ("parity", "record", "--output", "a.jsonl")):
        code, out, err = deploy(capsys, *verb, *at)
        assert (code, out) == (4, "")
        assert "nobody answers" in err


def test_help_names_the_exit_codes() -> None:
    for verb in (["needle"], ["repeat"], ["parity", "record"], ["parity", "compare"]):
        result = CliRunner().invoke(cli, [*verb, "--help"])
        assert result.exit_code == 0
        assert "Exit 2" in result.output


def test_the_layout_gives_the_edges_and_the_server_its_own_limit(
    healthy: FaultyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("tiny-cpu", "--set", "serve.served_model_name=faulty-model", "--base-url", healthy.base_url)
    argv = (*named, "--wording", "access-code", "--depths", "50", "--output", "t.jsonl")
    assert deploy(capsys, "needle", *argv)[0] == 0
    edges = json.loads(Path("t.jsonl").read_text().splitlines()[0])["request"]["edges"]
    assert edges == {"block": 128, "index_topk": None, "window": None, "chunk": 2048, "max_len": 1024}
