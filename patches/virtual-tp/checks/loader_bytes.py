"""Does the engine's own loader cut a padded checkpoint at the planned places? Runs in the engine, on a CPU.

The real DeepSeek-V4 load loop, RoutedExperts with MXFP4 buffers as FlashInfer CUTLASS wants them, FP8 block linears,
shared experts and vocabulary are filled for every rank from tensors whose bytes tell their place. Then every buffer is
read back. The slicing `stock` leaves experts unpadded, `blind` cuts their buffers by a size that ignores the
storage unit; both must be found wrong, else the check proves nothing.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from torch import nn

EXPERTS = 2
BLOCK = 128


def load_fragment(path: Path) -> types.ModuleType:
    """The patch's own module, as it is mounted into the engine."""
    loader = importlib.machinery.SourceFileLoader("virtual_tp", str(path))
    spec = importlib.util.spec_from_loader("virtual_tp", loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["virtual_tp"] = module
    loader.exec_module(module)
    return module


def coded(shape: tuple[int, ...], dim: int, salt: int = 0) -> torch.Tensor:
    """Bytes 1..251 that tell the position on `dim` in three digits; never zero."""
    position = torch.arange(shape[dim])
    values = torch.empty(shape, dtype=torch.uint8).movedim(dim, 1)
    values[:] = (position + salt) % 251 + 1
    values[0] = position // 251 % 251 + 1
    values[1] = position // 251**2 + 1
    return values.movedim(1, dim).contiguous()


def checkpoint(sizes: dict) -> Iterator[tuple[str, torch.Tensor]]:
    """One layer of a DeepSeek-V4 checkpoint under its own names, with position-coded bytes."""
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
        yield f"layers.0.attn.{part}.weight", fp8(shape, dim)
        yield f"layers.0.attn.{part}.scale", blocks(shape, dim)
    yield "layers.0.attn.attn_sink", torch.arange(sizes["heads"]).float() + 1
    for expert in range(EXPERTS):
        for part in ("w1", "w3"):
            salt = 7 * expert + (part == "w3")
            yield f"layers.0.ffn.experts.{expert}.{part}.weight", coded((width, hidden // 2), 0, salt).view(torch.int8)
            scale = coded((width, hidden // 32), 0, salt).view(torch.float8_e8m0fnu)
            yield f"layers.0.ffn.experts.{expert}.{part}.scale", scale
        yield f"layers.0.ffn.experts.{expert}.w2.weight", coded((hidden, width // 2), 1, expert).view(torch.int8)
        scale = coded((hidden, width // 32), 1, expert).view(torch.float8_e8m0fnu)
        yield f"layers.0.ffn.experts.{expert}.w2.scale", scale
    for part, shape, dim in (("w1", (width, hidden), 0), ("w3", (width, hidden), 0), ("w2", (hidden, width), 1)):
        yield f"layers.0.ffn.shared_experts.{part}.weight", fp8(shape, dim)
        yield f"layers.0.ffn.shared_experts.{part}.scale", blocks(shape, dim)
    yield "embed.weight", coded((sizes["vocabulary"], 16), 0).to(torch.bfloat16)


@contextmanager
def as_rank(rank: int, tp: int):
    """Every place where this engine asks for its tensor parallel rank and size answers with these."""
    import vllm.distributed as distributed
    import vllm.model_executor.layers.linear as linear
    import vllm.model_executor.layers.vocab_parallel_embedding as vocabulary
    import vllm.model_executor.parameter as parameter
    from vllm.models.deepseek_v4.nvidia import model as deepseek

    getters = {
        "get_tensor_model_parallel_rank": lambda: rank,
        "get_tensor_model_parallel_world_size": lambda: tp,
    }
    import vllm.model_executor.layers.quantization.utils.fp8_utils as fp8_utils

    places = [distributed, linear, vocabulary, parameter, deepseek, fp8_utils]
    patches = [
        mock.patch.object(place, name, getter)
        for place in places
        for name, getter in getters.items()
        if hasattr(place, name)
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def make_experts(tp: int, rank: int, width: int, hidden: int):
    """Real RoutedExperts with the MXFP4 method of FlashInfer CUTLASS."""
    from vllm.model_executor.layers.fused_moe import config as moe
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.oracle import mxfp4 as oracle
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.quantization import mxfp4

    backend = oracle.Mxfp4MoeBackend.FLASHINFER_CUTLASS_MXFP4_MXFP8
    parallel = moe.FusedMoEParallelConfig(
        tp_size=tp,
        tp_rank=rank,
        pcp_size=1,
        pcp_rank=0,
        dp_size=1,
        dp_rank=0,
        ep_size=1,
        ep_rank=0,
        sp_size=1,
        use_ep=False,
        all2all_backend="naive",
        enable_eplb=False,
    )
    config = moe.FusedMoEConfig(
        num_experts=EXPERTS,
        experts_per_token=1,
        hidden_dim=hidden,
        intermediate_size=width,
        num_local_experts=EXPERTS,
        num_logical_experts=EXPERTS,
        activation=MoEActivation.SILU,
        device="cpu",
        routing_method=moe.RoutingMethodType.DeepseekV4,
        moe_parallel_config=parallel,
        in_dtype=torch.bfloat16,
    )
    placement = SimpleNamespace(
        local_num_experts=EXPERTS,
        placement_strategy="linear",
        expert_map=None,
        expert_mask=None,
        routing_tables=None,
        map_global_to_local=lambda expert: expert,
    )
    quantization = SimpleNamespace(
        online_quantization_config=None,
        get_quant_method=lambda layer, prefix: mxfp4.Mxfp4MoEMethod(layer.moe_config),
        get_name=lambda: "deepseek_v4_fp8",
    )
    with mock.patch.object(mxfp4, "select_deepseek_v4_mxfp4_moe_backend", lambda _: (backend, None)):
        return RoutedExperts("layers.0.ffn.experts", torch.bfloat16, config, quantization, placement), backend


def make_model(fragment, sizes: dict, config, tp: int, rank: int) -> nn.Module:
    """One layer of the model as `DeepseekV4Model` names it, from the engine's own classes at their padded sizes."""
    import vllm.model_executor.layers.linear as linear
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.models.deepseek_v4.nvidia import model as deepseek

    quantization = Fp8Config(
        is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", weight_block_size=[BLOCK, BLOCK]
    )
    hidden, heads, groups = sizes["hidden"], config.num_attention_heads, config.o_groups
    group_width = heads * sizes["head_dim"] // groups

    def column(inputs: int, outputs: int):
        return linear.ColumnParallelLinear(inputs, outputs, bias=False, quant_config=quantization, prefix="column")

    attn = nn.Module()
    attn.wq_b = column(sizes["query_rank"], heads * sizes["head_dim"])
    attn.wo_a = column(group_width, groups * sizes["output_rank"])
    attn.wo_b = linear.RowParallelLinear(
        groups * sizes["output_rank"], hidden, bias=False, quant_config=quantization, prefix="row"
    )
    attn.attn_sink = nn.Parameter(torch.full((sizes["kernel_heads"],), -float("inf")), requires_grad=False)
    ffn = nn.Module()
    ffn.shared_experts = deepseek.DeepseekV4MLP(
        hidden, config.moe_intermediate_size, "silu", swiglu_limit=10.0, quant_config=quantization, prefix="shared"
    )
    ffn.experts = nn.Module()
    ffn.experts.routed_experts, backend = make_experts(tp, rank, config.moe_intermediate_size, hidden)
    layer = nn.Module()
    layer.attn, layer.ffn = attn, ffn
    model = nn.Module()
    model.layers = nn.ModuleList([layer])
    padding = fragment.vocab_padding(64, tp)
    model.embed_tokens = VocabParallelEmbedding(
        config.vocab_size, 16, params_dtype=torch.bfloat16, padding_size=padding
    )
    model.config, model.quant_config, model.use_sequence_parallel = config, quantization, False
    model.use_mega_moe = False
    layer.ffn.use_mega_moe = False
    model.start_layer, model.end_layer = 0, 1
    model._pad_shared_expert_weight = deepseek.DeepseekV4Model._pad_shared_expert_weight
    model.get_expert_mapping = lambda: deepseek.DeepseekV4Model.get_expert_mapping(model)
    model.backend = backend
    outer = nn.Module()
    outer.model, outer.config = model, config
    return outer


def load(fragment, outer: nn.Module, sizes: dict, slicing: str) -> str:
    """Load through the engine's own loop; the text of the audit's complaint, "" where it has none."""
    from vllm.models.deepseek_v4.nvidia import model as deepseek

    config = outer.config
    stream = checkpoint(sizes)
    if slicing == "padded":
        stream = fragment.pad_stream(stream, outer)
    else:
        # Only the routed experts go unpadded: they are what loads without an error.
        stream = _records_only(fragment, stream, outer)
    mapper = deepseek._make_deepseek_v4_weights_mapper("fp4")
    inner = ((name.removeprefix("model."), tensor) for name, tensor in mapper.apply(stream))
    experts = outer.model.layers[0].ffn.experts.routed_experts
    with _blind(experts) if slicing == "blind" else _as_it_is():
        deepseek.DeepseekV4Model.load_weights(outer.model, inner)
    assert config is outer.config
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
def _as_it_is():
    yield


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
    plan = json.loads(arguments.plan.read_text())
    sizes, entry = plan["sizes"], plan["entry"]
    fragment = load_fragment(arguments.fragment)
    config = SimpleNamespace(
        num_attention_heads=entry["axes"]["attention_heads"][1],
        o_groups=entry["axes"]["output_groups"][1],
        moe_intermediate_size=entry["axes"]["routed_intermediate"][1],
        vocab_size=sizes["vocabulary"],
        n_routed_experts=EXPERTS,
        n_shared_experts=1,
        virtual_tp=entry,
    )
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.quantization import fp8

    engine = VllmConfig()
    dtype_only = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.bfloat16))
    torch.set_default_dtype(torch.bfloat16)
    source = dict(checkpoint(sizes))
    with (
        set_current_vllm_config(engine),
        mock.patch.object(fp8, "init_fp8_linear_kernel", lambda *_, **__: SimpleNamespace()),
        mock.patch.object(fp8, "get_current_vllm_config", lambda: _Either(dtype_only, engine)),
    ):
        found = {slicing: run(fragment, plan, config, source, slicing) for slicing in arguments.slicings}
    sys.stdout.write(json.dumps(found) + "\n")


def run(fragment, plan: dict, config: SimpleNamespace, source: dict, slicing: str) -> dict:
    """Load every rank: where each buffer was cut, what the audit says, and for the padded one the conversion."""
    sizes, tp = {**plan["sizes"], "kernel_heads": plan["kernel_heads"]}, plan["entry"]["tp_size"]
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


class _Either:
    """Attributes of the first object, else of the second."""

    def __init__(self, first: object, second: object) -> None:
        self._objects = (first, second)

    def __getattr__(self, name: str) -> object:
        for item in self._objects:
            if hasattr(item, name):
                return getattr(item, name)
        raise AttributeError(name)


if __name__ == "__main__":
    main()
