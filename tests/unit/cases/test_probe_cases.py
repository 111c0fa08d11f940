"""Every known situation of a running server has its right outcome: what it answered in, verdict out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.connect.http import Reply
from shardwright.probes import classify
from shardwright.probes.degen.report import report_from
from shardwright.probes.edges import topk_warning
from shardwright.probes.report import Judged
from shardwright.probes.speed.compare import compare_speed
from shardwright.runtime.doctor import diagnose
from shardwright.runtime.readiness import Verdict, look

CASES = {case["id"]: case for case in json.loads((Path(__file__).parent / "probe_cases.json").read_text("utf-8"))}


def server(name: str) -> dict[str, Any]:
    return CASES[name]["input"]["server"]


def number(name: str) -> dict[str, Any]:
    return CASES[name]["expected"]["number"]


def line(**fields: Any) -> Judged:
    """A stored line, through its JSON as it stands on file."""
    return classify(json.dumps(fields))


def decode_row(**values: Any) -> dict[str, Any]:
    return {"test": "decode", "prompt": "code", "sampler": "greedy", "concurrency": 1, "max_tokens": 256} | values


def c19_doubled_words_and_little_acceptance() -> None:
    judged = classify(server("C19"))
    assert (judged.outcome, judged.verdict) == ("GARBAGE", "FAIL")
    assert "can can" in judged.detail
    control, candidate = (
        decode_row(rounds=5, drafts=2000, accept_pos0=rate, tok_s=50.0)
        for rate in (server("C19")["accept_rate_tp2_control"], server("C19")["accept_rate"])
    )
    found = {one.metric.partition(",")[0]: one for one in compare_speed([control], [candidate])}
    assert (found["accept_pos0"].verdict, found["accept_pos0"].change) == ("FAIL", "WORSE")


def c26_a_draft_head_that_emits_noise() -> None:
    from shardwright.probes.speed.floors import FIRST_DRAFT_FLOOR

    assert FIRST_DRAFT_FLOOR == number("C26")["floor"] > server("C26")["pos0_acceptance"]
    rows = [decode_row(rounds=5, tok_s=tok_s, tok_s_cv=0.01) for tok_s in (100, 100 * server("C26")["speed_vs_nospec"])]
    assert {one.verdict for one in compare_speed([rows[0]], [rows[1]])} == {"FAIL"}


def c37_prompts_that_no_indexer_fault_reaches() -> None:
    given = CASES["C37"]["input"]
    warning = topk_warning("needle", [given["probe"]["prompt_tokens"]], given["model"]["index_topk"])
    assert warning is not None
    assert "needle prompt 1024 <= index_topk 2048" in warning
    assert "cannot detect indexer faults" in warning
    assert str(number("C37")["min_tokens"]) in warning
    assert topk_warning("needle", [1024, number("C37")["min_tokens"]], given["model"]["index_topk"]) is None


def c91_no_runtime_for_the_gpus() -> None:
    log = CASES["C91"]["input"]["log"]
    for text in (log, log.replace('""', '"nvidia"'), log.replace("[[gpu]]", "[[compute utility]]")):
        (found,) = diagnose([text])
        assert "NVIDIA Container Toolkit" in found.cause + found.fix


def c98_http_200_while_requests_hang() -> None:
    given = server("C98")

    class Hangs:
        health = given["/health"]

        def get(self, url: str, timeout_s: float) -> Reply:
            if url.endswith("/health"):
                return Reply("answered", self.health)
            return Reply("answered", given["/v1/models"], {"data": [{"id": "m"}]})

        def post(self, url: str, payload: Any, timeout_s: float) -> Reply:
            return Reply(given["/v1/completions"])

    assert look(Hangs(), "http://host", "m").verdict is Verdict.NO_TOKEN_YET
    dead = Hangs()
    dead.health = 503
    assert look(dead, "http://host", "m").verdict is Verdict.DEAD


def c100_one_token_for_ever() -> None:
    assert classify(server("C100")).verdict == "FAIL"
    for text, outcome in (("lock " * 800, "LOOP_EXACT"), ("好的" * 500, "LOOP_EXACT"), ("!" * 800, "GARBAGE")):
        judged = line(reply=text, finish_reason="length")
        assert (judged.outcome, judged.verdict) == (outcome, "FAIL")


def c101_a_right_answer_that_loops_in_its_reasoning() -> None:
    given = server("C101")
    assert classify(given).verdict == "FAIL"
    whole = given | {"reasoning": "So it is \\boxed{460}. " + "I'll use \\boxed{460}. " * 200}
    assert classify(whole).outcome == "LOOP_EXACT"
    assert classify({**whole, "reasoning": None, "reasoning_content": whole["reasoning"]}).outcome == "LOOP_EXACT"


def c103_repetition_that_is_asked_for() -> None:
    rows = "id,value\n" + "".join(f"{i},0\n" for i in range(1, 61))
    table = "".join(f"{a} x {b} = {a * b}\n" for a in range(1, 11) for b in range(1, 11))
    code = "".join(f"    self.field_{i} = data['field_{i}']\n" for i in range(60))
    for text in (server("C103")["reply"], rows, table, code, "aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0" * 3):
        assert line(reply=text, finish_reason="stop").verdict == "PASS"


def c104_noise_beside_a_control_that_reads_well() -> None:
    arms = server("C104")

    def arm(kind: str, name: str) -> list[dict[str, Any]]:
        text = "Paris is the capital." if arms[name]["readable"] else "капитал พารี 프랑스 the 京 שלום"
        row = {"kind": kind, "plan": "p", "task": "short", "class": "x", "scripts": ["LATIN", "CJK"], "text": text}
        usage = {"completion_tokens": arms[name]["tokens"]}
        return [row | {"trial": f"short-{i:04d}", "finish_reason": "stop", "usage": usage} for i in range(40)]

    header = {"kind": "plan", "plan": "p", "planned": [f"short-{i:04d}" for i in range(40)], "rule": "any"}
    noisy = report_from([header, *arm("trial", "a"), *arm("control-trial", "b")], "p")
    assert (noisy.verdict, noisy.classes) == ("FAIL", {"GARBAGE": 40})
    assert noisy.numbers["p_value_vs_control"] < 1e-20
    # Neither side is taken for the bad one beforehand.
    assert report_from([header, *arm("trial", "b"), *arm("control-trial", "a")], "p").verdict == "PASS"
    arms["a"]["readable"] = True
    drift = report_from([header, *arm("trial", "a"), *arm("control-trial", "b")], "p").numbers["control"][
        "length_drift"
    ]
    assert drift["ratio"] == pytest.approx(number("C104")["ratio"], abs=0.01)
    assert drift["warn"]


def c106_an_empty_answer_is_no_miss() -> None:
    judged = classify(server("C106"))
    assert (judged.outcome, judged.verdict) == ("EMPTY_BUDGET", "INCONCLUSIVE")
    trial = {"probe": "needle", "expected": "1234567", "decoys": [], "text": "", "finish_reason": "length"}
    judged = line(**trial, reasoning="It must be 1234567, still searching")
    assert (judged.outcome, judged.verdict) == ("EMPTY_BUDGET", "INCONCLUSIVE")


def c107_a_stream_that_drops_calls_without_arguments() -> None:
    judged = classify(server("C107"))
    assert (judged.probe, judged.verdict) == ("quality", "FAIL")
    call = server("C107")["nonstream"]["tool_calls"]
    assert line(
        stream=[{"tool_calls": call}, {"finish_reason": "tool_calls"}], nonstream={"tool_calls": call}
    ).verdict == ("PASS")


def c109_a_tool_call_as_text() -> None:
    judged = classify(server("C109"))
    assert judged.verdict == "FAIL"
    assert "parser" in judged.detail


def c110_another_text_is_no_speed() -> None:
    given, step_ms = server("C110"), number("C110")["step_ms"]
    a, b = (
        decode_row(rounds=given["n"], tok_s=tok_s, tok_s_cv=0.01, step_ms=step, step_ms_cv=0.005)
        for tok_s, step in zip((given["a"], given["b"]), step_ms, strict=True)
    )
    found = {one.metric.partition(",")[0]: one for one in compare_speed([a], [b])}
    assert (found["tok_s"].change, found["tok_s"].verdict) == ("EQUAL", "PASS")
    assert found["step_ms"].ratio == pytest.approx(33.70 / 34.15)
    assert found["step_ms"].verdict == "PASS"


TESTS: dict[str, Callable[[], None]] = {
    name.partition("_")[0].upper(): test
    for name, test in list(globals().items())
    if name[:1] == "c" and name[1].isdigit()
}


@pytest.mark.parametrize("name", CASES)
def test_a_known_situation_has_its_right_outcome(name: str) -> None:
    TESTS[name]()


def test_no_case_is_lost() -> None:
    assert set(TESTS) == set(CASES)
    assert len(CASES) == 13
