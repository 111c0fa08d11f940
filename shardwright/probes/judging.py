"""The outcome of one stored trial of any probe, from its line alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from shardwright.errors import UsageError
from shardwright.probes.degen.detector import LoopDetector
from shardwright.probes.degen.report import judge_trial as judge_degen
from shardwright.probes.report import Judged, Verdict
from shardwright.probes.units import split_units

_JUDGES = {
    "degen": "degen.report",
    "needle": "needle.judge",
    "quality": "quality.run",
    "repeat": "repeat.report",
    "parity": "parity.report",
    "speed": "speed.round",
}
"""Modules whose `judge_trial` reads the lines of a probe. Of the others the class on file is all there is."""

_PASS = frozenset({"OK", "EXACT", "PASS", "SAME"})
_FAULT = frozenset({"ERROR", "CONTAMINATED", "STEPS_DISAGREE", "CACHE_HIT"})
_INCONCLUSIVE = frozenset({"EMPTY_BUDGET", "BUDGET", "CLIENT_LIMITED", "SHORT", "NO_OVERLAP", "TOO_FAST"})
_SKIP = frozenset({"NOT_APPLICABLE", "SKIP"})

_PHRASE_UNITS = 8


def classify(trial: Mapping[str, Any] | str | bytes) -> Judged:
    """Judge a trial again. `trial` is a record or its JSON line.

    A line that names no probe is taken for an answer to a bounded question: its text under `text`, `content` or
    `reply`, with `reasoning` and `finish_reason`; or for the two ways of one answer, under `stream` and `nonstream`.
    Raises UsageError for anything else.
    """
    record = _read(trial)
    probe = record.get("probe")
    if isinstance(probe, str):
        if probe in _JUDGES:
            outcome = import_module(f"shardwright.probes.{_JUDGES[probe]}").judge_trial(record)
            return _judged(probe, str(outcome.outcome), outcome.detail)
        if isinstance(record.get("class"), str):
            return _judged(probe, record["class"], str(record.get("detail", "")))
    elif "stream" in record and "nonstream" in record:
        return _tool_streams(record)
    elif any(name in record for name in ("text", "content", "reply")):
        return _answer(record)
    raise UsageError("the line is no trial of a probe", why="it names no probe and holds no answer")


def verdict_of(outcome: str) -> Verdict:
    """What a class says about the model or its deployment."""
    if outcome in _PASS:
        return "PASS"
    if outcome in _FAULT:
        return "FAULT"
    if outcome in _INCONCLUSIVE:
        return "INCONCLUSIVE"
    return "SKIP" if outcome in _SKIP else "FAIL"


def _judged(probe: str, outcome: str, detail: str) -> Judged:
    return Judged(probe, outcome, detail, verdict_of(outcome))


def _read(trial: Mapping[str, Any] | str | bytes) -> Mapping[str, Any]:
    if isinstance(trial, Mapping):
        return trial
    try:
        record = json.loads(trial)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise UsageError("the line is no trial of a probe", why="it is no JSON object")
    return record


def _answer(record: Mapping[str, Any]) -> Judged:
    text = next((str(record[name]) for name in ("text", "content", "reply") if record.get(name)), "")
    reasoning = str(record.get("reasoning") or record.get("reasoning_content") or "")
    finish = record.get("finish_reason", "stop")
    found = judge_degen({**record, "text": text, "reasoning": reasoning, "finish_reason": finish})
    if finish == "length" and not text.strip() and reasoning.strip() and found.outcome == "RUNAWAY":
        # Whether the question asked for little is not known here, so a budget that was too small is not excluded,
        # unless the reasoning was going round already.
        if LoopDetector(64, _PHRASE_UNITS, 2).push_all(split_units(reasoning)) is not None:
            return _judged("degen", "LOOP_NEAR", "the reasoning says a phrase twice in a row and never ends")
        return _judged("degen", "EMPTY_BUDGET", "max_tokens went into reasoning; raise it or turn thinking off")
    return _judged("degen", str(found.outcome), found.detail)


def _tool_streams(record: Mapping[str, Any]) -> Judged:
    """Tool calls of one answer, whole and streamed: a parser may lose those without arguments only in one way."""
    whole = _calls([record["nonstream"]])
    streamed = _calls(record["stream"])
    ended = [event.get("finish_reason") for event in record["stream"] if isinstance(event, Mapping)]
    if "tool_calls" in ended and not streamed:
        return _judged("quality", "FAIL", "finish_reason is 'tool_calls', but the stream held no call")
    if whole != streamed:
        return _judged("quality", "FAIL", f"{len(whole)} calls whole and {len(streamed)} streamed are not the same")
    return _judged("quality", "PASS", f"{len(whole)} calls, the same whole and streamed")


def _calls(parts: Any) -> list[tuple[str, str]]:
    found = []
    for part in parts if isinstance(parts, list) else []:
        for call in part.get("tool_calls") or () if isinstance(part, Mapping) else ():
            function = call.get("function", call)
            found.append((str(function.get("name")), str(function.get("arguments"))))
    return found
