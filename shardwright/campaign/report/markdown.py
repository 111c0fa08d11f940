"""The report in a few lines, for issues and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shardwright.campaign.probe_table import PROBES
from shardwright.campaign.report.answers import standing
from shardwright.campaign.report.markup import number, percent
from shardwright.campaign.report.page import reasons_of, verdict_of
from shardwright.campaign.report.stored import StoredRun

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#@])")


def markdown(run: StoredRun) -> str:
    """Verdict, reasons and one table: the comparison, or the probes of a run."""
    verdict = run.verdict or {}
    lines = [f"**{plain(verdict_of(run))}**: {plain(run.manifest['layout'])} ({plain(run.name)}, {run.state})", ""]
    lines += [f"- {plain(reason)}" for reason in reasons_of(run)]
    lines += ["", *(_compared(verdict) if run.arms else _probes(run))]
    pool = ((run.plan or {}).get("predicted") or {}).get("pool") or {}
    if pool.get("pool_tokens") is not None:
        lines += ["", f"Pool {number(pool['pool_tokens'])} tokens, bottleneck stage {pool['bottleneck_stage']}."]
    return "\n".join(lines) + "\n"


def plain(value: object) -> str:
    """Text that stays text in Markdown: on one line, with every sign of meaning escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(value).split()))


def _compared(verdict: Any) -> Iterator[str]:
    heads = ("metric", "control", "candidate", "verdict", "reason")
    return _table(
        heads, ((row["metric"], *row["cells"], row["verdict"] or "–", row["reason"]) for row in verdict.get("rows", ()))
    )


def _probes(run: StoredRun) -> Iterator[str]:
    rows = []
    for name in dict.fromkeys((*(str(report["probe"]) for report in run.reports), *PROBES)):
        report = run.report(name) or {}
        counted = f"{report['failures']}/{report['trials']}" if report.get("trials") else "–"
        bound = percent(report["upper_bound"]) if report.get("upper_bound") is not None else "–"
        rows.append((name, standing(run.report(name)), counted, bound))
    return _table(("probe", "verdict", "failures", "at most"), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for row in rows:
        yield "| " + " | ".join(plain(cell) or " " for cell in row) + " |"
