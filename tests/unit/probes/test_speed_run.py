"""The speed probe against the faulty server, whose step takes a known time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.cli import probe_speed
from shardwright.cli.main import run as deploy
from shardwright.errors import DeployError, ExitCode
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.journal import Journal
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import Server, identify
from shardwright.probes.speed import engines as speed_engines
from shardwright.probes.speed.plan import Key, SpeedPlan, default, full, quick
from shardwright.probes.speed.prompts import KINDS, prompt_of
from shardwright.probes.speed.report import report_from, rows_of
from shardwright.probes.speed.run import run_speed
from shardwright.probes.stored import read_records
from shardwright.probes.wire import Endpoint
from tests.unit.helpers import torn_in_last_trial

STEP_S = 0.01
PLAN = SpeedPlan(
    (1, 2),
    2,
    16,
    ("greedy",),
    (300,),
    1,
    prompts=("narrative", "copy"),
    warm_up_least=2,
    warm_up_most=2,
    settle_share=1.0,
)


def exact_client(_: int, __: float, ___: int) -> float:
    return 0.0


def measure(
    mode: str, file: Path, plan: SpeedPlan = PLAN, *, speculative: bool = False, step_s: float = 0.001
) -> ProbeReport:
    with (
        FaultyServer(mode, speculative=speculative, step_s=step_s, prefill_s_per_token=1e-4) as faulty,
        Journal(file) as journal,
    ):
        return run_speed(identify(Endpoint(faulty.base_url), None), plan, journal, gap_error=exact_client)


def test_a_known_step_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    report = measure("healthy", file, step_s=STEP_S)
    assert report.verdict in ("PASS", "INCONCLUSIVE")  # A busy machine bunches events.
    assert report.classes == {"OK": len(PLAN.trials(None))}
    one, _, two, prefill = report.numbers["rows"]
    assert 0.8 < one["step_ms"] / (1000 * STEP_S) < 1.6
    assert 0.6 < two["tok_s"] / (2 * one["tok_s"]) < 1.6
    assert one["ttft_ms_p50"] >= 1000 * STEP_S
    assert prefill["prompt_tokens"] == pytest.approx(300, rel=0.2)
    assert prefill["tok_s"] > 0
    assert report_from(read_records(file), report.plan, str(file)).to_json() == report.to_json()
    trials = [record for record in read_records(file) if record["kind"] == "trial"]
    assert rows_of(trials) == report.numbers["rows"]


def test_a_file_that_was_cut_off_in_its_last_trial_is_reported_without_it(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    report = measure("healthy", file)
    file.write_text(torn_in_last_trial(file.read_text()))
    again = report_from(read_records(file), report.plan)
    assert (again.trials, again.errors) == (report.trials - 1, 0)
    assert again.numbers["planned"] == report.trials


def test_drafts_are_counted_apart_from_steps(tmp_path: Path) -> None:
    report = measure("healthy", tmp_path / "t.jsonl", speculative=True, step_s=STEP_S)
    narrative, copied = report.numbers["rows"][:2]
    assert copied["accept_len"] > narrative["accept_len"] > 1
    assert copied["accept_pos0"] > narrative["accept_pos0"]
    assert copied["tok_s"] > narrative["tok_s"]


def test_drafts_that_nobody_accepts_fail(tmp_path: Path) -> None:
    report = measure("draft-embedding", tmp_path / "t.jsonl")
    assert (report.verdict, report.exit_code) == ("FAIL", ExitCode.DRIFT)
    assert "noise" in report.reasons[0]


def test_a_cache_that_ignores_the_salt_measures_no_prefill(tmp_path: Path) -> None:
    report = measure(
        "salt-ignored", tmp_path / "t.jsonl", SpeedPlan((1,), 1, 16, ("greedy",), (300,), 2, warm_up_most=3)
    )
    assert "CACHE_HIT" in report.classes
    assert report.verdict == "FAULT"


@pytest.mark.parametrize("mode", ["busy", "counters-reset"])
def test_a_server_that_others_use_or_that_began_anew_is_not_measured(mode: str, tmp_path: Path) -> None:
    with pytest.raises(DeployError) as caught:
        measure(mode, tmp_path / "t.jsonl")
    assert caught.value.code == ExitCode.HARNESS


def test_a_round_with_others_in_it_is_measured_again_and_both_stay_on_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardwright.probes.speed.run._COUNTERS_LAG_S", 1.0)
    file = tmp_path / "t.jsonl"
    plan = SpeedPlan((1,), 1, 16, ("greedy",), (), 0, prompts=("narrative",), warm_up_least=1, warm_up_most=1)
    with FaultyServer(step_s=0.01) as faulty, Journal(file) as journal:
        server = identify(Endpoint(faulty.base_url), None)
        _ = server.capabilities
        asked = len(faulty.requests)
        take = faulty.engine.end

        def with_another(job: Any, finish: str | None) -> None:
            take(job, finish)
            if len(faulty.requests) - asked == 2:
                faulty.engine.metrics.add(generation_tokens_total=5)

        faulty.engine.end = with_another  # type: ignore[method-assign]
        report = run_speed(server, plan, journal, gap_error=exact_client)
    kinds = [record["kind"] for record in read_records(file)]
    assert kinds == ["plan", "discarded", "trial", "trial", "result"]
    assert report.classes == {"OK": 2}


def test_a_slow_client_is_named_instead_of_a_number(tmp_path: Path) -> None:
    with FaultyServer(step_s=0.002) as faulty, Journal(tmp_path / "t.jsonl") as journal:
        server = identify(Endpoint(faulty.base_url), None)
        report = run_speed(server, PLAN, journal, gap_error=lambda streams, _, __: 0.3 if streams == 2 else 0.0)
    status = {row["concurrency"]: row["status"] for row in report.numbers["rows"] if row["test"] == "decode"}
    assert status == {1: "OK", 2: "CLIENT-LIMITED"}
    assert report.verdict == "INCONCLUSIVE"


def test_what_is_on_file_is_not_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    with FaultyServer(step_s=0.001) as faulty:
        server = identify(Endpoint(faulty.base_url), None)
        with Journal(file) as journal:
            first = run_speed(server, PLAN, journal, gap_error=exact_client)
        asked = len(faulty.requests)
        with Journal(file) as journal:
            second = run_speed(server, PLAN, journal, gap_error=exact_client)
        assert len(faulty.requests) == asked
    assert second.to_json() == first.to_json()


def test_every_stream_has_its_own_prompt_and_a_cold_cache(tmp_path: Path) -> None:
    with FaultyServer(step_s=0.001) as faulty, Journal(tmp_path / "t.jsonl") as journal:
        server = identify(Endpoint(faulty.base_url), None)
        _ = server.capabilities
        asked = len(faulty.requests)
        run_speed(server, PLAN, journal, gap_error=exact_client)
        bodies = faulty.requests[asked:]
    assert all(body["cache_salt"] for body in bodies)
    decoded = [body for body in bodies if body["max_tokens"] == PLAN.max_tokens]
    assert all(body["ignore_eos"] and body["min_tokens"] == PLAN.max_tokens for body in decoded)
    assert len({prompt_of(kind, variant) for kind in KINDS for variant in range(16)}) == 48


def test_lengths_that_do_not_fit_are_left_out() -> None:
    assert {key.tokens for key in full().trials(40_000) if key.test == "prefill"} == {8192, 32_768}
    assert Key("decode", 4, "narrative", round=2).name == "decode/narrative/greedy/c4/r2"


def test_plans_name_themselves_and_their_cost() -> None:
    server = Server(Endpoint("http://127.0.0.1:1"), "m", None, None)
    assert len({make().id(server) for make in (quick, default, full)}) == 3
    assert default().spec() == full().spec() != quick().spec()
    assert "1, 4 at a time" in quick().budget()


BENCH = {
    "completed": 8,
    "failed": 0,
    "output_throughput": 180.5,
    "median_ttft_ms": 42.0,
    "p95_ttft_ms": 61.0,
    "median_tpot_ms": 20.5,
    "median_itl_ms": 20.2,
    "p95_itl_ms": 22.0,
    "spec_decode_acceptance_length": 2.4,
}


BENCHY: dict[str, Any] = json.loads(Path(__file__).with_name("llama_benchy_0.4.0.json").read_text())
"""As version 0.4.0 wrote it for a server with steps of 20 ms."""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, Any], int], Path]:
    """Put a program on the path that writes a recorded result where its arguments say."""

    def install(name: str, result: dict[str, Any], code: int) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        file = folder / name
        file.write_text(
            f"#!{sys.executable} -S\nimport pathlib, sys\n"
            f"a = sys.argv; r = {json.dumps(result)!r}\n"
            "at = lambda n: a[a.index(n) + 1]\n"
            "p = pathlib.Path(at('--result-dir')) / at('--result-filename') if '--result-dir' in a else "
            "pathlib.Path(at('--save-result'))\n"
            f"{code} or p.write_text(r)\nprint(' '.join(a)); sys.exit({code})\n"
        )
        file.chmod(0o755)
        monkeypatch.setattr(speed_engines.sys, "executable", str(folder / "python"))
        return file

    return install


def test_vllm_bench_stands_beside_ours(program: Callable[..., Path], tmp_path: Path) -> None:
    program("vllm", BENCH, 0)
    with FaultyServer() as faulty:
        server = identify(Endpoint(faulty.base_url), None)
        rows = speed_engines.run_engine("vllm-bench", server, PLAN, tmp_path / "raw", "/models/m")
    assert [(row["concurrency"], row["tok_s"], row["token_ms"]) for row in rows] == [(1, 180.5, 20.5), (2, 180.5, 20.5)]
    assert json.loads((tmp_path / "raw/vllm-bench-c2.json").read_text()) == BENCH
    said = (tmp_path / "raw/vllm-bench-c2.log").read_text()
    assert "--tokenizer /models/m" in said
    assert "--max-concurrency 2" in said


def test_llama_benchy_stands_beside_ours(program: Callable[..., Path], tmp_path: Path) -> None:
    program("llama-benchy", BENCHY, 0)
    with FaultyServer() as faulty:
        rows = speed_engines.run_engine("llama-benchy", identify(Endpoint(faulty.base_url), None), PLAN, tmp_path, None)
    assert [(row["test"], row["concurrency"]) for row in rows] == [
        ("prefill", 1),
        ("decode", 1),
        ("prefill", 2),
        ("decode", 2),
    ]
    assert [round(row["tok_s"]) for row in rows if row["test"] == "decode"] == [50, 100]
    assert [round(row["token_ms"]) for row in rows if row["test"] == "decode"] == [20, 20]
    assert all(row["ttft_ms_p50"] > 20 for row in rows)


def test_a_tool_that_fails_says_why(program: Callable[..., Path], tmp_path: Path) -> None:
    program("vllm", BENCH, 3)
    with FaultyServer() as faulty, pytest.raises(DeployError) as caught:
        speed_engines.run_engine("vllm-bench", identify(Endpoint(faulty.base_url), None), PLAN, tmp_path, None)
    assert (caught.value.code, "exit 3" in caught.value.what) == (ExitCode.HARNESS, True)


def test_a_tool_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed_engines.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    with FaultyServer() as faulty, pytest.raises(DeployError, match="llama-benchy is not installed"):
        speed_engines.run_engine("llama-benchy", identify(Endpoint(faulty.base_url), None), PLAN, tmp_path, None)


def test_a_key_never_reaches_a_command_line(program: Callable[..., Path], tmp_path: Path) -> None:
    program("llama-benchy", BENCHY, 0)
    with FaultyServer() as faulty, pytest.raises(DeployError, match="command line"):
        server = identify(Endpoint(faulty.base_url, "secret"), None)
        speed_engines.run_engine("llama-benchy", server, PLAN, tmp_path, None)


def test_the_command_measures_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: Callable[..., Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = SpeedPlan((2,), 2, 16, ("greedy",), (), 0, warm_up_least=1, warm_up_most=1)
    monkeypatch.setattr(probe_speed, "_PLANS", {"quick": lambda **_: plan, None: lambda **_: plan})
    monkeypatch.setattr("shardwright.probes.speed.run._measured_gap_error", exact_client)
    program("vllm", BENCH, 0)
    with FaultyServer(step_s=0.003) as faulty:
        at = ["speed", "--base-url", faulty.base_url]
        assert deploy([*at, "--quick", "--json", "--output", "a.jsonl", "--engine", "vllm-bench"]) in (0, 3)
        content = json.loads(capsys.readouterr().out)
        assert {"verdict", "rows", "tools", "against", "spec"} <= content.keys()
        assert [row["tool"] for row in content["tools"]] == ["vllm-bench"]
        assert (tmp_path / "a.tools/vllm-bench-c2.json").exists()
        assert deploy([*at, "--output", "b.jsonl", "--against", "a.jsonl"]) in (0, 2, 3)
        shown = capsys.readouterr().out
    assert "| tg16 narrative (c2) |" in shown
    assert "step_ms, narrative c2:" in shown
    assert deploy(["speed", "--base-url", "http://127.0.0.1:9", "--against", "b.jsonl.none"]) == 64


def test_what_the_server_counts_late_is_not_taken_for_traffic_of_others(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    plan = SpeedPlan((1,), 2, 16, ("greedy",), (200,), 2, prompts=("narrative",), warm_up_least=1, warm_up_most=1)
    with FaultyServer(step_s=STEP_S, prefill_s_per_token=1e-3) as faulty, Journal(file) as journal:
        take = faulty.engine.end

        def late(job: Any, finish: str | None) -> None:
            time.sleep(0.1)
            take(job, finish)

        faulty.engine.end = late  # type: ignore[method-assign]
        report = run_speed(identify(Endpoint(faulty.base_url), None), plan, journal, gap_error=exact_client)
    assert "discarded" not in [record["kind"] for record in read_records(file)]
    assert report.classes == {"OK": 5}
