"""The report in a few lines, for issues and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardwright.campaign.overall import DECLARED_OUT, NOT_ASKED, standing
from shardwright.campaign.probe_table import PROBES
from shardwright.campaign.report.markup import number, percent, sign
from shardwright.campaign.report.stored import StoredRun
from shardwright.campaign.report.summary import WARNINGS, facts_of, reasons_of, subject_of, verdict_of

_SPECIAL = re.compile(r"([\\`*_~$\[\]<>|])")
_LINKS = re.compile(r"([@#])(?=\w)")
_ASIDE = (NOT_ASKED, DECLARED_OUT)


def markdown(run: StoredRun) -> str:
    """Verdict, reasons, what was deployed, and one table: the comparison, or the probes of a run."""
    lines = [f"### {plain(_signed(verdict_of(run)))}: {plain(subject_of(run))}", ""]
    lines += [f"- {plain(reason)}" for reason in reasons_of(run)]
    lines += ["", *(_compared(run.verdict or {}) if run.arms else _probes(run))]
    pool = ((run.plan or {}).get("predicted") or {}).get("pool") or {}
    if pool.get("pool_tokens") is not None:
        tight = f"bottleneck stage {pool['bottleneck_stage']}"
        lines += ["", f"Predicted pool: {number(pool['pool_tokens'])} tokens, {tight}."]
    return "\n".join([*lines, "", *_foot(run)]) + "\n"


def plain(value: object) -> str:
    """Text that stays text in Markdown: on one line, every sign of meaning escaped, no name called, no issue linked."""
    return _LINKS.sub(r"\1<!-- -->", _SPECIAL.sub(r"\\\1", " ".join(str(value).split())))


def _signed(verdict: str) -> str:
    return f"{sign(verdict)} {verdict}"


def _compared(verdict: Mapping[str, Any]) -> Iterator[str]:
    """What decided; what was only reported is folded away."""
    rows: Sequence[Mapping[str, Any]] = verdict.get("rows", ())
    heads = ("metric", "control", "candidate", "verdict", "reason")
    decided = [row for row in rows if row["verdict"]]
    reported = [row for row in rows if not row["verdict"]]
    yield from _table(
        heads, ((row["metric"], *row["cells"], _signed(row["verdict"]), row["reason"]) for row in decided)
    )
    if reported:
        yield from ("", f"<details><summary>only reported: {len(reported)}</summary>", "")
        yield from _table((*heads[:3], heads[4]), ((row["metric"], *row["cells"], row["reason"]) for row in reported))
        yield from ("", "</details>")


def _probes(run: StoredRun) -> Iterator[str]:
    """What was asked as a table, what was not in a line."""
    rows = []
    aside: dict[str, list[str]] = {}
    for name in dict.fromkeys((*(str(report["probe"]) for report in run.reports), *PROBES)):
        report, state = run.report(name) or {}, standing(run.report(name))
        if state in _ASIDE:
            aside.setdefault(state, []).append(name)
            continue
        counted = f"{report['failures']}/{report['trials']}" if report.get("trials") else "–"
        bound = percent(report["upper_bound"]) if report.get("upper_bound") is not None else "–"
        rows.append((name, _signed(state), counted, bound))
    if rows:
        yield from _table(("probe", "verdict", "failures", "at most"), rows, right=(2, 3))
        yield ""
    for state in _ASIDE:
        if state in aside:
            yield f"{state.capitalize()}: {plain(', '.join(aside[state]))}."


def _foot(run: StoredRun) -> Iterator[str]:
    """What was deployed, and which evidence this is."""
    for side, one in run.sides:
        told = "; ".join(f"{name} {value}" for name, value in facts_of(one).items())
        yield f"- {f'{side}: ' if side else ''}{plain(told)}"
    seal = f"sealed {run.seal[:16]}" if run.seal else "not sealed"
    warned = WARNINGS.get(run.state)
    yield f"- evidence: {plain(run.name)}, {seal}" + (f". **{plain(warned)}**" if warned else "")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "|".join("---:" if place in right else "---" for place in range(len(heads))) + "|"
    for row in rows:
        yield "| " + " | ".join(plain(cell) or " " for cell in row) + " |"
