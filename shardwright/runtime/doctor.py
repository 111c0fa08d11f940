"""From a dead engine's log to cause, fix and next command. The rules are data: death_messages.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from shardwright.connect.decode import Section
from shardwright.connect.strict_yaml import load_yaml
from shardwright.runtime.loglines import LogLine, parse_line

Kind = Literal["cause", "symptom", "hint"]

KINDS: tuple[Kind, ...] = ("cause", "symptom", "hint")
RULES_FILE = Path(__file__).with_name("death_messages.yaml")
_EVIDENCE_CHARS = 400


@dataclass(frozen=True)
class Rule:
    """One known message. `pattern` is searched in the bare message of a line; `example` is a line it must match.

    `silent`, where there is one, names processes by their tag: the rule holds only if none of them logged an error.
    """

    id: str
    kind: Kind
    pattern: re.Pattern[str]
    silent: re.Pattern[str] | None
    exit_codes: tuple[int, ...]
    cause: str
    fix: str
    command: str
    example: str


@dataclass(frozen=True)
class Diagnosis:
    """One finding: why the engine died (or will misbehave), the line that says so, what to do, and the next command."""

    id: str
    kind: Kind
    cause: str
    evidence_line: str
    fix: str
    command: str


def diagnose(lines: Iterable[str], exit_code: int | None = None) -> list[Diagnosis]:
    """What is known about the messages in a log: causes first, then their echoes, then hints; each in log order.

    `exit_code` as a shell shows it (128 + signal) is evidence too. An empty list means that nothing is known.
    """
    found: dict[str, Diagnosis] = {}
    complained: set[str] = set()
    for raw in lines:
        line = parse_line(raw)
        if not line.message or line.level in ("INFO", "DEBUG"):
            continue
        if line.level in ("ERROR", "CRITICAL") or line.message.startswith("Traceback "):
            complained.add(line.worker)
        for rule in rules():
            if rule.id in found or (line.level == "WARNING") != (rule.kind == "hint"):
                continue
            match = rule.pattern.search(line.message)
            if match:
                found[rule.id] = _diagnosis(rule, match.groupdict(), _evidence(line))
    for rule in rules():
        if exit_code in rule.exit_codes and rule.id not in found:
            found[rule.id] = _diagnosis(rule, {}, f"exit code {exit_code}")
    for rule in rules():
        if rule.silent is not None and any(rule.silent.match(worker) for worker in complained):
            found.pop(rule.id, None)
    return sorted(found.values(), key=lambda diagnosis: KINDS.index(diagnosis.kind))


@lru_cache(maxsize=1)
def rules() -> Sequence[Rule]:
    """All rules, read once."""
    document = load_yaml(RULES_FILE.read_text(encoding="utf-8"), RULES_FILE.name)
    top = Section(document)
    read = tuple(_rule(section) for section in top.sections("rules"))
    top.finish()
    return read


def _rule(section: Section) -> Rule:
    silent = section.optional_text("silent")
    rule = Rule(
        id=section.text("id"),
        kind=section.choice("kind", KINDS, "cause"),
        pattern=re.compile(section.text("match")),
        silent=re.compile(silent) if silent else None,
        exit_codes=tuple(int(code) for code in section.texts("exit_codes")),
        cause=section.text("cause"),
        fix=section.text("fix"),
        command=section.text("command"),
        example=section.text("example"),
    )
    section.finish()
    return rule


def _diagnosis(rule: Rule, groups: Mapping[str, str | None], evidence: str) -> Diagnosis:
    names = dict.fromkeys(rule.pattern.groupindex, "unknown") | {k: v for k, v in groups.items() if v is not None}
    return Diagnosis(
        id=rule.id,
        kind=rule.kind,
        cause=rule.cause.format_map(names),
        evidence_line=evidence,
        fix=rule.fix.format_map(names),
        command=rule.command.format_map(names),
    )


def _evidence(line: LogLine) -> str:
    prefix = f"({line.worker}) " if line.worker else ""
    return (prefix + line.message.strip())[:_EVIDENCE_CHARS]
