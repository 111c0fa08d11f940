"""`attention-backend` for dense attention: one backend takes all that the layout, the model and the cards ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from shardwright.facts.attention_backends import (
    DENSE_BACKENDS,
    KV_FORMATS,
    LATENT_FORMATS,
    SPARSE_BACKENDS,
    AttentionKind,
    DenseBackend,
)
from shardwright.facts.facts import Facts
from shardwright.facts.shape import ModelShape
from shardwright.facts.versions import version_in
from shardwright.gates.attention import GATE, asked_backend
from shardwright.gates.capabilities import capabilities_of
from shardwright.gates.finding import Finding
from shardwright.gates.options import env_of, value_of, whole_number
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment
from shardwright.resolve.flags import kv_cache_dtype

_WORDS: dict[AttentionKind, str] = {"gqa": "plain attention", "mla": "latent (MLA) attention"}
_LATENT_MODELS = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"})
_SINK_MODELS = frozenset({"GptOssForCausalLM"})
_LEAVE_OUT = "leave attention_backend out"


class _Demand(Struct, frozen=True):
    """Something that a backend takes or not, and what the engine says where none does."""

    what: str
    takes: Callable[[DenseBackend], bool]
    why: str
    fix: str


def check_dense_attention(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """Silent on models with sparse, compressed or no attention, and on backends that the image brings."""
    shape, kind, asked = facts.shape, _kind(deployment, facts), asked_backend(deployment)
    rows = [row for row in DENSE_BACKENDS if version_in(deployment.engine.vllm, row.versions)]
    if deployment.platform != "cuda" or deployment.engine.command is not None:
        return []
    if shape is None or kind is None or not rows:
        return []
    brought = deployment.engine.provides
    name = None if asked == "AUTO" else asked
    if name is not None and name in brought.attention_backends:
        return []
    if name is not None and not any(row.name == name for row in rows):
        return _sparse_only(name, shape)
    fitting = [row for row in rows if row.kind == kind and (row.chosen if name is None else row.name == name)]
    if not fitting:
        (other,) = {row.kind for row in rows if row.name == name}
        text = f"{name} serves {_WORDS[other]} only, and {_model(shape)} has {_WORDS[kind]}"
        others = [row for row in rows if row.kind == kind]
        return [_refused(text, "the engine stops with 'is not valid for this configuration'", _others(others))]
    findings = []
    for capability in capabilities_of(deployment, facts)[0] or (None,):
        if name is None and brought.attention_backends and capability in brought.compute_capability:
            continue
        findings += _on_card(capability, fitting, name, list(_demands(deployment, facts, shape, kind)))
    return findings


def _kind(deployment: Deployment, facts: Facts) -> AttentionKind | None:
    model, shape = facts.model, facts.shape
    if model is None or shape is None or model.index_topk is not None or env_of(deployment, "VLLM_MLA_DISABLE"):
        return None
    if shape.mla:
        plain = model.attention is not None and model.attention.kind == "mla"
        return "mla" if plain or model.architecture in _LATENT_MODELS else None
    return "gqa" if shape.heads else None


def _sparse_only(name: str, shape: ModelShape) -> list[Finding]:
    if name not in {backend.name for backend in SPARSE_BACKENDS}:
        return []
    text = f"{name} serves sparse attention only, and {_model(shape)} has none"
    return [_refused(text, "the engine stops with 'non-sparse not supported'", _LEAVE_OUT)]


def _on_card(
    capability: str | None, rows: Sequence[DenseBackend], name: str | None, demands: Sequence[_Demand]
) -> list[Finding]:
    """The first thing that none of the backends takes which take all before it."""
    where = f" on compute capability {capability}" if capability else ""
    fitting = [row for row in rows if capability is None or row.cards.hold(capability)]
    if capability is not None and not fitting:
        kinds = {row.kind for row in rows}
        of_kind = [row for row in DENSE_BACKENDS if row.kind in kinds and row.cards.hold(capability)]
        why = "the engine stops with 'compute capability not supported'"
        return [_refused(f"{name} does not run{where}", why, _others(of_kind))]
    takes = f"{name} takes no" if name else "no attention backend takes"
    for demand in demands:
        left = [row for row in fitting if demand.takes(row)]
        if not left:
            offers = ", ".join(sorted({offer for row in fitting for offer in row.dtypes}))
            least = min(row.block for row in fitting)
            why, fix = demand.why.format(offers=offers), demand.fix.format(least=least)
            return [_refused(f"{takes} {demand.what}{where}", why, fix)]
        fitting = left
    return []


def _demands(deployment: Deployment, facts: Facts, shape: ModelShape, kind: AttentionKind) -> Iterator[_Demand]:
    dtype, decider = kv_cache_dtype(deployment, facts)
    # Latent formats on plain attention are refused by the gate's other half.
    if dtype in KV_FORMATS and (kind == "mla" or dtype not in LATENT_FORMATS):
        yield _Demand(
            f"KV dtype {dtype} ({decider})",
            lambda row: dtype in row.dtypes,
            "the engine stops with 'kv_cache_dtype not supported'; it has {offers}",
            "choose one of these in serve.kv_cache_dtype",
        )
    head_dim = facts.model.attention.head_dim if facts.model and facts.model.attention else 0
    if head_dim:
        why = "the engine stops with 'head_size not supported'"
        yield _Demand(f"head size {head_dim}", lambda row: head_dim in (row.head_sizes or (head_dim,)), why, _LEAVE_OUT)
    size = whole_number(value_of(deployment, "--block-size"))
    # In hybrid models the engine rounds the block size itself.
    if size is not None and not shape.full_attention:
        why = "the engine stops with 'block_size not supported'"
        yield _Demand(
            f"block size {size}", lambda row: size >= row.block and size % row.block == 0, why, "a multiple of {least}"
        )
    if shape.architecture in _SINK_MODELS:
        why = "the engine stops with 'sink not supported'"
        yield _Demand(f"attention sinks (of {_model(shape)})", lambda row: row.sinks, why, _LEAVE_OUT)
    contexts = whole_number(value_of(deployment, "--decode-context-parallel-size"))
    if contexts is not None and contexts > 1:
        why = "without the log-sum-exp of the softmax the parts of a context cannot be joined"
        fix = f"{_LEAVE_OUT}, or decode_context_parallel_size: 1"
        yield _Demand("decode context parallelism", lambda row: row.decode_context, why, fix)


def _others(rows: Sequence[DenseBackend]) -> str:
    return f"{_LEAVE_OUT}, or use {', '.join(sorted({row.name for row in rows}))}"


def _model(shape: ModelShape) -> str:
    return shape.architecture or "the model"


def _refused(message: str, why: str, fix: str) -> Finding:
    return Finding(GATE, "reject", message, why=why, fix=fix)
