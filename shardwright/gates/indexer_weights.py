"""`indexer-weights`: an override of the index-sharing schedule asks only for indexers that the checkpoint carries."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from shardwright.facts.facts import Facts
from shardwright.facts.model import IndexRule, ModelFacts
from shardwright.facts.versions import version_in
from shardwright.gates.finding import Finding
from shardwright.gates.options import whole_number
from shardwright.plan.index_sharing import full_layers
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "indexer-weights"


def check_indexer_weights(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    model, shape = facts.model, facts.shape
    if model is None or shape is None or model.index_rule is None:
        return []
    findings = _two_schedules(model, model.index_rule)
    if shape.null_keys:
        text = f"{' and '.join(shape.null_keys)} are null in the config, which reads as absent: no layer is shared"
        why = "builds that do not normalise it end in a TypeError on '% None'"
        findings.append(Finding(GATE, "info", text, why=why, evidence=shape.source))
    if not shape.index_overrides:
        return findings
    asked = f"hf_overrides {' and '.join(shape.index_overrides)}"
    full = full_layers(model.index_rule, model.num_layers)
    if facts.checkpoint is None:
        text = f"{asked} makes {len(full)} layers compute their index; whether they have indexer weights is not known"
        return [*findings, Finding(GATE, "unknown", text, fix="run where model.path exists, or drop the override")]
    carried = _indexer_layers(facts.checkpoint.tensors)
    missing = [layer for layer in full if layer not in carried]
    if missing:
        shown = ",".join(str(layer) for layer in missing[:8]) + (",..." if len(missing) > 8 else "")
        silent = "a quantised model runs them on uninitialised memory without an error"
        return [
            *findings,
            Finding(
                GATE,
                "reject",
                f"{asked} makes layers {shown} compute, but the checkpoint has no indexer weights for them",
                why=silent if model.quantized else "the engine stops: weights were not initialized from checkpoint",
                fix="drop the override",
                evidence=facts.checkpoint.source,
            ),
        ]
    extra = carried.intersection(range(model.num_layers)).difference(full)
    if extra and deployment.platform == "cuda" and version_in(deployment.engine.vllm, ">=0.30"):
        text = f"{asked} shares layers for which the checkpoint carries indexer weights ({len(extra)} of them)"
        why = "from 0.30 on CUDA the loader does not drop them and should end in a KeyError (read, not run)"
        findings.append(Finding(GATE, "warn", text, why=why, evidence=facts.checkpoint.source))
    return findings


def _two_schedules(model: ModelFacts, rule: IndexRule) -> list[Finding]:
    """The engine's code for GLM and DeepSeek-V3.2 does not read `indexer_types`, which this tool follows first."""
    read = replace(rule, types=None)
    full = full_layers(rule, model.num_layers)
    if rule.types is None or not model.sparse_mla or full == full_layers(read, model.num_layers):
        return []
    other = len(full_layers(read, model.num_layers))
    text = f"indexer_types has {len(full)} full layers, and the keys that the engine reads give {other}"
    why = "the engine goes by index_topk_pattern, else by index_topk_freq and index_skip_topk_offset"
    fix = "serve: {hf_overrides: ...} with keys that say the same as indexer_types"
    silent = read.pattern is None and read.freq == 1
    return [Finding(GATE, "info" if silent else "warn", text, why=why, fix=fix, evidence=model.source)]


def _indexer_layers(tensors: Iterable[str]) -> frozenset[int]:
    """Layers with indexer weights, in one pass over all names."""
    marker = ".self_attn.indexer."
    numbers = (name.partition(marker)[0].rpartition(".")[2] for name in tensors if marker in name)
    return frozenset(layer for number in numbers if (layer := whole_number(number)) is not None)
