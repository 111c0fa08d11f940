"""Where the layers lie and what memory that leaves: the partition strip and the bars per stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from shardwright.campaign.report.markup import Markup, absent, bar, join, number, table, tag
from shardwright.campaign.report.stored import StoredRun


def partition(run: StoredRun) -> Markup:
    """Each stage as a box of layers: full, shared or orphan where the model shares indices, else plain."""
    predicted = (run.plan or {}).get("predicted") or {}
    stages = predicted.get("stages") or []
    if not stages:
        return absent("the split is not known", predicted.get("why", "the run wrote no plan"))
    indexed = bool(predicted.get("indexed"))
    tight = (predicted.get("pool") or {}).get("bottleneck_stage")
    boxes = [_stage(stage, indexed, stage["stage"] == tight) for stage in stages]
    borders = [
        tag("div", f"boundary: layer {before['last_layer']} | {after['first_layer']}", class_="boundary")
        for before, after in pairwise(stages)
    ]
    parts = [boxes[0]] + [part for pair in zip(borders, boxes[1:], strict=True) for part in pair]
    return join((*parts, _legend(indexed)))


def _stage(stage: Mapping[str, Any], indexed: bool, tight: bool) -> Markup:
    first, last = stage["first_layer"], stage["last_layer"]
    kinds = [_kind(layer, stage, indexed) for layer in range(first, last + 1)]
    counts = f", {kinds.count('full')} full, {kinds.count('shared')} shared, {kinds.count('orphan')} orphan"
    told = f"stage {stage['stage']}: layers {first} to {last} ({len(kinds)})" + (counts if indexed else "")
    cells = [
        tag("span", _LETTERS[kind], class_=f"layer {kind}", title=f"layer {layer}, {kind}")
        for layer, kind in enumerate(kinds, start=first)
    ]
    named = tag("h4", told, " – bottleneck" if tight else "")
    return tag("div", named, tag("div", *cells, class_="layers"), class_="stage tight" if tight else "stage")


_LETTERS = {"full": "F", "shared": "s", "orphan": "O", "plain": "·"}
_TOLD = {
    "full": "full: computes its own indices",
    "shared": "shared: uses those of a full layer of its stage",
    "orphan": "orphan: its full layer lies on another stage",
    "plain": "a layer; this model shares no indices between layers",
}


def _kind(layer: int, stage: Mapping[str, Any], indexed: bool) -> str:
    if not indexed:
        return "plain"
    if layer in stage["orphans"]:
        return "orphan"
    return "full" if layer in stage["full_layers"] else "shared"


def _legend(indexed: bool) -> Markup:
    kinds = ("full", "shared", "orphan") if indexed else ("plain",)
    items = [tag("div", tag("span", _LETTERS[kind], class_=f"layer {kind}"), _TOLD[kind]) for kind in kinds]
    return tag("div", *items, class_="legend")


def memory(run: StoredRun, among: Sequence[StoredRun]) -> Markup:
    """KV memory per stage, predicted and as the engine logged it, and the stage that bounds the pool.

    `among`: the runs whose bars share one scale.
    """
    plan = run.plan or {}
    predicted = plan.get("predicted") or {}
    pool = predicted.get("pool") or {}
    parts: list[object] = []
    if pool:
        parts.append(_pool_line(pool))
    else:
        parts.append(absent("no prediction", predicted.get("why", "the run wrote no plan")))
    if not plan.get("observed"):
        parts.append(absent("nothing observed", plan.get("why", "the engine's log was not compared")))
    stages = pool.get("stages") or []
    most = max((value for one in among for known in _available(one) for value in known.values()), default=0.0)
    if most:
        parts.append(_bars(*_available(run), most, pool.get("bottleneck_stage"), _observed_bottleneck(run)))
    if stages:
        parts.append(_stage_table(stages))
    if plan.get("differences"):
        parts.append(_differences(plan["differences"]))
    return join(parts)


def _pool_line(pool: Mapping[str, Any]) -> Markup:
    if pool.get("pool_tokens") is None:
        return absent("the pool's size is not predicted", pool.get("unknown", ""))
    most = pool.get("max_concurrency")
    length = pool.get("max_model_len")
    requests = f", {number(most, 2)} requests of {number(length)} tokens" if most is not None else ""
    stage = pool.get("bottleneck_stage")
    told = f"Predicted pool: {number(pool['pool_tokens'])} tokens{requests}; bottleneck: stage {stage}."
    return tag("p", told)


def _available(run: StoredRun) -> tuple[dict[int, float], dict[int, float]]:
    """GiB for the KV cache by stage: predicted, and observed on the tightest card."""
    plan = run.plan or {}
    stages = ((plan.get("predicted") or {}).get("pool") or {}).get("stages") or []
    seen: dict[int, float] = {}
    for rank in (plan.get("observed") or {}).get("ranks") or []:
        seen[rank["stage"]] = min(rank["available_gib"], seen.get(rank["stage"], math.inf))
    return {stage["stage"]: stage["available_gib"] for stage in stages if stage.get("available_gib") is not None}, seen


def _observed_bottleneck(run: StoredRun) -> int | None:
    """The stage whose logged memory holds the fewest tokens, by the predicted bytes of a token."""
    _, seen = _available(run)
    pool = ((run.plan or {}).get("predicted") or {}).get("pool") or {}
    sizes = {stage["stage"]: stage["kv_bytes_per_token"] for stage in pool.get("stages") or []}
    if not sizes or seen.keys() != sizes.keys() or not all(sizes.values()):
        return None
    return min(seen, key=lambda stage: seen[stage] / sizes[stage])


def _bars(
    predicted: Mapping[int, float], seen: Mapping[int, float], most: float, tight: int | None, seen_tight: int | None
) -> Markup:
    rows = []
    for stage in sorted(predicted.keys() | seen.keys()):
        for look, known, bound in (("predicted", predicted, tight), ("observed", seen, seen_tight)):
            if stage in known:
                told = f"{number(known[stage], 2)} GiB" + (" – bottleneck" if stage == bound else "")
                rows.append(bar(f"stage {stage}, {look}", known[stage] / most, told, look))
    return join((tag("h3", "Memory for the KV cache, per card"), *rows))


def _stage_table(stages: Sequence[Mapping[str, Any]]) -> Markup:
    heads = ("stage", "layers", "weights, GiB", "KV memory, GiB", "one request, GiB", "KV bytes/token", "tokens")
    rows = [
        (
            stage["stage"],
            f"{stage['first_layer']}–{stage['last_layer']}",
            number(stage.get("weights_gib"), 2),
            number(stage.get("available_gib"), 2),
            number(stage.get("needed_gib"), 2),
            number(stage.get("kv_bytes_per_token")),
            number(stage.get("tokens")),
        )
        for stage in stages
    ]
    return join((tag("h3", "Predicted, per stage and card"), table(heads, rows, numeric=range(2, 7))))


def _differences(rows: Sequence[Mapping[str, Any]]) -> Markup:
    body = [
        (row["what"], _value(row["predicted"]), _value(row["actual"]), "finding" if row["is_finding"] else "agrees")
        for row in rows
    ]
    heads = ("what", "predicted", "observed", "")
    return join((tag("h3", "Predicted beside observed"), table(heads, body, numeric=(1, 2))))


def _value(value: float | None) -> str:
    return number(value, 0 if value is None or float(value).is_integer() else 2)
