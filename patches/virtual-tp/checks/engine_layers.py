"""DeepSeek-V4's layers from the engine's own classes, for any rank, on a CPU and without a running engine."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import torch
from position_coded import BLOCK, EXPERTS
from torch import nn


@contextmanager
def engine():
    """What the engine's classes ask for while they are made, without a running engine and without its kernels."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.quantization import fp8 as engine_fp8

    config = VllmConfig()
    dtype_only = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.bfloat16))
    torch.set_default_dtype(torch.bfloat16)
    with (
        set_current_vllm_config(config),
        mock.patch.object(engine_fp8, "init_fp8_linear_kernel", lambda *_, **__: SimpleNamespace()),
        mock.patch.object(engine_fp8, "get_current_vllm_config", lambda: _Either(dtype_only, config)),
    ):
        yield


@contextmanager
def as_rank(rank: int, tp: int):
    """Every place where this engine asks for its tensor parallel rank and size answers with these, on one stage."""
    import vllm.distributed as distributed
    import vllm.model_executor.layers.linear as linear
    import vllm.model_executor.layers.quantization.utils.fp8_utils as fp8_utils
    import vllm.model_executor.layers.vocab_parallel_embedding as vocabulary
    import vllm.model_executor.parameter as parameter
    from vllm.models.deepseek_v4.nvidia import dspark
    from vllm.models.deepseek_v4.nvidia import model as deepseek

    getters = {
        "get_tensor_model_parallel_rank": lambda: rank,
        "get_tensor_model_parallel_world_size": lambda: tp,
        "get_pp_group": lambda: SimpleNamespace(rank_in_group=0),
    }
    places = [distributed, linear, vocabulary, parameter, deepseek, dspark, fp8_utils]
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


def padded_config(plan: dict) -> SimpleNamespace:
    """The model's config as a sidecar pads it, in so far as loading asks for it."""
    sizes, entry = plan["sizes"], plan["entry"]
    return SimpleNamespace(
        num_attention_heads=entry["axes"]["attention_heads"][1],
        o_groups=entry["axes"]["output_groups"][1],
        moe_intermediate_size=entry["axes"]["routed_intermediate"][1],
        vocab_size=sizes["vocabulary"],
        n_routed_experts=EXPERTS,
        n_shared_experts=1,
        virtual_tp=entry,
    )


def fp8():
    """Block-FP8 linears, as the checkpoint announces them."""
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config

    return Fp8Config(is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", weight_block_size=[BLOCK, BLOCK])


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


def make_layer(sizes: dict, config, tp: int, rank: int, quantization) -> nn.Module:
    """One decoder layer as the model names it, from the engine's own classes at their padded sizes."""
    import vllm.model_executor.layers.linear as linear
    from vllm.models.deepseek_v4.nvidia import model as deepseek

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
    ffn.experts.routed_experts, ffn.backend = make_experts(tp, rank, config.moe_intermediate_size, hidden)
    layer = nn.Module()
    layer.attn, layer.ffn = attn, ffn
    ffn.use_mega_moe = False
    return layer


def make_model(fragment, sizes: dict, config, tp: int, rank: int) -> nn.Module:
    """The model around one layer as `DeepseekV4ForCausalLM` names it."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.models.deepseek_v4.nvidia import model as deepseek

    quantization = fp8()
    layer = make_layer(sizes, config, tp, rank, quantization)
    model = nn.Module()
    model.layers = nn.ModuleList([layer])
    padding = fragment.vocab_padding(64, tp)
    model.embed_tokens = VocabParallelEmbedding(
        config.vocab_size, 16, params_dtype=torch.bfloat16, padding_size=padding
    )
    model.config, model.quant_config, model.use_sequence_parallel = config, quantization, False
    model.use_mega_moe = False
    model.start_layer, model.end_layer = 0, 1
    model._pad_shared_expert_weight = deepseek.DeepseekV4Model._pad_shared_expert_weight
    model.get_expert_mapping = lambda: deepseek.DeepseekV4Model.get_expert_mapping(model)
    model.backend = layer.ffn.backend
    outer = nn.Module()
    outer.model, outer.config = model, config
    return outer


class _Either:
    """Attributes of the first object, else of the second."""

    def __init__(self, first: object, second: object) -> None:
        self._objects = (first, second)

    def __getattr__(self, name: str) -> object:
        for item in self._objects:
            if hasattr(item, name):
                return getattr(item, name)
        raise AttributeError(name)
