"""The CPU worker, with the input buffers that a later stage lacks in eager mode, and memory that was used before."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker

USED_MEMORY_ENV = "DSA_REFERENCE_USED_MEMORY"
"""Seed of what the memory holds before the model is loaded. A fresh process is often given zeros, one whose allocator
has been at work is not; what a model reads without having written it shows only in the second."""

_INDEXER_WEIGHT_SIZES = (2048 * 64, 144 * 128)
_BLOCKS_OF_EACH = 48


class ReferenceWorker(CPUWorker):
    def load_model(self, *arguments: Any, **settings: Any) -> Any:
        if seed := os.environ.get(USED_MEMORY_ENV):
            self._kept = leave_used_memory(int(seed))
        return super().load_model(*arguments, **settings)

    def compile_or_warm_up_model(self) -> Any:
        result = super().compile_or_warm_up_model()
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        return result


def leave_used_memory(seed: int) -> list[torch.Tensor]:
    """Fill and free blocks of the sizes that an indexer's weights have. What is returned keeps them from the system."""
    draw = torch.Generator().manual_seed(seed)
    kept = []
    for size in _INDEXER_WEIGHT_SIZES:
        blocks = []
        for _block in range(_BLOCKS_OF_EACH):
            blocks.append(torch.randn(size, generator=draw))
            kept.append(torch.ones(1024))
        del blocks
    return kept
