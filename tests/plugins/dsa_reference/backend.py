"""Sparse attention over the shared index buffer; every token, prompt or answer, takes the top-k path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention.sparse_mla_attention import SharedTopkIndicesBuffer
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    MLAAttentionImpl,
    MultipleOf,
)


class ReferenceBackend(AttentionBackend):
    supported_dtypes: ClassVar = [torch.float32, torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar = ["auto"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type:
        return ReferenceAttention

    @staticmethod
    def get_builder_cls() -> type:
        return ReferenceBuilder

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [MultipleOf(1)]


@dataclass
class ReferenceMetadata(AttentionMetadata):
    """One step. `request_of_token`, `position_of_token`: [tokens]; `query_starts`: [requests + 1]."""

    num_actual_tokens: int
    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_starts: torch.Tensor
    request_of_token: torch.Tensor
    position_of_token: torch.Tensor
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int = 0


class ReferenceBuilder(AttentionMetadataBuilder):
    _cudagraph_support: ClassVar = AttentionCGSupport.NEVER

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any, **_ignored: Any) -> None:
        self.kv_cache_spec, self.layer_names = kv_cache_spec, layer_names
        self.vllm_config, self.device = vllm_config, device

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> ReferenceMetadata:
        common = common_attn_metadata
        starts = common.query_start_loc_cpu[: common.num_reqs + 1].to(torch.long)
        lengths = starts[1:] - starts[:-1]
        request = torch.repeat_interleave(torch.arange(common.num_reqs), lengths)
        seq_lens = common.seq_lens[: common.num_reqs].to("cpu", torch.long)
        in_query = torch.arange(int(lengths.sum())) - starts[:-1][request]
        return ReferenceMetadata(
            num_actual_tokens=common.num_actual_tokens,
            slot_mapping=common.slot_mapping,
            block_table=common.block_table_tensor,
            seq_lens=seq_lens,
            query_starts=starts,
            request_of_token=request,
            position_of_token=(seq_lens - lengths)[request] + in_query,
            num_decodes=common.num_reqs,
            num_decode_tokens=common.num_actual_tokens,
        )


class ReferenceAttention(MLAAttentionImpl, SharedTopkIndicesBuffer):
    is_sparse = True
    supports_dense_mha_prefill = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: Any,
        sliding_window: Any,
        kv_cache_dtype: str,
        logits_soft_cap: Any,
        attn_type: Any,
        kv_sharing_target_layer_name: Any,
        topk_indices_buffer: Any = None,
        indexer: Any = None,
        **mla: Any,
    ) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads, kv_cache_dtype
        self.kv_lora_rank = mla["kv_lora_rank"]
        self.init_topk_indices_buffer(indexer, topk_indices_buffer)

    def record_logical_topk_ready(self) -> None:
        """Called for every sparse layer; there is no second stream to tell."""

    def do_kv_cache_update(
        self, kv_c_normed: Any, k_pe: Any, kv_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any
    ) -> None:
        if kv_cache.numel() == 0:
            return
        slots = slot_mapping.flatten().to(torch.long)
        used = slots >= 0
        rows = torch.cat([kv_c_normed, k_pe.reshape(kv_c_normed.shape[0], -1)], dim=-1)[: slots.shape[0]][used]
        block_size = kv_cache.shape[1]
        kv_cache[slots[used] // block_size, slots[used] % block_size] = rows.to(kv_cache.dtype)

    def forward_mqa(self, q: Any, kv_cache: Any, meta: ReferenceMetadata, layer: Any) -> tuple[Any, None]:
        """`q`: [tokens, heads, latent + rope], or its two parts. Index rows hold positions within the request."""
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        positions = self.topk_indices_buffer[: query.shape[0]].to(torch.long)
        block_size, width = kv_cache.shape[1], meta.block_table.shape[1]
        block = torch.div(positions, block_size, rounding_mode="floor")
        # The rule of the GPU's index conversion: what points outside the request's blocks is masked, not an error.
        valid = (positions >= 0) & (block < width)
        table = meta.block_table.to(torch.long)[meta.request_of_token]
        physical = torch.gather(table, 1, block.clamp(0, width - 1))
        rows = kv_cache[physical, positions.clamp(min=0) % block_size].to(torch.float32)
        scores = torch.einsum("tnd,tkd->tnk", query.float(), rows) * self.scale
        scores = scores.masked_fill(~valid[:, None, :], float("-inf"))
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
        output = torch.einsum("tnk,tkd->tnd", weights, rows[..., : self.kv_lora_rank])
        return output.to(query.dtype).contiguous(), None
