"""`indexer-weights`: an override of the index-sharing schedule asks only for indexers that the checkpoint carries."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.facts.facts import Facts
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
    findings = []
    if shape.null_keys:
        text = f"{' and '.join(shape.null_keys)} are null in the config, which reads as absent: no layer is shared"
        why = "builds that do not normalise it end in a TypeError on '% None'"
        findings.append(Finding(GATE, "info", text, why=why, evidence=shape.source))
    if shape.index_freq_override is None:
        return findings
    asked = f"hf_overrides index_topk_freq={shape.index_freq_override}"
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


def _indexer_layers(tensors: Iterable[str]) -> frozenset[int]:
    """Layers with indexer weights, in one pass over all names."""
    marker = ".self_attn.indexer."
    numbers = (name.partition(marker)[0].rpartition(".")[2] for name in tensors if marker in name)
    return frozenset(layer for number in numbers if (layer := whole_number(number)) is not None)
