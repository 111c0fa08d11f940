"""The split tensors of a checkpoint, from its safetensors headers: in which unit each kind is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from shardwright.errors import DeployError
from shardwright.facts.safetensors import TensorHeader, read_headers
from shardwright.plan.virtual_sizes import ModelSizes
from shardwright.plan.virtual_tp import TensorAxis, expected_tensors

_KINDS = (
    (re.compile(r"\.attn\.(wq_b|wo_a|wo_b)\.(\w+)$"), "attn.{0}.{1}"),
    (re.compile(r"\.attn\.(attn_sink)()$"), "attn.{0}"),
    (re.compile(r"\.experts\.\d+\.(w1|w2|w3)\.(\w+)$"), "experts.{0}.{1}"),
    (re.compile(r"\.shared_experts\.(w1|w2|w3|down_proj)\.(\w+)$"), "shared_experts.{0}.{1}"),
    (re.compile(r"^(embed|head)\.(weight)$"), "{0}.{1}"),
)
_FUSED = {"w1": "w13", "w3": "w13", "down_proj": "w2"}


class CheckpointTensors(Struct, frozen=True):
    """`tensors`: one entry per kind, all layers agree. `replicated_bytes`: everything that every rank holds whole."""

    tensors: tuple[TensorAxis, ...]
    replicated_bytes: int


def read_tensors(directory: Path, shown: str, sizes: ModelSizes) -> CheckpointTensors | None:
    """Read all headers of a checkpoint; None where it has no safetensors files.

    DeployError when a kind is missing, differs between layers, or is stored in a unit that the plan does not know.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        return None
    headers = (header for file in files for header in read_headers(file, f"{shown}/{file.name}").tensors)
    return group_tensors(headers, shown, sizes)


def group_tensors(headers: Iterable[TensorHeader], shown: str, sizes: ModelSizes) -> CheckpointTensors:
    """The kinds of split tensors among `headers`, held against what a model of these sizes stores."""
    expected = {tensor.tensor: tensor for tensor in expected_tensors(sizes)}
    found: dict[str, TensorAxis] = {}
    examples: dict[str, str] = {}
    replicated = 0
    for header in headers:
        kind = tensor_kind(header.name)
        if kind is None:
            replicated += 0 if header.name.startswith("mtp.") else header.size_bytes
            continue
        if kind not in expected:
            raise DeployError(
                f"{shown}: {header.name} is stored as {header.dtype}, which config.json does not announce",
                why="a tensor that the plan does not know would reach the loader unpadded",
                fix="check expert_dtype and quantization_config in config.json",
            )
        tensor = expected[kind]
        if len(header.shape) <= tensor.dim or header.shape[tensor.dim] != tensor.units:
            raise DeployError(
                f"{shown}: {header.name} has the shape {list(header.shape)}, "
                f"but {tensor.units} {tensor.unit} were expected on axis {tensor.dim}"
                + (f" (as in {examples[kind]})" if kind in examples else ""),
                why="ranks would be cut at the wrong places, and the engine would not notice",
            )
        examples.setdefault(kind, header.name)
        found[kind] = tensor
    missing = [kind for kind in expected if kind not in found]
    if missing:
        raise DeployError(
            f"{shown}: the checkpoint has no {missing[0]}",
            why="what is not there cannot be split; the plan was made for another kind of checkpoint",
        )
    return CheckpointTensors(tuple(found[kind] for kind in expected), replicated)


def tensor_kind(name: str) -> str | None:
    """`layers.3.ffn.experts.7.w1.scale` is `experts.w13.scale`; None for what every rank holds whole."""
    if ".indexer." in name:
        return None
    for pattern, form in _KINDS:
        match = pattern.search(name)
        if match:
            part, suffix = match.groups()
            return form.format(_FUSED.get(part, part), "weight" if suffix == "weight" else "scale")
    return None
