"""`attention-backend`: some backend takes the cards, the KV dtype and the block size together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwright.facts.attention_backends import LATENT_FORMATS, SPARSE_BACKENDS, SparseBackend
from shardwright.facts.facts import Facts
from shardwright.facts.versions import version_in
from shardwright.gates.capabilities import capabilities_of, major_of
from shardwright.gates.finding import Finding
from shardwright.gates.options import value_of, whole_number
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment
from shardwright.resolve.flags import kv_cache_dtype

GATE = "attention-backend"

_HALF = ("half", "float16")
# The sparse indexer's kernels work on pages of 64 tokens, whatever the attention backend takes.
_SPARSE_BLOCK = 64


def check_attention_backend(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    if deployment.platform != "cuda" or deployment.engine.command is not None:
        return []
    findings = [*_named_backend(deployment, facts), *_latent_dtype(deployment, facts)]
    if facts.model is not None and facts.model.sparse_mla:
        findings += _block_size(deployment)
        findings += _sparse_backend(deployment, facts, facts.model.architecture)
    return findings


def _named_backend(deployment: Deployment, facts: Facts) -> list[Finding]:
    """A backend that the layout names is one of the engine's or of the image's."""
    name = asked_backend(deployment)
    table = facts.engine.table if facts.engine else None
    if name is None or table is None or not table.attention_backends:
        return []
    known = {*table.attention_backends, *deployment.engine.provides.attention_backends, "AUTO"}
    if name in known:
        return []
    from difflib import get_close_matches

    near = get_close_matches(name, sorted(known))
    declare = f"engine.provides: {{attention_backends: [{name}]}} where the image brings it"
    return [
        Finding(
            GATE,
            "reject",
            f"vLLM {table.vllm} has no attention backend {name}",
            why="the engine stops on the command line",
            fix=f"did you mean {near[0]}? Or {declare}" if near else declare,
        )
    ]


def asked_backend(deployment: Deployment) -> str | None:
    """The attention backend that the layout names, in capitals; None where it names none."""
    name = value_of(deployment, "--attention-backend") or value_of(deployment, "--attention-config.backend")
    return name.upper() if name else None


def _latent_dtype(deployment: Deployment, facts: Facts) -> list[Finding]:
    dtype, _ = kv_cache_dtype(deployment, facts)
    if dtype not in LATENT_FORMATS:
        return []
    if facts.shape is not None and not facts.shape.mla and facts.shape.kv_heads:
        text = f"{dtype} is a layout of latent (MLA) caches, and {facts.shape.architecture or 'the model'} has none"
        return [Finding(GATE, "reject", text, fix="write serve: {kv_cache_dtype: auto} or fp8")]
    capabilities, source = capabilities_of(deployment, facts)
    old = [text for text in capabilities if not _provided(deployment, text) and major_of(text) != 10]
    if dtype == "nvfp4_ds_mla" and old:
        text = f"nvfp4_ds_mla needs compute capability 10.x, and {source} have {', '.join(old)}"
        return [Finding(GATE, "reject", text, fix="write serve: {kv_cache_dtype: fp8_ds_mla}")]
    return []


def _block_size(deployment: Deployment) -> list[Finding]:
    text = value_of(deployment, "--block-size")
    size = whole_number(text)
    if size is None or (size and size % _SPARSE_BLOCK == 0):
        return []
    return [
        Finding(
            GATE,
            "reject",
            f"block size {text} is not a multiple of {_SPARSE_BLOCK}",
            why="sparse-attention kernels read pages of 64 tokens; the engine stops with 'block_size not supported'",
            fix="leave serve.block_size out; a larger one gives no more KV cache",
        )
    ]


def _sparse_backend(deployment: Deployment, facts: Facts, architecture: str) -> list[Finding]:
    capabilities, source = capabilities_of(deployment, facts)
    if not capabilities:
        return [Finding(GATE, "unknown", "the compute capability of the cards is not known", fix="set hardware:")]
    version = deployment.engine.vllm
    if not any(version_in(version, backend.versions) for backend in SPARSE_BACKENDS):
        if all(_provided(deployment, capability) for capability in capabilities):
            return []
        text = f"the sparse-MLA backends of vLLM {version} are not known"
        return [Finding(GATE, "unknown", text, evidence=source)]
    asked = asked_backend(deployment)
    findings = []
    for capability in capabilities:
        if _provided(deployment, capability) and asked in (
            None,
            "AUTO",
            *deployment.engine.provides.attention_backends,
        ):
            continue
        fitting = _on_capability(version, capability, asked)
        dtype, decider = kv_cache_dtype(deployment, facts)
        if not fitting:
            findings.append(_none_fits(deployment, architecture, capability, source, asked))
        elif not any(dtype in backend.dtypes for backend in fitting):
            findings.append(_no_dtype(capability, dtype, decider, fitting))
        else:
            taking = [backend for backend in fitting if dtype in backend.dtypes]
            findings += _no_setting(deployment, facts, capability, taking)
    return findings


def _no_setting(
    deployment: Deployment, facts: Facts, capability: str, fitting: Sequence[SparseBackend]
) -> list[Finding]:
    """The first further setting that none of the backends takes which take cards and KV dtype."""
    topk, where = facts.model.index_topk if facts.model else None, f"on compute capability {capability}"
    names = ", ".join(sorted({backend.name for backend in fitting}))
    if not any(backend.topk in (None, topk) for backend in fitting):
        text = f"{names} {where} takes index_topk 2048 only, and the model has {topk}"
        return [Finding(GATE, "reject", text, why="the engine stops with 'requires index_topk=2048'")]
    fitting = [backend for backend in fitting if backend.topk in (None, topk)]
    if value_of(deployment, "--dtype") in _HALF:
        fitting = [backend for backend in fitting if backend.half]
        if not fitting:
            text = f"{names} {where} computes in bfloat16 only, and dtype asks for float16"
            fix = "leave serve.dtype out"
            return [Finding(GATE, "reject", text, why="the engine stops with 'dtype not supported'", fix=fix)]
    decode, version = whole_number(value_of(deployment, "--decode-context-parallel-size")), deployment.engine.vllm
    if (
        decode is not None
        and decode > 1
        and not any(b.decode_context and version_in(version, b.decode_context) for b in fitting)
    ):
        text = f"no sparse-MLA backend of vLLM {version} {where} takes DCP={decode} with these settings"
        why = "it returns no log-sum-exp of the softmax, without which the parts of a context cannot be joined"
        return [Finding(GATE, "reject", text, why=why, fix="decode_context_parallel_size: 1, or PP for capacity")]
    return []


def _provided(deployment: Deployment, capability: str) -> bool:
    provides = deployment.engine.provides
    return bool(provides.attention_backends) and capability in provides.compute_capability


def _on_capability(version: str, capability: str, asked: str | None) -> tuple[SparseBackend, ...]:
    return tuple(
        backend
        for backend in SPARSE_BACKENDS
        if version_in(version, backend.versions)
        and major_of(capability) in backend.majors
        and asked in (None, "AUTO", backend.name)
    )


def _none_fits(deployment: Deployment, architecture: str, capability: str, source: str, asked: str | None) -> Finding:
    image = deployment.engine.image or "this engine"
    version = deployment.engine.vllm
    stock = _on_capability(version, capability, None)
    if asked is not None and stock:
        text = f"{asked} does not run on compute capability {capability}, as {architecture} needs it"
        if asked not in {backend.name for backend in SPARSE_BACKENDS}:
            text = f"{asked} does not serve {architecture}, which needs sparse attention"
        names = ", ".join(sorted({backend.name for backend in stock}))
        return Finding(GATE, "reject", text, fix=f"leave attention_backend out, or use {names}", evidence=source)
    return Finding(
        GATE,
        "reject",
        f"{image} has no sparse-MLA attention backend for compute capability {capability}, which {architecture} needs",
        why=f"stock vLLM {version} has them for majors 9, 10 and 12 only and stops with "
        "'No valid attention backend found'",
        fix="use an image that brings one and declare it: engine.provides: {attention_backends: [TRITON_MLA_SPARSE], "
        f'compute_capability: ["{capability}"]}}',
        evidence=source,
    )


def _no_dtype(capability: str, dtype: str, decider: str, fitting: Iterable[SparseBackend]) -> Finding:
    offers = "; ".join(f"{backend.name}: {', '.join(sorted(backend.dtypes))}" for backend in fitting)
    return Finding(
        GATE,
        "reject",
        f"no sparse-MLA backend for compute capability {capability} takes KV dtype {dtype} ({decider})",
        why=f"the engine stops with 'kv_cache_dtype not supported'; it has {offers}",
        fix="choose one of these in serve.kv_cache_dtype",
    )
