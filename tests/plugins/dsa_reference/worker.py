"""The CPU worker, with the input buffers that a later stage lacks in eager mode, and memory that was used before."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from vllm.distributed import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker

USED_MEMORY_ENV = "DSA_REFERENCE_USED_MEMORY"
"""Seed of what memory holds before anything is written to it, or `any` for another one in each process. A fresh process
is often given zeros, one whose allocator has been at work is not; what a model reads without having written it shows
only in the second."""


class ReferenceWorker(CPUWorker):
    def load_model(self, *arguments: Any, **settings: Any) -> Any:
        seed = os.environ.get(USED_MEMORY_ENV)
        with used_memory(time.time_ns() if seed == "any" else int(seed)) if seed else nullcontext():
            return super().load_model(*arguments, **settings)

    def compile_or_warm_up_model(self) -> Any:
        result = super().compile_or_warm_up_model()
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        return result


@contextmanager
def used_memory(seed: int) -> Iterator[None]:
    """Within it `torch.empty` returns what it promises: any values at all, and others for another seed."""
    draw, empty = torch.Generator().manual_seed(seed), torch.empty

    def used(*sizes: Any, **settings: Any) -> torch.Tensor:
        made = empty(*sizes, **settings)
        if made.device.type == "cpu" and made.is_floating_point():
            made.copy_(torch.randn(made.shape, generator=draw, dtype=torch.float32, device="cpu"))
        return made

    torch.empty = used
    try:
        yield
    finally:
        torch.empty = empty
