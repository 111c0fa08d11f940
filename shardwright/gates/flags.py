"""Flags of the engine against the table of its version: known, full, single, and with a value that it takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable, Flag
from shardwright.facts.facts import Facts
from shardwright.gates.engine import OWNED_FLAGS
from shardwright.gates.finding import Finding
from shardwright.gates.flag_values import bounds_text, dotted_problem, value_problem
from shardwright.gates.options import flag_arguments
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Argument, Deployment

_NEAR = 0.75


def check_flags(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """`engine-flags`: every flag is one of this version, by its full name, once, and with a value that it takes."""
    given = list(flag_arguments(deployment))
    if not given:
        return []
    version = deployment.engine.vllm
    if facts.engine is None or facts.engine.table is None:
        if not any(argument.passthrough for _, _, argument in given):
            return []
        text = f"the flags of vLLM {version} are not known here, so none of them was checked"
        return [Finding("engine-flags", "unknown", text, fix="deploy check --in-image reads them from the engine")]
    table = facts.engine.table
    known, spellings = _spellings(table)
    findings: list[Finding] = []
    seen: dict[str, Argument] = {}
    for name, values, argument in given:
        base = name.partition(".")[0]
        flag = spellings.get(base)
        if flag is None:
            flag, finding = _unknown(base, argument, facts.engine, table.vllm, known, spellings)
            findings.append(finding)
        if flag is None:
            continue
        findings += _value_findings(name, base, values, flag, argument, version)
        # A flag that a layout key decides is the business of owned-flags.
        if flag.name in seen and "." not in name and flag.kind != "append" and flag.name not in OWNED_FLAGS:
            findings.append(_twice(flag, seen[flag.name], argument))
        whole = "." not in name
        if flag.name in seen and whole != ("." not in seen[flag.name].tokens[0].partition("=")[0]):
            findings.append(_whole_and_parts(flag, seen[flag.name], argument))
        seen[flag.name] = argument
    return findings


def with_full_names(deployment: Deployment, facts: Facts) -> Deployment:
    """The deployment with every flag by the name that the engine makes of it: abbreviations in full.

    So that no gate passes over a flag that is only spelled in another way.
    """
    if facts.engine is None or facts.engine.table is None:
        return deployment
    known = {flag.name for flag in facts.engine.table.flags}
    if all(name in known for name, _, _ in flag_arguments(deployment)):
        return deployment
    _, spellings = _spellings(facts.engine.table)
    full = tuple(_in_full(argument, spellings) for argument in deployment.engine_args)
    return replace(deployment, engine_args=full)


def _in_full(argument: Argument, spellings: Mapping[str, Flag]) -> Argument:
    name, equals, value = argument.tokens[0].partition("=")
    base, dot, key = name.partition(".")
    meant = [full for full in spellings if full.startswith(base)]
    if base in spellings or not base.startswith("--") or len({spellings[full].name for full in meant}) != 1:
        return argument
    return replace(argument, tokens=(f"{meant[0]}{dot}{key}{equals}{value}", *argument.tokens[1:]))


def _spellings(table: EngineTable) -> tuple[dict[str, Flag], dict[str, Flag]]:
    """Flags by name, and by every spelling that the engine takes in full: aliases and the negative form."""
    known = {flag.name: flag for flag in table.flags}
    spellings: dict[str, Flag] = {}
    for flag in table.flags:
        for name in (flag.name, *flag.aliases):
            spellings[name] = flag
            if flag.kind == "bool" and name.startswith("--"):
                spellings["--no-" + name.removeprefix("--")] = flag
    return known, spellings


def _unknown(
    name: str,
    argument: Argument,
    engine: EngineFacts,
    version: str,
    known: Mapping[str, Flag],
    spellings: Mapping[str, Flag],
) -> tuple[Flag | None, Finding]:
    """What an unknown spelling is: an abbreviation of one flag (which is judged on), or nothing that can start."""
    matches = {spellings[full].name: spellings[full] for full in spellings if full.startswith(name)}
    if len(matches) == 1 and name.startswith("--"):
        (flag,) = matches.values()
        owner = OWNED_FLAGS.get(flag.name)
        text = f"{name} is short for {flag.name} ({argument.origin})"
        if owner is not None:
            why = f"{owner} decides it, and the engine keeps the last of two values"
            return flag, Finding("engine-flags", "reject", text, why=why, fix=f"remove it and set {owner}")
        why = "the engine takes it as long as no other flag begins like that; the next version may have one"
        return flag, Finding("engine-flags", "warn", text, why=why, fix=f"write {_key(flag.name)}")
    if len(matches) > 1:
        text = f"{name} is short for several flags: {', '.join(sorted(matches))} ({argument.origin})"
        return None, Finding("engine-flags", "reject", text, why="the engine stops on it", fix="write one in full")
    retired = engine.retired.flags.get(name)
    if retired is not None:
        text = f"vLLM {version} has no {name} any more ({argument.origin})"
        why = "the engine stops with 'unrecognized arguments'"
        return None, Finding("engine-flags", "reject", text, why=why, fix=retired)
    positive = "--" + name.removeprefix("--no-")
    if positive in known:
        text = f"{positive} has no negative form in vLLM {version} ({argument.origin})"
        return None, Finding("engine-flags", "reject", text, fix=f"remove {_key(positive)}: false")
    return None, Finding(
        "engine-flags",
        "reject",
        f"vLLM {version} has no flag {name}{_history(name, engine, version)} ({argument.origin})",
        why="the engine stops with 'unrecognized arguments'",
        fix=_suggestion(name, known),
    )


def _history(name: str, engine: EngineFacts, here: str) -> str:
    """Which versions had the flag, from the other tables."""
    having = [table.vllm for table in engine.others if any(name in (f.name, *f.aliases) for f in table.flags)]
    if not having:
        return ""
    older = [version for version in having if _order(version) < _order(here)]
    if older:
        return f": it was removed or renamed after {older[-1]}"
    return f": it came with {having[0]}"


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _suggestion(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), cutoff=_NEAR)
    return f"did you mean {_key(near[0])}?" if near else "remove it from serve:"


def _twice(flag: Flag, first: Argument, second: Argument) -> Finding:
    return Finding(
        "engine-flags",
        "reject",
        f"{flag.name} is given twice ({first.origin} and {second.origin})",
        why="the engine silently keeps the last one",
        fix="remove one of the two",
    )


def _whole_and_parts(flag: Flag, first: Argument, second: Argument) -> Finding:
    return Finding(
        "engine-flags",
        "reject",
        f"{flag.name} is given whole and by parts ({first.origin} and {second.origin})",
        why="the engine puts the parts last, and they take the place of the whole",
        fix=f"write all of it as the map {_key(flag.name)}",
    )


def _value_findings(
    name: str, base: str, values: tuple[str, ...], flag: Flag, argument: Argument, version: str
) -> list[Finding]:
    findings = []
    if flag.deprecated:
        text = f"{flag.name} is deprecated in vLLM {version} ({argument.origin})"
        findings.append(Finding("engine-flags", "info", text))
    problem = dotted_problem(name, flag) if "." in name else value_problem(base, values, flag)
    if problem:
        text = f"{problem} ({argument.origin})"
        why = "the engine stops on its command line"
        findings.append(Finding("engine-flags", "reject", text, why=why, fix=_value_fix(flag)))
    return findings


def _value_fix(flag: Flag) -> str:
    if flag.kind in ("switch", "bool"):
        return f"write {_key(flag.name)}: true"
    if flag.low is not None or flag.above is not None:
        return f"write {_key(flag.name)} {bounds_text(flag)}"
    return f"correct {_key(flag.name)} in serve:"


def _key(flag: str) -> str:
    return "serve." + flag.removeprefix("--").replace("-", "_")
