"""The arithmetic of the speed probe on rounds with known times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardwright.probes.speed.floors import below_floors
from shardwright.probes.speed.report import report_from, rows_of
from shardwright.probes.speed.round import is_speculative, judge_trial, measure, settled

COUNTERS = {"requests": 1, "generation_tokens": None, "drafts": None, "accepted": None, "per_pos": [], "hits": 0}


def stream(step_s: float, steps: int, tokens: int = 1, sent_s: float = 0.0, ttft_s: float = 0.1) -> dict[str, Any]:
    """One token at `ttft_s`, then `tokens` a step."""
    events = [[ttft_s, 1]] + [[ttft_s + step_s * n, tokens] for n in range(1, steps + 1)]
    return {
        "sent_s": sent_s,
        "first_byte_s": 0.05,
        "ttft_s": ttft_s,
        "events": events,
        "prompt_tokens": 20,
        "completion_tokens": 1 + steps * tokens,
    }


def decode(
    streams: list[dict[str, Any]], prompt: str = "narrative", number: int = 0, **counters: Any
) -> dict[str, Any]:
    made = sum(one["completion_tokens"] for one in streams)
    return {
        "kind": "trial",
        "plan": "p",
        "trial": f"decode/{prompt}/greedy/c{len(streams)}/r{number}",
        "class": "OK",
        "test": "decode",
        "prompt": prompt,
        "sampler": "greedy",
        "concurrency": len(streams),
        "max_tokens": streams[0]["completion_tokens"],
        "warm_up": {"steps_ms": [10, 10, 10], "settled": True},
        "streams": streams,
        "asked": len(streams),
        "made": made,
        "spec": "s",
        "metrics": COUNTERS | {"requests": len(streams), "generation_tokens": made} | counters,
    }


def drafted(prompt: str = "narrative", first: float = 0.8, number: int = 0, drafts: int = 40) -> dict[str, Any]:
    """A round of 40 steps that bring 3 tokens each."""
    return decode(
        [stream(0.02, 40, tokens=3)],
        prompt,
        number,
        drafts=drafts,
        accepted=2 * drafts,
        per_pos=[first * drafts, 0.5 * drafts],
    )


def prefill(hits: int = 0, ttft_s: float = 1.1) -> dict[str, Any]:
    return {
        "kind": "trial",
        "trial": "prefill/n1000/r0",
        "class": "OK",
        "test": "prefill",
        "concurrency": 1,
        "target_tokens": 1000,
        "prompt_tokens": 1000,
        "ttft_s": ttft_s,
        "short_ttft_s": 0.1,
        "asked": 1,
        "made": 1,
        "metrics": COUNTERS | {"generation_tokens": 1, "hits": hits},
    }


def report(*trials: dict[str, Any]) -> Any:
    header = {"kind": "plan", "plan": "p", "spec": "s", "trials": [trial["trial"] for trial in trials]}
    return report_from([header, *({**trial, "plan": "p"} for trial in trials)], "p")


def test_a_single_stream_gives_its_step_and_rate() -> None:
    one = measure(decode([stream(0.02, 50)]))
    assert one.step_ms == pytest.approx(20)
    assert one.tok_s == pytest.approx(50)
    assert one.ttft_ms == (100.0,)
    assert not one.speculative


def test_with_drafts_the_rate_is_acceptance_over_step_time() -> None:
    one = measure(drafted())
    assert one.step_ms == pytest.approx(20)
    assert one.accept_len == pytest.approx(3)
    assert one.tok_s == pytest.approx(1000 * 3 / 20)
    assert one.accept_rates == pytest.approx((0.8, 0.5))


def test_events_of_several_tokens_without_drafts_are_several_steps() -> None:
    one = measure(decode([stream(0.06, 20, tokens=3)]))
    assert one.step_ms == pytest.approx(20)


def test_without_counters_events_of_several_tokens_count_as_speculation() -> None:
    record = decode([stream(0.02, 20, tokens=3)])
    record["metrics"] = None
    assert is_speculative(record)
    assert judge_trial(record).outcome == "OK"


def test_tokens_before_all_streams_are_active_do_not_count() -> None:
    # The second stream joins when the first has half of its tokens behind it.
    record = decode([stream(0.02, 100), stream(0.02, 100, sent_s=1.0)])
    one = measure(record)
    assert one.window_s == pytest.approx(1.0)
    assert one.tok_s == pytest.approx(100)


def test_streams_that_never_run_together_are_not_measured() -> None:
    record = decode([stream(0.02, 10), stream(0.02, 10, sent_s=5.0)])
    assert judge_trial(record).outcome == "NO_OVERLAP"


def test_foreign_requests_and_tokens_are_seen() -> None:
    for counters in ({"requests": 2}, {"generation_tokens": 99}):
        assert judge_trial(decode([stream(0.02, 50)], **counters)).outcome == "CONTAMINATED"


def test_step_counts_that_disagree_are_a_fault_of_the_harness() -> None:
    assert judge_trial(drafted(drafts=41)).outcome == "OK"
    assert judge_trial(drafted(drafts=45)).outcome == "STEPS_DISAGREE"
    assert report(drafted(drafts=45)).verdict == "FAULT"


def test_answers_of_another_length_are_not_compared() -> None:
    record = decode([stream(0.02, 50)])
    record["max_tokens"] = 256
    assert judge_trial(record).outcome == "SHORT"
    assert report(record).verdict == "INCONCLUSIVE"


def test_prefill_is_the_prompt_over_its_own_time() -> None:
    (row,) = rows_of([prefill()])
    assert row["tok_s"] == pytest.approx(1000)


def test_a_cold_prompt_from_the_cache_is_no_prefill() -> None:
    assert judge_trial(prefill(hits=16)).outcome == "CACHE_HIT"
    assert judge_trial(prefill(ttft_s=0.09)).outcome == "TOO_FAST"


def test_bunched_events_give_no_gaps_and_no_pass() -> None:
    bunched = stream(0.02, 80)
    for n in range(0, 80, 4):
        for event in bunched["events"][n : n + 4]:
            event[0] = bunched["events"][min(n + 3, 80)][0]
    (row,) = rows_of([decode([bunched])])
    assert row["bunched"] > 0.5
    assert (row["itl_ms_p50"], row["itl_ms_n"]) == (None, 0)
    assert row["tok_s"] is not None
    assert report(decode([bunched])).verdict == "INCONCLUSIVE"


def test_a_few_bunched_events_cost_the_gaps_and_nothing_else() -> None:
    record = decode([stream(0.02, 60)])
    for n in range(5, 60, 10):
        record["streams"][0]["events"][n][0] = record["streams"][0]["events"][n + 1][0] - 0.001
    (row,) = rows_of([record])
    assert 0.05 < row["bunched"] < 0.25
    assert row["itl_ms_p50"] is None
    found = report(record)
    assert found.verdict == "PASS"
    assert "no ITL" in found.reasons[-1]


def test_a_client_that_cannot_keep_up_gives_no_times() -> None:
    check = {"kind": "trial", "trial": "self-check/c1", "class": "OK", "test": "self-check", "concurrency": 1}
    trials = decode([stream(0.02, 50)]), check | {"gap_error": 0.2, "period_s": 0.02, "events": 50}
    (row,) = rows_of(trials)
    assert row["status"] == "CLIENT-LIMITED"
    assert (row["tok_s"], row["step_ms"], row["ttft_ms_p50"]) == (None, None, None)
    assert report(*trials).verdict == "INCONCLUSIVE"
    assert report(trials[0], check | {"gap_error": 0.01, "period_s": 0.02, "events": 50}).verdict == "PASS"


def test_a_draft_head_that_emits_noise_fails() -> None:
    found = report(drafted(first=0.025), drafted("copy", first=0.025))
    assert (found.verdict, int(found.exit_code)) == ("FAIL", 2)
    (reason,) = found.reasons
    assert reason.startswith("position-0 acceptance is 2.5 % of 40 drafts at best, under the floor of 20 %")
    assert reason.endswith("the draft head is emitting noise")


def test_copied_text_must_be_foreseen() -> None:
    assert report(drafted(), drafted("copy", first=0.7)).verdict == "FAIL"
    assert report(drafted(), drafted("copy", first=0.95)).verdict == "PASS"


def test_a_few_drafts_below_the_floor_decide_nothing() -> None:
    few = drafted("copy", first=0.8, drafts=5) | {"streams": [stream(0.02, 5, tokens=3)], "max_tokens": 16, "made": 16}
    few["metrics"] = few["metrics"] | {"generation_tokens": 16}
    found = report(drafted(), few)
    assert found.verdict == "INCONCLUSIVE"
    assert found.reasons[0].endswith("too few to be sure: about 7 more rounds would decide")
    assert found.more_trials == 7


def test_so_many_more_rounds_do_decide() -> None:
    def row(rounds: int) -> dict[str, Any]:
        common = {"concurrency": 1, "prompt": "copy", "sampler": "greedy"}
        return common | {"accept_pos0": 0.8, "drafts": 20 * rounds, "rounds": rounds}

    (low,) = below_floors([row(1)])
    assert low.more_rounds
    assert [below_floors([row(1 + more)])[0].more_rounds for more in (low.more_rounds - 1, low.more_rounds)] == [1, 0]
    (near,) = below_floors([row(1) | {"accept_pos0": 0.8999}])
    assert near.more_rounds is None
    assert near.open_point.endswith("but too near to it to be sure")


def test_trials_that_a_busy_host_spoiled_are_worth_asking_again() -> None:
    apart = decode([stream(0.01, 20), stream(0.01, 20, sent_s=5)])
    assert (report(apart).verdict, report(apart).more_trials) == ("INCONCLUSIVE", 1)
    short = decode([stream(0.02, 50)], number=1) | {"max_tokens": 256}
    assert (report(short).verdict, report(short).more_trials) == ("INCONCLUSIVE", None)


def test_configured_drafts_that_are_never_made_fail() -> None:
    found = report(decode([stream(0.02, 50)], drafts=0, accepted=0))
    assert found.verdict == "FAIL"
    assert "does not run" in found.reasons[0]


def test_without_metrics_the_traffic_of_others_stays_unknown() -> None:
    record = decode([stream(0.02, 50)])
    record["metrics"] = None
    assert report(record).verdict == "INCONCLUSIVE"


def test_a_warm_up_ends_when_two_medians_agree() -> None:
    assert settled([12.0, 10.0, 10.1], 0.02)
    assert not settled([12.0, 10.0, 10.3], 0.02)
    assert not settled([10.0], 0.02)


def test_a_warm_up_that_never_settled_proves_nothing() -> None:
    record = decode([stream(0.02, 50)]) | {"warm_up": {"steps_ms": [9, 12, 9], "settled": False}}
    found = report(record)
    assert found.verdict == "INCONCLUSIVE"
    assert "did not settle" in found.reasons[0]


def test_a_few_drafts_are_no_noise_yet() -> None:
    few = drafted(first=0.0, drafts=5) | {"streams": [stream(0.02, 5, tokens=3)], "max_tokens": 16, "made": 16}
    few["metrics"] = few["metrics"] | {"generation_tokens": 16}
    assert report(few).verdict == "INCONCLUSIVE"


def columns_of_two_types(rows: list[dict[str, Any]]) -> list[str]:
    """Columns that a data frame would hold as mixed objects; None stands for a missing value of any type."""
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None:
                number = isinstance(value, int | float) and not isinstance(value, bool)
                kinds.setdefault(name, set()).add("number" if number else type(value).__name__)
    return [name for name, found in kinds.items() if len(found) > 1]


def test_a_column_of_texts_and_numbers_is_seen() -> None:
    assert columns_of_two_types([{"a": 1, "b": None}, {"a": "1", "b": 2.0}, {"b": 3}]) == ["a"]


def test_rows_are_flat_and_json() -> None:
    rows = rows_of([drafted(number=n) for n in range(3)] + [prefill()])
    assert [row["test"] for row in rows] == ["decode", "prefill"]
    assert all(value is None or isinstance(value, str | int | float | bool) for row in rows for value in row.values())
    assert columns_of_two_types(rows) == []
    assert rows[0]["accept_pos0"] == pytest.approx(0.8)
    assert (rows[0]["rounds"], rows[0]["step_ms_mad"], rows[0]["step_ms_cv"]) == (3, 0, pytest.approx(0, abs=1e-6))
    json.dumps(rows, allow_nan=False)


def test_a_round_that_is_on_file_twice_counts_once() -> None:
    slow = decode([stream(0.04, 50)])
    (row,) = rows_of([decode([stream(0.02, 50)]), slow])
    assert (row["rounds"], row["step_ms"]) == (1, pytest.approx(20))
