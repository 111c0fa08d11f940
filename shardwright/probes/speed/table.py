"""Rows of the speed probe, and of other tools beside them, as a table that can be pasted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEAD = ("test", "tok/s", "CV %", "step ms", "accept", "TTFT ms", "p95", "ITL ms", "p95", "bunched %")


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each test; a number that nobody may trust is a dash, and the test says why."""
    lines = [_line(_HEAD), _line(["---"] + ["---:"] * (len(_HEAD) - 1))]
    return "\n".join(lines + [_line(_cells(row)) for row in rows])


def test_name(row: Mapping[str, Any]) -> str:
    """What a row measures, as benchmark tables name it: tg tokens generated, pp tokens of prompt, c streams."""
    if row["test"] == "prefill":
        level = f" (c{row['concurrency']})" if row["concurrency"] > 1 else ""
        name = f"pp{row['target_tokens']}{level}"
    else:
        sampler = "" if row["sampler"] in (None, "greedy") else f" {row['sampler']}"
        name = f"tg{row['max_tokens']} {row['prompt']}{sampler} (c{row['concurrency']})"
    tool = f" by {row['tool']}" if row.get("tool") else ""
    return f"{name}{tool}" if row["status"] == "OK" else f"{name}{tool} {row['status']}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        test_name(row),
        _number(row["tok_s"], 1),
        _number(row.get("tok_s_cv"), 1, 100),
        _number(row.get("step_ms"), 2),
        _number(row.get("accept_len"), 2),
        _number(row.get("ttft_ms_p50"), 1),
        _number(row.get("ttft_ms_p95"), 1),
        _number(row.get("itl_ms_p50"), 2),
        _number(row.get("itl_ms_p95"), 2),
        _number(row.get("bunched"), 1, 100),
    ]


def _number(value: Any, digits: int, factor: float = 1.0) -> str:
    return "–" if value is None else f"{value * factor:.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
