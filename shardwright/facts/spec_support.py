"""Which speculative methods work under pipeline parallelism, per engine version: one data table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from shardwright.connect.decode import Section
from shardwright.connect.strict_yaml import load_yaml
from shardwright.errors import UsageError
from shardwright.facts.versions import version_in

Support = Literal["works", "refused", "broken", "unverified"]
"""`refused`: the engine raises. `broken`: it starts, then crashes or is wrong. `unverified`: no guard, never run."""

SUPPORTS = ("works", "refused", "broken", "unverified")
RUNNERS = ("v1", "v2")
TABLE = "configs/engines/spec_pipeline.yaml"


class SpecRule(Struct, frozen=True):
    """One row: for these methods and versions (and model types and runner, where given) under PP > 1."""

    methods: tuple[str, ...]
    versions: str
    support: Support
    why: str
    model_types: tuple[str, ...] | None
    runner: str | None


class SpecTable(Struct, frozen=True):
    rules: tuple[SpecRule, ...]

    def lookup(self, method: str, version: str, model_type: str, runner: str) -> SpecRule | None:
        """The first row that fits; None when the table does not know the method in that version.

        `runner` is `v1` or `v2`; a row with model types fits only those.
        """
        for rule in self.rules:
            if method not in rule.methods or not version_in(version, rule.versions):
                continue
            if rule.model_types is not None and model_type not in rule.model_types:
                continue
            if rule.runner is not None and runner != rule.runner:
                continue
            return rule
        return None

    def methods(self) -> tuple[str, ...]:
        return tuple(sorted({method for rule in self.rules for method in rule.methods}))


def read_spec_table(file: Path) -> SpecTable:
    """Read the shipped table; UsageError with file and line when a row does not read."""
    top = Section(load_yaml(file.read_text(encoding="utf-8", errors="replace"), TABLE))
    top.text("schema")
    table = SpecTable(tuple(_rule(row) for row in top.sections("rules")))
    top.finish()
    return table


def _rule(row: Section) -> SpecRule:
    rule = SpecRule(
        methods=row.texts("methods"),
        versions=row.text("vllm"),
        support=row.choice("support", SUPPORTS),
        why=row.text("why"),
        model_types=row.texts("model_types") if row.has("model_types") else None,
        runner=row.choice("runner", RUNNERS) if row.has("runner") else None,
    )
    row.finish()
    try:
        version_in("0.0", rule.versions)
    except UsageError as error:
        raise row.error("vllm", error.what, fix=error.fix) from None
    return rule
