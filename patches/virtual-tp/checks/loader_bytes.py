"""Does the engine's own loader cut a padded checkpoint at the planned places? Runs in the engine, on a CPU.

The real DeepSeek-V4 load loop, RoutedExperts with MXFP4 buffers as FlashInfer CUTLASS wants them, FP8 block linears,
shared experts and vocabulary are filled for every rank from tensors whose bytes tell their place. Then every buffer is
read back. The slicing `stock` leaves experts unpadded, `blind` cuts their buffers by a size that ignores the
storage unit; both must be found wrong, else the check proves nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import torch
from engine_layers import as_rank, engine, make_model, padded_config
from numerics import load_fragment
from position_coded import BLOCK, checkpoint, find_cut
from torch import nn


def load(fragment, outer: nn.Module, sizes: dict, slicing: str) -> str:
    """Load through the engine's own loop; the text of the audit's complaint, "" where it has none."""
    from vllm.models.deepseek_v4.nvidia import model as deepseek

    stream = checkpoint(sizes)
    if slicing == "padded":
        stream = fragment.pad_stream(stream, outer)
    else:
        # Only the routed experts go unpadded: they are what loads without an error.
        stream = _records_only(fragment, stream, outer)
    mapper = deepseek._make_deepseek_v4_weights_mapper("fp4")
    inner = ((name.removeprefix("model."), tensor) for name, tensor in mapper.apply(stream))
    experts = outer.model.layers[0].ffn.experts.routed_experts
    with _blind(experts) if slicing == "blind" else nullcontext():
        deepseek.DeepseekV4Model.load_weights(outer.model, inner)
    try:
        fragment.audit(outer)
    except RuntimeError as error:
        return str(error)
    return ""


def _records_only(fragment, stream, outer):
    for name, tensor in fragment.pad_stream(stream, outer):
        piece = fragment.find_piece(name)
        if piece is not None and piece.expert >= 0:
            axis, dim = fragment.PARTS[piece.part]
            original, virtual = outer.config.virtual_tp["axes"][axis]
            tensor = tensor.narrow(dim, 0, tensor.shape[dim] * original // virtual)
        yield name, tensor


@contextmanager
def _blind(experts):
    """Cut by min(logical share, size of the buffer's axis): right for rows, wrong for packed bytes and scale groups."""
    share = experts.moe_config.intermediate_size_per_partition_unpadded

    def cut(buffer: torch.Tensor, dim: int, loaded: torch.Tensor, rank: int) -> None:
        size = min(share, buffer.shape[dim])
        start = min(size * rank, loaded.shape[dim])
        count = min(size, loaded.shape[dim] - start)
        buffer.narrow(dim, 0, count).copy_(loaded.narrow(dim, start, count))

    def w2(expert_data, shard_dim, loaded_weight, tp_rank):
        cut(expert_data, shard_dim, loaded_weight, tp_rank)

    def w13(expert_data, shard_dim, shard_id, loaded_weight, tp_rank, load_full=False):
        half = expert_data.shape[shard_dim] // 2
        cut(expert_data.narrow(shard_dim, 0 if shard_id == "w1" else half, half), shard_dim, loaded_weight, tp_rank)

    with mock.patch.object(experts, "_load_w2", w2), mock.patch.object(experts, "_load_w13", w13):
        yield


def views(model: nn.Module) -> dict[str, tuple[torch.Tensor, int]]:
    """The buffers to read back, by the plan's names, with the dimension that is cut."""
    layer = model.layers[0]
    attn, experts, shared = layer.attn, layer.ffn.experts.routed_experts, layer.ffn.shared_experts
    half = experts.w13_weight.shape[1] // 2
    scale = next(name for name, _ in attn.wq_b.named_parameters() if "scale" in name)
    wide = shared.gate_up_proj.weight.shape[0] // 2
    return {
        "attn.wq_b.weight": (attn.wq_b.weight, 0),
        "attn.wq_b.scale": (getattr(attn.wq_b, scale), 0),
        "attn.wo_a.weight": (attn.wo_a.weight, 0),
        "attn.wo_a.scale": (getattr(attn.wo_a, scale), 0),
        "attn.wo_b.weight": (attn.wo_b.weight, 1),
        "attn.wo_b.scale": (getattr(attn.wo_b, scale), 1),
        "experts.w13.weight": (experts.w13_weight[1, :half], 0),
        "experts.w13.weight (w3)": (experts.w13_weight[1, half:], 0),
        "experts.w13.scale": (experts.w13_weight_scale[1, :half], 0),
        "experts.w2.weight": (experts.w2_weight[1], 1),
        "experts.w2.scale": (experts.w2_weight_scale[1], 1),
        "shared_experts.w13.weight": (shared.gate_up_proj.weight[:wide], 0),
        "shared_experts.w13.scale": (getattr(shared.gate_up_proj, scale)[: wide // BLOCK], 0),
        "shared_experts.w2.weight": (shared.down_proj.weight, 1),
        "shared_experts.w2.scale": (getattr(shared.down_proj, scale), 1),
        "embed.weight": (model.embed_tokens.weight, 0),
    }


SOURCES = {
    "attn.wq_b.weight": "layers.0.attn.wq_b.weight",
    "attn.wq_b.scale": "layers.0.attn.wq_b.scale",
    "attn.wo_a.weight": "layers.0.attn.wo_a.weight",
    "attn.wo_a.scale": "layers.0.attn.wo_a.scale",
    "attn.wo_b.weight": "layers.0.attn.wo_b.weight",
    "attn.wo_b.scale": "layers.0.attn.wo_b.scale",
    "experts.w13.weight": "layers.0.ffn.experts.1.w1.weight",
    "experts.w13.weight (w3)": "layers.0.ffn.experts.1.w3.weight",
    "experts.w13.scale": "layers.0.ffn.experts.1.w1.scale",
    "experts.w2.weight": "layers.0.ffn.experts.1.w2.weight",
    "experts.w2.scale": "layers.0.ffn.experts.1.w2.scale",
    "shared_experts.w13.weight": "layers.0.ffn.shared_experts.w1.weight",
    "shared_experts.w13.scale": "layers.0.ffn.shared_experts.w1.scale",
    "shared_experts.w2.weight": "layers.0.ffn.shared_experts.w2.weight",
    "shared_experts.w2.scale": "layers.0.ffn.shared_experts.w2.scale",
    "embed.weight": "embed.weight",
}


def swizzle(scales: torch.Tensor) -> torch.Tensor:
    """CPU stand-in for FlashInfer's block_scale_interleave: scale bytes in tiles of 128 rows by 4 columns."""
    experts, rows, columns = scales.shape
    tiles = scales.view(experts, rows // 128, 4, 32, columns // 4, 4)
    return tiles.permute(0, 1, 4, 3, 2, 5).reshape(experts, -1)


def unswizzle(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    tiles = scales.view(scales.shape[0], rows // 128, columns // 4, 32, 4, 4)
    return tiles.permute(0, 1, 4, 3, 2, 5).reshape(scales.shape[0], rows, columns)


def convert(fragment, outer: nn.Module) -> dict:
    """The engine's own conversion for FlashInfer CUTLASS, audited: are all values there, and is all padding zero?"""
    from vllm.model_executor.layers.fused_moe.oracle import mxfp4 as oracle

    experts = outer.model.layers[0].ffn.experts.routed_experts
    names = ("w13_weight", "w2_weight", "w13_weight_scale", "w2_weight_scale")
    before = {name: getattr(experts, name).data.clone() for name in names}
    stub = types.ModuleType("flashinfer")
    stub.block_scale_interleave = swizzle

    def run() -> tuple:
        # The engine hands over its parameters anew for each call.
        tensors = {name: nn.Parameter(before[name].clone(), requires_grad=False) for name in names}
        return fragment.audited(oracle.convert_weight_to_mxfp4_moe_kernel_format)(
            mxfp4_backend=outer.model.backend, layer=experts, **tensors
        )

    with mock.patch.dict(sys.modules, {"flashinfer": stub}):
        w13, w2, s13, s2, *_ = run()
        half = before["w13_weight"].shape[1] // 2
        swapped = {name: torch.cat([before[name][:, half:], before[name][:, :half]], 1) for name in names[::2]}
        kept = (
            torch.equal(w13, swapped["w13_weight"])
            and torch.equal(w2, before["w2_weight"])
            and torch.equal(unswizzle(s13.flatten(1), *s13.shape[1:]), swapped["w13_weight_scale"])
            and torch.equal(unswizzle(s2.flatten(1), *s2.shape[1:]), before["w2_weight_scale"])
        )
        before["w2_weight_scale"][0, 5, -1] = 3
        try:
            run()
            stale = ""
        except RuntimeError as error:
            stale = str(error)
    return {"values_kept": kept, "stale_tail_found": stale}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fragment", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True, help="JSON with `sizes`, `entry` and `kernel_heads`")
    parser.add_argument("--slicings", nargs="+", choices=("padded", "stock", "blind"), default=["padded"])
    arguments = parser.parse_args()
    plan, fragment = json.loads(arguments.plan.read_text()), load_fragment(arguments.fragment)
    with engine():
        source = dict(checkpoint(plan["sizes"]))
        found = {slicing: run(fragment, plan, source, slicing) for slicing in arguments.slicings}
    sys.stdout.write(json.dumps(found) + "\n")


def run(fragment, plan: dict, source: dict, slicing: str) -> dict:
    """Load every rank: where each buffer was cut, what the audit says, and for the padded one the conversion."""
    sizes, tp = {**plan["sizes"], "kernel_heads": plan["kernel_heads"]}, plan["entry"]["tp_size"]
    config = padded_config(plan)
    cuts: dict[str, list] = {}
    audits, conversion = [], None
    for rank in range(tp):
        fragment._state = None
        with as_rank(rank, tp):
            outer = make_model(fragment, sizes, config, tp, rank)
            audits.append(load(fragment, outer, sizes, slicing))
            sink = outer.model.layers[0].attn.attn_sink
            sinks = torch.isfinite(sink).sum().item()
            cuts.setdefault("attn.attn_sink", []).append(
                {"start": int(sink[0]) - 1, "units": sinks, "zero_tail": len(sink) - sinks}
            )
            for name, (buffer, dim) in views(outer.model).items():
                cuts.setdefault(name, []).append(find_cut(buffer, source[SOURCES[name]], dim))
            if slicing == "padded":
                conversion = convert(fragment, outer)
    return {"cuts": cuts, "audit": audits, "conversion": conversion}


if __name__ == "__main__":
    main()
