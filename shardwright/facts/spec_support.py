"""Which speculative methods work under pipeline parallelism, per engine version: one data table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from shardwright.connect.strict_yaml import load_yaml
from shardwright.errors import DeployError
from shardwright.facts.versions import version_in

Support = Literal["works", "refused", "broken", "unverified"]
"""`refused`: the engine raises. `broken`: it starts, then crashes or is wrong. `unverified`: no guard, never run."""

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
    """Read the shipped table; DeployError when a row does not read."""
    data = load_yaml(file.read_text(encoding="utf-8"), TABLE).data
    return SpecTable(tuple(_rule(row) for row in data["rules"]))


def _rule(row: Mapping[str, Any]) -> SpecRule:
    try:
        model_types = row.get("model_types")
        return SpecRule(
            methods=tuple(row["methods"]),
            versions=row["vllm"],
            support=row["support"],
            why=row["why"],
            model_types=tuple(model_types) if model_types is not None else None,
            runner=row.get("runner"),
        )
    except KeyError as error:
        raise DeployError(f"{TABLE}: a row has no {error}") from None
