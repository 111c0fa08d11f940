"""Widths of linear layers whose weights are packed, from the shapes of their tensors: no config holds them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

_LAYER = re.compile(r"layers\.\d+\.")
_SUFFIXES = (".qweight", ".scales", ".weight_packed", ".weight_scale")


class PackedLinear(Struct, frozen=True):
    """One kind of layer, by its name with `*` for the layer number. Element counts of the whole layer.

    `groups`: scales along the inputs; None where the checkpoint does not show them.
    """

    name: str
    outputs: int
    groups: int | None = None


def packed_linears(tensors: Iterable[tuple[str, Any]]) -> tuple[PackedLinear, ...]:
    """Kinds of packed layers but experts, whose width the config holds; each once, from tensor names and shapes.

    GPTQ, AWQ and AutoRound keep `scales` as (groups, outputs); compressed-tensors keeps `weight_packed` as
    (outputs, inputs / pack) and `weight_scale` as (outputs, groups). What is packed shows itself by `qweight` or
    `weight_packed`.
    """
    shapes: dict[str, dict[str, list[int]]] = {}
    for name, shape in tensors:
        if not name.endswith(_SUFFIXES) or not _is_shape(shape):
            continue
        suffix = next(end for end in _SUFFIXES if name.endswith(end))
        if ".experts." not in name:
            shapes.setdefault(name.removesuffix(suffix), {})[suffix] = list(shape)
    found: dict[PackedLinear, None] = {}
    for name, parts in shapes.items():
        linear = _linear(_LAYER.sub("layers.*.", name), parts)
        if linear is not None:
            found[linear] = None
    return tuple(found)


def _linear(name: str, parts: dict[str, list[int]]) -> PackedLinear | None:
    if ".qweight" in parts and ".scales" in parts:
        groups, outputs = parts[".scales"]
        return PackedLinear(name, outputs, groups)
    if ".weight_packed" in parts:
        scales = parts.get(".weight_scale")
        return PackedLinear(name, parts[".weight_packed"][0], scales[1] if scales else None)
    return None


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list | tuple)
        and len(shape) == 2
        and all(isinstance(extent, int) and not isinstance(extent, bool) and extent > 0 for extent in shape)
    )
