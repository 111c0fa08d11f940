"""Model code of the engine that a model of a fitting name does not run through, so that an edit there has no effect.

Found by following the engine's own registry in vLLM 0.28.0, 0.30.0, 0.32.0 and 0.33.0 (overlay.reach), which
`deploy patch check` does for any model and engine. Kept here are the places where a patch of one version applies
cleanly to another and changes nothing.
"""

from __future__ import annotations

from msgspec import Struct

from shardwright.facts.versions import version_in


class IdleCode(Struct, frozen=True):
    """Code that `architectures` do not run where one of `places` (platform, versions) holds.

    `classes`: those of the module; empty for all of it and of the modules below. `instead`: where their code is.
    """

    module: str
    classes: tuple[str, ...]
    architectures: tuple[str, ...]
    places: tuple[tuple[str, str], ...]
    instead: str


_SPARSE = ("GlmMoeDsaForCausalLM", "DeepseekV32ForCausalLM")
_GENERIC = "vllm.model_executor.models.deepseek_v2"
_OWN = "vllm.models.deepseek_v32"

IDLE_CODE = (
    # DeepseekV2ForCausalLM in the same file does run, by inheritance.
    IdleCode(
        _GENERIC,
        (
            "DeepseekAttention",
            "DeepseekV2Attention",
            "DeepseekV2DecoderLayer",
            "DeepseekV2MLAAttention",
            "DeepseekV2Model",
            "DeepseekV32IndexerCache",
            "Indexer",
        ),
        _SPARSE,
        (("cuda", ">=0.30,<0.34"), ("rocm", ">=0.32,<0.34")),
        _OWN,
    ),
    IdleCode(
        _OWN,
        (),
        _SPARSE,
        (("cuda", ">=0.28,<0.30"), ("rocm", ">=0.28,<0.32"), ("cpu", ">=0.28,<0.34")),
        _GENERIC,
    ),
)


def idle_code(architecture: str, platform: str, version: str, module: str, symbol: str | None) -> IdleCode | None:
    """The row that says that a model does not run this symbol of this module; None where no row does."""
    name = (symbol or "").partition(".")[0]
    for row in IDLE_CODE:
        inside = module == row.module or (not row.classes and module.startswith(f"{row.module}."))
        if not inside or (row.classes and name not in row.classes) or architecture not in row.architectures:
            continue
        if any(platform == where and version_in(version, versions) for where, versions in row.places):
            return row
    return None
