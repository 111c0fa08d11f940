"""Autotuning at a kernel width that FlashInfer's tactics overrun, per architecture; the gate `virtual-tp` asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct

from shardwright.gates.finding import Finding

_OVERRUN = "24 of 116 tactics then read past the scale tensor: NaN or an illegal access, as its neighbours have it"
_REGRESSION = (
    "on SM121 the change that brought the filter is reported to break the start: the first product fails to set up "
    "its TMA descriptor while it is tuned"
)
_OFF = "serve: {kernel_config: {enable_flashinfer_autotune: false}}"
_PIN = f"{_OFF}, and pin the FlashInfer version that was tried on these cards"


class _Rule(Struct, frozen=True):
    """What autotuning gets without the filter (or where it is not known), and with it; None: nothing to say."""

    unfiltered: Literal["reject", "warn"]
    filtered: Literal["reject"] | None
    fix: str


# Which tactics overrun was measured on 9.0 only; on 12.x the kernels are others.
_RULES = {
    "9.0": _Rule("reject", None, _OFF),
    "12.0": _Rule("warn", None, _PIN),
    "12.1": _Rule("warn", "reject", _PIN),
}


def tactics_findings(
    gate: str, width: int, tile: int, tuned: Iterable[str], filtered: bool | None
) -> Iterator[Finding]:
    """For cards that are tuned at a kernel width of `width` elements, no multiple of the tile of `tile`.

    `filtered`: whether the FlashInfer beside the engine filters its tactics by shape; None where that is not known.
    Compute capabilities without a rule are refused elsewhere, by their combination with the backends.
    """
    for capability in tuned:
        rule = _RULES.get(capability)
        verdict = None if rule is None else (rule.filtered if filtered else rule.unfiltered)
        if rule is None or verdict is None:
            continue
        looked = {None: "is not known", False: "is not there", True: "is there"}[filtered]
        yield Finding(
            gate,
            verdict,
            f"on {capability} the kernel width {width} is no multiple of {tile}, autotuning is on, and FlashInfer's "
            f"filter of tactics by shape {looked}",
            why=_REGRESSION if filtered else _OVERRUN,
            fix=rule.fix,
        )
