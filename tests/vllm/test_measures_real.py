"""Quality and speed against a real engine on the CPU with the small trained model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli import probe_speed
from shardwright.cli.main import run as deploy
from shardwright.probes.journal import Journal
from shardwright.probes.quality.plan import QualityPlan
from shardwright.probes.quality.run import report_from, run_quality
from shardwright.probes.server import Server, identify
from shardwright.probes.speed.engines import run_engine
from shardwright.probes.speed.plan import SpeedPlan
from shardwright.probes.speed.run import run_speed
from shardwright.probes.stored import read_records
from shardwright.probes.wire import Endpoint

pytestmark = pytest.mark.vllm

PLAN = SpeedPlan((1, 4), 2, 256, ("greedy",), (512, 4096), 2, prompts=("narrative",), warm_up_most=4, settle_share=0.5)


@pytest.fixture(scope="module")
def server(tiny_server: Endpoint) -> Server:
    return identify(tiny_server, None)


def test_every_check_of_the_engine_passes_but_for_a_call_that_is_cut_off(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    with Journal(file) as journal:
        report = run_quality(server, QualityPlan(1, 1, engine_only=True), journal)
    outcomes = {row["trial"]: row["class"] for row in report.numbers["checks"]}
    for name in ("stop-string", "max-tokens", "logprobs", "choice", "stream-equals-whole", "stream-eight"):
        assert outcomes[name] == "PASS", report.reasons
    for name in ("responses-text", "responses-stream", "responses-turn-two"):
        assert outcomes[name] == "PASS", report.reasons
    for name in ("tool-required", "tool-named", "tool-required-stream", "tool-auto-stream", "json-schema"):
        assert outcomes[name] == "PASS", report.reasons
    # It never thinks, and calls no tool of its own accord.
    for name in ("reasoning-on", "tool-no-arguments"):
        assert outcomes[name] == "NOT_APPLICABLE"
    # A fault of the engine itself (vllm-project/vllm#53269): whole, the half call ends as `length`.
    assert [name for name, outcome in outcomes.items() if outcome == "FAIL"] == ["tool-cut-off"]
    assert report.reasons[0].startswith("tool-cut-off: streamed, cut off after "), report.reasons
    assert "finish_reason is 'tool_calls'" in report.reasons[0]
    assert report_from(read_records(file), report.plan, str(file)).to_json() == report.to_json()


def test_a_tiny_model_is_not_blamed_on_the_engine(server: Server, tmp_path: Path) -> None:
    skip = ("text", "sampling", "stream", "tools", "responses", "reasoning", "copy")
    with Journal(tmp_path / "t.jsonl") as journal:
        report = run_quality(server, QualityPlan(1, 1, max_tokens=128, skip=skip), journal)
    assert report.verdict in ("FAIL", "INCONCLUSIVE")
    assert {row["role"] for row in report.numbers["checks"]} == {"model"}


def test_speed_alone_and_at_four(server: Server, tmp_path: Path) -> None:
    with Journal(tmp_path / "t.jsonl") as journal:
        report = run_speed(server, PLAN, journal, gap_error=lambda *_: 0.0)
    # Gaps of a tiny model on a shared CPU may come bunched; counts and classes must be right all the same.
    assert report.verdict in ("PASS", "INCONCLUSIVE"), report.reasons
    assert set(report.classes) <= {"OK", "TOO_FAST", "NO_OVERLAP"}, report.reasons
    one, four, prefill = report.numbers["rows"]
    assert (one["accept_len"], four["accept_len"]) == (None, None)
    assert (one["rounds"] + one["lost"], four["rounds"] + four["lost"]) == (2, 2)
    if one["rounds"]:
        assert one["tok_s"] > 0
        assert one["step_ms"] == one["token_ms"]
    assert prefill["prompt_tokens"] is None or prefill["prompt_tokens"] == pytest.approx(512, rel=0.1)


def test_vllm_bench_runs_beside_ours(server: Server, tmp_path: Path, project_root: Path) -> None:
    plan = SpeedPlan((1,), 2, 128, ("greedy",), (), 0, prompts=("narrative",), settle_share=0.5)
    with Journal(tmp_path / "t.jsonl") as journal:
        (ours,) = run_speed(server, plan, journal, gap_error=lambda *_: 0.0).numbers["rows"]
    (theirs,) = run_engine(
        "vllm-bench", server, plan, tmp_path / "tools", str(project_root / "configs/models/needle-tiny")
    )
    assert (theirs["status"], theirs["rounds"], theirs["max_tokens"]) == ("OK", 2, ours["max_tokens"])
    # Steps of a tiny model are shorter than a shared machine's time slices, so the two need not agree.
    assert theirs["tok_s"] > 0


def test_the_commands_say_it_by_their_exit_status(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = SpeedPlan((1, 4), 1, 256, ("greedy",), (), 0, prompts=("narrative",), warm_up_least=1, warm_up_most=1)
    monkeypatch.setattr(probe_speed, "_PLANS", {"quick": lambda **_: plan})
    at = ["--base-url", server.endpoint.base_url]
    skipped = ["--skip", "tools", "--skip", "reasoning", "--skip", "responses"]
    assert deploy(["quality", *at, "--engine-only", *skipped]) == 0
    capsys.readouterr()
    assert deploy(["speed", *at, "--quick", "--json"]) in (0, 3)
    content = json.loads(capsys.readouterr().out)
    assert {row["concurrency"] for row in content["rows"]} == {1, 4}
    assert "CONTAMINATED" not in content["classes"]
