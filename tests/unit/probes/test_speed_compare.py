"""Verdicts of two speed runs against each other."""

from __future__ import annotations

from typing import Any

import pytest

from shardwright.errors import DeployError, ExitCode
from shardwright.layout.speed import SpeedSettings
from shardwright.probes.speed.compare import MetricVerdict, compare_speed
from shardwright.probes.speed.plan import as_declared, default


def row(**values: Any) -> dict[str, Any]:
    return {"test": "decode", "prompt": "narrative", "sampler": "greedy", "concurrency": 1, "rounds": 5} | values


def verdict(metric: str, a: dict[str, Any], b: dict[str, Any]) -> MetricVerdict:
    (found,) = [one for one in compare_speed([a], [b]) if one.metric.startswith(metric)]
    return found


def test_a_difference_within_noise_is_no_improvement() -> None:
    a, b = row(tok_s=71.2, step_ms=34.15), row(tok_s=71.3, step_ms=33.70)
    rate, step = verdict("tok_s", a, b), verdict("step_ms", a, b)
    assert (rate.change, rate.verdict) == ("EQUAL", "PASS")
    assert step.change == "EQUAL"
    assert step.ratio == pytest.approx(0.987, abs=5e-4)
    assert "-1.3 %" in step.reason
    assert "equal within noise" in rate.reason


def test_a_step_beyond_its_margin_fails() -> None:
    found = verdict("step_ms", row(step_ms=33.7, tok_s=70), row(step_ms=36.0, tok_s=70))
    assert (found.verdict, found.change) == ("FAIL", "WORSE")


def test_a_step_that_is_clearly_shorter_is_better() -> None:
    found = verdict("step_ms", row(step_ms=33.7, tok_s=70), row(step_ms=30.0, tok_s=80))
    assert (found.verdict, found.change) == ("PASS", "BETTER")


def test_scattered_rounds_decide_nothing_and_say_how_many_would() -> None:
    a, b = (row(step_ms=value, step_ms_cv=0.05, tok_s=70) for value in (33.7, 34.0))
    found = verdict("step_ms", a, b)
    assert found.verdict == "INCONCLUSIVE"
    assert found.more_rounds is not None
    assert found.more_rounds > 5
    enough = [one | {"rounds": 5 + found.more_rounds} for one in (a, b)]
    assert verdict("step_ms", *enough).verdict == "PASS"


def test_acceptance_by_place_is_held_against_the_control() -> None:
    a, b = row(tok_s=70, drafts=5000, accept_pos0=0.456), row(tok_s=70, drafts=5000, accept_pos0=0.08)
    assert verdict("accept_pos0", a, b).verdict == "FAIL"
    assert verdict("accept_pos0", a, a).verdict == "PASS"


def test_slower_than_without_drafts_is_seen() -> None:
    assert verdict("tok_s", row(tok_s=70), row(tok_s=0.65 * 70)).verdict == "FAIL"


@pytest.mark.parametrize(
    "other",
    [row(tok_s=None, step_ms=None, status="CLIENT-LIMITED"), row(tok_s=70, rounds=1), row(tok_s=70, concurrency=4)],
)
def test_a_missing_number_is_never_a_pass(other: dict[str, Any]) -> None:
    assert {one.verdict for one in compare_speed([row(tok_s=70)], [other])} == {"INCONCLUSIVE"}


def test_different_questions_are_not_compared() -> None:
    with pytest.raises(DeployError) as caught:
        compare_speed([row(tok_s=70, spec="a")], [row(tok_s=70, spec="b")])
    assert caught.value.code == ExitCode.USAGE


def test_prefill_is_compared_by_length() -> None:
    a, b = (
        {"test": "prefill", "target_tokens": 8192, "rounds": 3, "concurrency": 1, "tok_s": value}
        for value in (5000, 4000)
    )
    assert verdict("tok_s, prefill 8192", a, b).verdict == "FAIL"


def test_few_metrics_decide_and_the_others_are_told() -> None:
    rows = [row(concurrency=level, tok_s=70, step_ms=33, ttft_ms_p50=100) for level in (1, 4, 16)]
    rows.append({"test": "prefill", "target_tokens": 8192, "rounds": 3, "concurrency": 1, "tok_s": 5000})
    gates = {one.metric for one in compare_speed(rows, rows) if one.role == "gate"}
    assert gates == {"step_ms, narrative c1", "tok_s, narrative c1", "tok_s, narrative c16"}


def test_acceptance_passes_by_its_value_and_fails_only_for_sure() -> None:
    control = row(tok_s=70, drafts=400, accept_pos0=0.7)
    for candidate, wanted in ((0.67, "PASS"), (0.66, "INCONCLUSIVE"), (0.4, "FAIL")):
        assert verdict("accept_pos0", control, control | {"accept_pos0": candidate}).verdict == wanted


def test_a_margin_is_no_narrower_than_the_scatter_that_the_host_declares() -> None:
    a, b = row(step_ms=30.0, tok_s=33.0), row(step_ms=40.0, tok_s=25.0)
    narrow, wide = compare_speed([a], [b]), compare_speed([a], [b], 0.5)
    assert {one.verdict for one in narrow} == {"FAIL"}
    assert {one.verdict for one in wide} == {"PASS"}
    assert {one.verdict for one in compare_speed([a], [row(step_ms=90.0, tok_s=11.0)], 0.5)} == {"FAIL"}


def test_scatter_is_as_wide_for_a_time_as_for_its_rate() -> None:
    """Half the rate is twice the time."""
    a = row(step_ms=30.0, tok_s=33.0)
    for step_ms, wanted in ((55.0, "PASS"), (66.0, "FAIL")):
        b = row(step_ms=step_ms, tok_s=990.0 / step_ms)
        assert {one.verdict for one in compare_speed([a], [b], 0.5)} == {wanted}, step_ms


def test_scatter_does_not_excuse_lost_acceptance() -> None:
    a, b = row(tok_s=70, accept_len=2.8), row(tok_s=70, accept_len=2.0)
    assert [one.verdict for one in compare_speed([a], [b], 0.9) if one.metric.startswith("accept_len")] == ["FAIL"]


def test_a_layout_may_ask_less_of_a_slow_host() -> None:
    settings = SpeedSettings(streams=(1, 4), rounds=2, max_tokens=64, scatter=0.5)
    plan = as_declared(default(), settings)
    assert (plan.concurrencies, plan.rounds, plan.max_tokens, plan.settle_share) == ((1, 4), 2, 64, 0.5)
    assert as_declared(default(), SpeedSettings()) == default()
