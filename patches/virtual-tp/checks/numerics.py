"""Does a padded split compute what the whole computes? MXFP4 experts and attention, in plain torch on any device.

Uses the padding of the patch's own module. The slicings `stock` and `blind` are silently wrong; they must be found far
off, else the check proves nothing.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path

import torch

TOKENS = (1, 8, 16, 64)
LIMIT = 10.0
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# part: the piece of the patch's module, the dimension of one expert that is cut, and elements per storage unit
EXPERT_TENSORS = {
    "w1": ("w1", 0, 1),
    "s1": ("w1", 0, 1),
    "w3": ("w3", 0, 1),
    "s3": ("w3", 0, 1),
    "w2": ("w2", 1, 2),
    "s2": ("w2", 1, 32),
}
Layer = dict[str, torch.Tensor]


def load_fragment(path: Path) -> types.ModuleType:
    """The patch's own module, as it is mounted into the engine."""
    loader = importlib.machinery.SourceFileLoader("virtual_tp", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("virtual_tp", loader))
    sys.modules["virtual_tp"] = module
    loader.exec_module(module)
    return module


def make_layer(experts: int, hidden: int, width: int, device: str, seed: int = 1) -> Layer:
    """Random MXFP4 experts: packed nibbles and E8M0 scales between 2^-9 and 2^-4."""
    generator = torch.Generator(device).manual_seed(seed)

    def codes(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, device=device, generator=generator)

    return {
        "w1": codes(0, 256, experts, width, hidden // 2),
        "s1": codes(118, 124, experts, width, hidden // 32),
        "w3": codes(0, 256, experts, width, hidden // 2),
        "s3": codes(118, 124, experts, width, hidden // 32),
        "w2": codes(0, 256, experts, hidden, width // 2),
        "s2": codes(118, 124, experts, hidden, width // 32),
    }


def make_inputs(tokens: int, experts: int, hidden: int, top_k: int, device: str, seed: int):
    """Activations, chosen experts and their weights, which add up to 1.5 as sqrtsoftplus routing scales them."""
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(tokens, hidden, device=device, generator=generator).bfloat16()
    ids = torch.stack([torch.randperm(experts, device=device, generator=generator)[:top_k] for _ in range(tokens)])
    weights = torch.rand(tokens, top_k, device=device, generator=generator) + 0.1
    return x, ids.int(), weights / weights.sum(1, keepdim=True) * 1.5


def dequantise(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """MXFP4 to fp32: two nibbles per byte, low one first, times 2^(scale - 127) per 32 elements."""
    values = torch.tensor([*FP4, *(-value for value in FP4)], device=packed.device)
    pairs = torch.stack([values[(packed & 15).long()], values[(packed >> 4).long()]], -1).flatten(-2)
    return pairs * torch.exp2(scales.float() - 127).repeat_interleave(32, -1)


def moe(layer: Layer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The routed experts in fp32, with the clamped SwiGLU of DeepSeek-V4."""
    x = x.float()
    out = torch.zeros(x.shape[0], layer["w2"].shape[1], device=x.device)
    for expert in ids.unique().tolist():
        token, slot = (ids == expert).nonzero(as_tuple=True)
        gate = x[token] @ dequantise(layer["w1"][expert], layer["s1"][expert]).T
        up = x[token] @ dequantise(layer["w3"][expert], layer["s3"][expert]).T
        inner = torch.nn.functional.silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT)
        y = inner @ dequantise(layer["w2"][expert], layer["s2"][expert]).T
        out.index_add_(0, token, y * weights[token, slot, None])
    return out


def rank_layer(fragment, layer: Layer, axis: tuple[int, int], kernel: int, tp: int, rank: int, slicing: str) -> Layer:
    """A rank's buffers: padded by the patch's module, cut by the engine's rule `shape // tp`, in zeroed kernel sizes.

    The rule is vLLM's fused_moe/routed_experts.py `_load_w13`, `_load_w2`. `axis` is the routed width before and after
    padding; equal ones pad nothing.
    """
    original, virtual = axis
    buffers = {}
    for key, tensor in layer.items():
        _, dim, per_unit = EXPERT_TENSORS[key]
        size = kernel // per_unit
        if slicing == "padded":
            tensor = fragment.pad_tensor(tensor, dim + 1, original, virtual, key)
        share = tensor.shape[dim + 1] // tp
        if slicing == "blind":
            share = min(virtual // tp, size)
        shape = list(tensor.shape)
        shape[dim + 1] = size
        buffer = tensor.new_zeros(shape)
        start = min(share * rank, tensor.shape[dim + 1])
        count = min(share, tensor.shape[dim + 1] - start)
        buffer.narrow(dim + 1, 0, count).copy_(tensor.narrow(dim + 1, start, count))
        buffers[key] = buffer
    return buffers


def byte_audit(fragment, layer: Layer, ranks: list[Layer], axis: tuple[int, int]) -> list[str]:
    """What the patch's own audit says of every rank's buffers; empty where all padding is zero and all else equal."""
    virtual = axis[1]
    faults = []
    for rank, buffers in enumerate(ranks):
        for key, buffer in buffers.items():
            part, dim, per_unit = EXPERT_TENSORS[key]
            records, pieces = {}, []
            for expert in range(buffer.shape[0]):
                piece = fragment.Piece(0, part, "scale" if key[0] == "s" else "weight", expert)
                share = virtual // len(ranks) // per_unit
                records[piece] = fragment.rank_record(layer[key][expert], dim, share, rank, False)
                pieces.append(piece)
            faults += fragment._block_problems(f"rank {rank} {key}", pieces, buffer, dim + 1, records)
    return faults


def error(y: torch.Tensor, reference: torch.Tensor) -> float:
    return float((y.float() - reference).norm() / reference.norm())


def check_moe(fragment, plan: dict, device: str = "cpu", experts: int = 4, hidden: int = 256) -> dict:
    """Relative error of the summed ranks for each token count and slicing, and the audit of the padded ones."""
    sizes, entry = plan["sizes"], plan["entry"]
    axis, tp = tuple(entry["axes"]["routed_intermediate"]), entry["tp_size"]
    layer = make_layer(experts, hidden, sizes["routed"], device)
    slicings = {
        name: [rank_layer(fragment, layer, axis, plan["kernel"], tp, rank, name) for rank in range(tp)]
        for name in ("padded", "stock", "blind")
    }
    rows = []
    for tokens in TOKENS:
        inputs = make_inputs(tokens, experts, hidden, min(6, experts), device, 100 + tokens)
        reference = moe(layer, *inputs)
        row: dict = {"tokens": tokens}
        for name, ranks in slicings.items():
            total = sum(moe(buffers, *inputs) for buffers in ranks)
            row[name] = error(total, reference)
            row[f"{name}_finite"] = bool(torch.isfinite(total).all())
        rows.append(row)
    return {
        "rows": rows,
        "audit": {name: byte_audit(fragment, layer, ranks, axis) for name, ranks in slicings.items()},
    }


def check_attention(fragment, plan: dict, device: str = "cpu", context: int = 512, tokens: int = 16) -> dict:
    """MLA-like attention and the grouped output projection, split and padded, against the whole. bf16 as the engine."""
    sizes, entry = plan["sizes"], plan["entry"]
    tp, axes = entry["tp_size"], entry["axes"]
    heads, groups = tuple(axes["attention_heads"]), tuple(axes["output_groups"])
    width, rank_width, hidden = sizes["head_dim"], sizes["output_rank"], min(sizes["hidden"], 1024)
    group_width = heads[0] // groups[0] * width
    generator = torch.Generator(device).manual_seed(7)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, device=device, generator=generator) * scale

    query = normal(tokens, sizes["query_rank"]).bfloat16()
    wq_b = normal(heads[0] * width, sizes["query_rank"], scale=sizes["query_rank"] ** -0.5).bfloat16()
    kv = normal(context, width).bfloat16()
    sink = normal(heads[0])
    wo_a = normal(groups[0] * rank_width, group_width, scale=group_width**-0.5).bfloat16()
    wo_b = normal(hidden, groups[0] * rank_width, scale=(groups[0] * rank_width) ** -0.5).bfloat16()

    def attend(q: torch.Tensor, sinks: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("mhd,td->mht", q.float(), kv.float()) / width**0.5
        scores = scores.masked_fill(~visible[:, None], float("-inf"))
        scores = torch.cat([scores, sinks[None, :, None].expand(len(q), -1, 1)], -1).softmax(-1)[..., :-1]
        return torch.einsum("mht,td->mhd", scores, kv.float()).bfloat16()

    def project(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = a.shape[0] // rank_width
        grouped = out.reshape(len(out), count, group_width)
        middle = torch.einsum("mgc,grc->mgr", grouped, a.view(count, rank_width, group_width))
        return middle, middle.reshape(len(out), -1) @ b.T

    padded_q = fragment.pad_tensor(wq_b, 0, *heads)
    padded_a = fragment.pad_tensor(wo_a, 0, *groups)
    padded_b = fragment.pad_tensor(wo_b, 1, *groups)
    local_heads, local_groups, kernel_heads = heads[1] // tp, groups[1] // tp, plan["kernel_heads"]
    found: dict = {}
    positions = torch.arange(context, device=device)
    for phase, first in (("prefill", 0), ("decode", context - tokens)):
        last = torch.arange(first, first + tokens, device=device)
        visible = positions[None] <= last[:, None]
        whole = attend((query @ wq_b.T).view(tokens, heads[0], width), sink, visible)
        _, reference = project(whole.float(), wo_a.float(), wo_b.float())
        _, single = project(whole, wo_a, wo_b)
        total = torch.zeros_like(reference)
        head_error, virtual_nonzero, contribution_zero, middle_zero = 0.0, True, True, True
        for rank in range(tp):
            rows = slice(rank * local_heads * width, (rank + 1) * local_heads * width)
            q = (query @ padded_q[rows].T).view(tokens, local_heads, width)
            q = torch.cat([q, q.new_zeros(tokens, kernel_heads - local_heads, width)], 1)
            real = max(0, min(local_heads, heads[0] - rank * local_heads))
            sinks = torch.full((kernel_heads,), float("-inf"), device=device)
            sinks[:real] = sink[rank * local_heads : rank * local_heads + real]
            out = attend(q, sinks, visible)[:, :local_heads]
            expected = whole[:, rank * local_heads : rank * local_heads + real]
            if real:
                # Relative: one rounding step of bfloat16 is 2**-8 of a value's power of two, whatever its size.
                away = (out[:, :real].float() - expected.float()).abs().max() / expected.float().abs().max()
                head_error = max(head_error, float(away))
            columns = slice(rank * local_groups * rank_width, (rank + 1) * local_groups * rank_width)
            middle, part = project(out, padded_a[columns], padded_b[:, columns])
            total += part.float()
            if real < local_heads:
                virtual_nonzero &= bool(out[:, real:].float().abs().amax((0, 2)).gt(0).all())
                first_virtual = real * width // group_width
                middle_zero &= not bool(middle[:, first_virtual:].any())
                tail = middle[:, first_virtual:].reshape(tokens, -1)
                weights = padded_b[:, columns][:, first_virtual * rank_width :]
                contribution_zero &= not bool((tail @ weights.T).any())
        found[phase] = {
            "split": error(total, reference),
            "single": error(single, reference),
            "real_heads_off_by": head_error,
            "virtual_heads_nonzero": virtual_nonzero,
            "virtual_groups_zero": middle_zero,
            "contribution_zero": contribution_zero,
            "finite": bool(torch.isfinite(total).all()),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=("moe", "attention"))
    parser.add_argument("--fragment", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True, help="JSON with `sizes`, `entry`, `kernel`, `kernel_heads`")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    plan, fragment = json.loads(arguments.plan.read_text()), load_fragment(arguments.fragment)
    check = check_moe if arguments.check == "moe" else check_attention
    with torch.inference_mode():
        sys.stdout.write(json.dumps(check(fragment, plan, arguments.device)) + "\n")


if __name__ == "__main__":
    main()
