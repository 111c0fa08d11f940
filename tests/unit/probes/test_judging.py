from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from shardwright.errors import UsageError
from shardwright.probes import classify
from shardwright.probes.judging import verdict_of


@pytest.mark.parametrize("text", ["", "[]", "not json", "null", '{"a": 1}', '{"probe": "unknown"}', "[" * 100_000])
def test_what_is_no_trial_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no trial"):
        classify(text)


@pytest.mark.parametrize(
    "record, outcome, verdict",
    [
        ({"probe": "degen", "text": "Paris.", "finish_reason": "stop"}, "OK", "PASS"),
        ({"probe": "degen", "text": "Lyon.", "finish_reason": "stop", "expect": ["Paris"]}, "WRONG", "FAIL"),
        ({"probe": "degen", "text": "word", "finish_reason": "length"}, "RUNAWAY", "FAIL"),
        ({"probe": "degen", "text": "word", "finish_reason": "length", "task": "long"}, "OK", "PASS"),
        ({"probe": "degen", "error": {"kind": "http", "detail": "HTTP 500"}}, "ERROR", "FAULT"),
        ({"probe": "smoke", "trial": "health", "class": "FAIL", "detail": "404"}, "FAIL", "FAIL"),
        ({"probe": "smoke", "trial": "chat", "class": "SKIP", "detail": ""}, "SKIP", "SKIP"),
        ({"probe": "needle", "text": "7654321", "expected": "7654321", "finish_reason": "stop"}, "EXACT", "PASS"),
        ({"probe": "needle", "text": "7654322", "expected": "7654321", "finish_reason": "stop"}, "NEAR", "FAIL"),
        ({"probe": "repeat", "error": {"detail": "gone"}}, "ERROR", "FAULT"),
        ({"probe": "parity", "error": {"detail": "nan", "nan": True}}, "NONFINITE", "FAIL"),
        ({"probe": "quality", "trial": "unknown-check"}, "NOT_APPLICABLE", "SKIP"),
        ({"probe": "speed", "test": "decode", "class": "ERROR", "detail": "gone"}, "ERROR", "FAULT"),
        ({"text": "Paris."}, "OK", "PASS"),
        ({"content": None, "finish_reason": "stop"}, "EMPTY", "FAIL"),
    ],
)
def test_a_line_of_each_probe(record: dict[str, Any], outcome: str, verdict: str) -> None:
    for trial in (record, json.dumps(record), json.dumps(record).encode()):
        judged = classify(trial)
        assert (judged.outcome, judged.verdict) == (outcome, verdict)


def test_a_stream_that_ends_as_tool_calls_without_a_call_has_lost_it_whatever_the_whole_answer_says() -> None:
    assert classify({"stream": [{"finish_reason": "tool_calls"}], "nonstream": {"tool_calls": []}}).verdict == "FAIL"
    assert classify({"stream": [{"finish_reason": "stop"}], "nonstream": {"tool_calls": []}}).verdict == "PASS"


def test_an_unknown_class_is_no_pass() -> None:
    assert verdict_of("SOMETHING_NEW") == "FAIL"


def test_the_package_itself_imports_nothing() -> None:
    code = "import sys, shardwright.probes; print([m for m in sys.modules if m.startswith('shardwright.probes.')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
