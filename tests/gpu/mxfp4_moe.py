"""A small MXFP4 mixture of experts in Triton: one program per chosen expert and block of outputs, all in fp32.

Made to be plainly right and free of host synchronisation, not fast: weights are decoded in registers for every token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LIMIT = 10.0
BLOCK_N, BLOCK_K = 64, 128


@triton.jit
def _fp4(code):
    exponent = (code >> 1) & 3
    half = (code & 1).to(tl.float32) * 0.5
    value = tl.where(exponent == 0, half, (1.0 + half) * tl.exp2(exponent.to(tl.float32) - 1.0))
    return tl.where((code & 8) != 0, -value, value)


@triton.jit
def _tile(packed, scales, rows, k, width: tl.constexpr, n: tl.constexpr, depth: tl.constexpr):
    """Weights [n, depth] of `rows` from element `k` on; `width` elements make a row."""
    bytes_at = k // 2 + tl.arange(0, depth // 2)
    groups_at = k // 32 + tl.arange(0, depth // 32)
    codes = tl.load(packed + rows[:, None] * (width // 2) + bytes_at[None, :]).to(tl.int32)
    exponents = tl.load(scales + rows[:, None] * (width // 32) + groups_at[None, :]).to(tl.float32)
    values = tl.join(_fp4(codes & 15), _fp4(codes >> 4)).reshape(n, depth // 32, 32)
    return (values * tl.exp2(exponents - 127.0)[:, :, None]).reshape(n, depth)


@triton.jit
def _gate_up(
    x, w1, s1, w3, s3, chosen, inner,
    top_k: tl.constexpr, hidden: tl.constexpr, width: tl.constexpr, limit: tl.constexpr,
    n: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    expert = tl.load(chosen + pair).to(tl.int64)
    rows = (tl.program_id(1) * n + tl.arange(0, n)).to(tl.int64)
    weights, scales = expert * width * (hidden // 2), expert * width * (hidden // 32)
    gate, up = tl.zeros((n,), tl.float32), tl.zeros((n,), tl.float32)
    for k in range(0, hidden, depth):
        part = tl.load(x + (pair // top_k) * hidden + k + tl.arange(0, depth)).to(tl.float32)
        gate += tl.sum(_tile(w1 + weights, s1 + scales, rows, k, hidden, n, depth) * part[None, :], 1)
        up += tl.sum(_tile(w3 + weights, s3 + scales, rows, k, hidden, n, depth) * part[None, :], 1)
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    tl.store(inner + pair * width + rows, (gate / (1.0 + tl.exp(-gate)) * up).to(tl.bfloat16))


@triton.jit
def _down(
    inner, w2, s2, chosen, out,
    hidden: tl.constexpr, width: tl.constexpr, n: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    expert = tl.load(chosen + pair).to(tl.int64)
    rows = (tl.program_id(1) * n + tl.arange(0, n)).to(tl.int64)
    weights, scales = expert * hidden * (width // 2), expert * hidden * (width // 32)
    total = tl.zeros((n,), tl.float32)
    for k in range(0, width, depth):
        part = tl.load(inner + pair * width + k + tl.arange(0, depth)).to(tl.float32)
        total += tl.sum(_tile(w2 + weights, s2 + scales, rows, k, width, n, depth) * part[None, :], 1)
    tl.store(out + pair * hidden + rows, total)


def moe(layer: dict[str, torch.Tensor], x, ids, weights, out: torch.Tensor) -> torch.Tensor:
    """A rank's partial sum [tokens, hidden] in bf16, as for the all-reduce; static shapes, safe in a graph."""
    tokens, top_k = ids.shape
    hidden, width = layer["w2"].shape[1], layer["w1"].shape[1]
    inner = torch.empty(tokens * top_k, width, dtype=torch.bfloat16, device=x.device)
    parts = torch.empty(tokens * top_k, hidden, dtype=torch.float32, device=x.device)
    _gate_up[(tokens * top_k, width // BLOCK_N)](
        x, layer["w1"], layer["s1"], layer["w3"], layer["s3"], ids, inner,
        top_k, hidden, width, LIMIT, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    _down[(tokens * top_k, hidden // BLOCK_N)](
        inner, layer["w2"], layer["s2"], ids, parts, hidden, width, BLOCK_N, BLOCK_K
    )
    return out.copy_((parts.view(tokens, top_k, hidden) * weights[..., None]).sum(1))
