"""`attention-backend`: a sparse-MLA model has a backend for the compute capability of the cards."""

from __future__ import annotations

from shardwright.facts.facts import Facts
from shardwright.facts.versions import version_in
from shardwright.gates.finding import Finding
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "attention-backend"

# Major compute capabilities of the stock sparse-MLA backends, vLLM v1/attention/backends (supports_compute_capability).
STOCK_BACKENDS = (
    ("FLASHMLA_SPARSE", ">=0.28,<0.34", (9, 10)),
    ("FLASH_ATTN_MLA_SPARSE", ">=0.28,<0.34", (9,)),
    ("FLASHINFER_MLA_SPARSE", ">=0.28,<0.34", (10,)),
    ("FLASHINFER_MLA_SPARSE_SM120", ">=0.28,<0.34", (12,)),
    ("FLASHINFER_MLA_SPARSE_SM90", ">=0.30,<0.34", (9,)),
)


def check_attention_backend(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    if deployment.platform != "cuda" or facts.model is None or not facts.model.sparse_mla:
        return []
    capabilities, source = _capabilities(deployment, facts)
    if not capabilities:
        return [Finding(GATE, "unknown", "the compute capability of the cards is not known", fix="set hardware:")]
    provides = deployment.engine.provides
    findings = []
    for capability in capabilities:
        if provides.attention_backends and capability in provides.compute_capability:
            continue
        stock = _stock(deployment.engine.vllm, capability)
        if stock is None:
            text = f"the sparse-MLA backends of vLLM {deployment.engine.vllm} are not known"
            findings.append(Finding(GATE, "unknown", text, evidence=source))
        elif not stock:
            findings.append(_none_fits(deployment, facts.model.architecture, capability, source))
    return findings


def _none_fits(deployment: Deployment, architecture: str, capability: str, source: str) -> Finding:
    image = deployment.engine.image or "this engine"
    return Finding(
        GATE,
        "reject",
        f"{image} has no sparse-MLA attention backend for compute capability {capability}, which {architecture} needs",
        why=f"stock vLLM {deployment.engine.vllm} has them for majors 9, 10 and 12 only and stops with "
        "'No valid attention backend found'",
        fix="use an image that brings one and declare it: engine.provides: {attention_backends: [TRITON_MLA_SPARSE], "
        f'compute_capability: ["{capability}"]}}',
        evidence=source,
    )


def _capabilities(deployment: Deployment, facts: Facts) -> tuple[tuple[str, ...], str]:
    if facts.gpus:
        return tuple(sorted({gpu.compute_capability for gpu in facts.gpus})), "the cards of this host"
    if deployment.hardware is not None:
        return (deployment.hardware.compute_capability,), "hardware: of the layout"
    return (), ""


def _stock(version: str, capability: str) -> tuple[str, ...] | None:
    """Names of the stock backends that take the capability; None for a version that the table does not hold."""
    if not any(version_in(version, versions) for _, versions, _ in STOCK_BACKENDS):
        return None
    major = capability.partition(".")[0]
    return tuple(
        name
        for name, versions, majors in STOCK_BACKENDS
        if version_in(version, versions) and major.isdigit() and int(major) in majors
    )
