"""The indexer: keys cached in FP8 with power-of-two scales as on the GPU, scored in plain torch."""

from __future__ import annotations

import sys
from typing import Any

import torch

_LARGEST_E4M3 = 448.0


def quantise(x: torch.Tensor, group_size: int, **_ignored: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 values and their scales, one power of two for each group of the last axis."""
    groups = x.float().reshape(*x.shape[:-1], x.shape[-1] // group_size, group_size)
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10)
    scales = torch.exp2(torch.ceil(torch.log2(largest / _LARGEST_E4M3)))
    values = (groups / scales).clamp(-_LARGEST_E4M3, _LARGEST_E4M3).to(torch.float8_e4m3fn)
    return values.reshape(x.shape), scales.squeeze(-1)


def install() -> None:
    """Put the reference in the place of the engine's indexer op and its cache's metadata builder."""
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends.mla.indexer import DeepseekV32IndexerBackend

    from dsa_reference.backend import ReferenceBuilder

    if getattr(DeepseekV32IndexerBackend, "_dsa_reference", False):
        return
    DeepseekV32IndexerBackend._dsa_reference = True
    DeepseekV32IndexerBackend.get_builder_cls = staticmethod(lambda: ReferenceBuilder)
    DeepseekV32IndexerBackend.get_supported_kernel_block_sizes = staticmethod(lambda: [MultipleOf(1)])

    class ReferenceIndexer(SparseAttnIndexer):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            # The model quantises the query itself, by a function that only GPUs have.
            sys.modules["vllm.model_executor.models.deepseek_v2"].per_token_group_quant_fp8 = quantise

        def forward_native(self, hidden_states: Any, q_quant: Any, k: Any, weights: Any) -> torch.Tensor:
            return _index(self, hidden_states, q_quant, k, weights)

        forward_cpu = forward_native

    CustomOp.register_oot(ReferenceIndexer, name="SparseAttnIndexer")


def _index(op: Any, hidden_states: Any, q_quant: Any, k: Any, weights: Any) -> torch.Tensor:
    from vllm.forward_context import get_forward_context

    buffer = op.topk_indices_buffer
    steps = get_forward_context().attn_metadata
    if not isinstance(steps, dict):
        return buffer
    meta, cache = steps[op.k_cache.prefix], op.k_cache.kv_cache
    _store_keys(cache, k[: meta.num_actual_tokens], meta.slot_mapping, op.head_dim)
    buffer[: hidden_states.shape[0]] = -1
    for request in range(meta.seq_lens.shape[0]):
        first, last = int(meta.query_starts[request]), int(meta.query_starts[request + 1])
        if first == last:
            continue
        positions = torch.arange(int(meta.seq_lens[request]))
        keys = _read_keys(cache, positions, meta.block_table[request], op.head_dim)
        # The scale of the query is part of the weights.
        scores = torch.einsum("thd,nd->thn", q_quant[first:last].float(), keys).relu_()
        scores = torch.einsum("th,thn->tn", weights[first:last].float(), scores)
        scores.masked_fill_(positions[None] > meta.position_of_token[first:last, None], float("-inf"))
        wanted = min(op.topk_tokens, len(positions))
        best, where = scores.topk(wanted, dim=-1)
        buffer[first:last, :wanted] = torch.where(torch.isinf(best), -1, where).to(buffer.dtype)
    return buffer


def _store_keys(cache: torch.Tensor, keys: torch.Tensor, slot_mapping: torch.Tensor, head_dim: int) -> None:
    values, scales = quantise(keys, head_dim)
    slots = slot_mapping.flatten().to(torch.long)[: keys.shape[0]]
    used, block_size = slots >= 0, cache.shape[1]
    scale_bytes = scales.reshape(-1, 1).contiguous().view(torch.uint8)
    rows = torch.cat([values.view(torch.uint8), scale_bytes], dim=-1)
    cache[slots[used] // block_size, slots[used] % block_size] = rows[used]


def _read_keys(cache: torch.Tensor, positions: torch.Tensor, block_table: torch.Tensor, head_dim: int) -> torch.Tensor:
    block_size = cache.shape[1]
    rows = cache[block_table.to(torch.long)[positions // block_size], positions % block_size]
    values = rows[:, :head_dim].contiguous().view(torch.float8_e4m3fn).float()
    return values * rows[:, head_dim:].contiguous().view(torch.float32)
