"""Tensors whose bytes tell their place, by the names of a DeepSeek-V4 checkpoint; and where a buffer was cut of one."""

from __future__ import annotations

from collections.abc import Iterator

import torch

EXPERTS = 2
BLOCK = 128


def coded(shape: tuple[int, ...], dim: int, salt: int = 0) -> torch.Tensor:
    """Bytes 1..251 that tell the position on `dim` in three digits; never zero."""
    position = torch.arange(shape[dim])
    values = torch.empty(shape, dtype=torch.uint8).movedim(dim, 1)
    values[:] = (position + salt) % 251 + 1
    values[0] = position // 251 % 251 + 1
    values[1] = position // 251**2 + 1
    return values.movedim(1, dim).contiguous()


def checkpoint(sizes: dict, layer: str = "layers.0") -> Iterator[tuple[str, torch.Tensor]]:
    """One layer of a DeepSeek-V4 checkpoint and its embedding under their own names, with position-coded bytes."""
    hidden, width = sizes["hidden"], sizes["routed"]
    rows, ranks = sizes["heads"] * sizes["head_dim"], sizes["groups"] * sizes["output_rank"]
    group_width = sizes["heads"] // sizes["groups"] * sizes["head_dim"]

    def fp8(shape: tuple[int, ...], dim: int) -> torch.Tensor:
        return (coded(shape, dim) % 119 + 1).to(torch.uint8).view(torch.float8_e4m3fn)

    def blocks(shape: tuple[int, ...], dim: int) -> torch.Tensor:
        return coded(tuple(-(-size // BLOCK) for size in shape), dim).float()

    attention = {"wq_b": ((rows, sizes["query_rank"]), 0), "wo_a": ((ranks, group_width), 0)}
    attention["wo_b"] = ((hidden, ranks), 1)
    for part, (shape, dim) in attention.items():
        yield f"{layer}.attn.{part}.weight", fp8(shape, dim)
        yield f"{layer}.attn.{part}.scale", blocks(shape, dim)
    yield f"{layer}.attn.attn_sink", torch.arange(sizes["heads"]).float() + 1
    for expert in range(EXPERTS):
        for part in ("w1", "w3"):
            salt = 7 * expert + (part == "w3")
            yield f"{layer}.ffn.experts.{expert}.{part}.weight", coded((width, hidden // 2), 0, salt).view(torch.int8)
            scale = coded((width, hidden // 32), 0, salt).view(torch.float8_e8m0fnu)
            yield f"{layer}.ffn.experts.{expert}.{part}.scale", scale
        yield f"{layer}.ffn.experts.{expert}.w2.weight", coded((hidden, width // 2), 1, expert).view(torch.int8)
        scale = coded((hidden, width // 32), 1, expert).view(torch.float8_e8m0fnu)
        yield f"{layer}.ffn.experts.{expert}.w2.scale", scale
    for part, shape, dim in (("w1", (width, hidden), 0), ("w3", (width, hidden), 0), ("w2", (hidden, width), 1)):
        yield f"{layer}.ffn.shared_experts.{part}.weight", fp8(shape, dim)
        yield f"{layer}.ffn.shared_experts.{part}.scale", blocks(shape, dim)
    yield "embed.weight", coded((sizes["vocabulary"], 16), 0).to(torch.bfloat16)


def find_cut(buffer: torch.Tensor, source: torch.Tensor, dim: int) -> dict:
    """Where in `source` the buffer's content begins, how many units it has, and how many zero units follow."""
    buffer, source = (_plain(tensor).movedim(dim, 0).flatten(1) for tensor in (buffer, source))
    filled = buffer.any(1)
    count = int(filled.nonzero().max()) + 1 if bool(filled.any()) else 0
    start = 0
    if count:
        hits = (source == buffer[0]).all(1).nonzero().flatten().tolist()
        starts = [hit for hit in hits if torch.equal(source[hit : hit + count], buffer[:count])]
        start = starts[0] if starts else None
    return {"start": start, "units": count, "zero_tail": buffer.shape[0] - count}


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor.float()
