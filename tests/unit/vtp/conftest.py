"""A stand-in for the engine's own modules, which the patch asks for its rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture
def stub_vllm(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Makes `vllm.distributed` answer with a tensor parallel rank and size, on the first of one pipeline stage."""

    def install(rank: int, size: int) -> None:
        distributed = ModuleType("vllm.distributed")
        distributed.get_tensor_model_parallel_rank = lambda: rank
        distributed.get_tensor_model_parallel_world_size = lambda: size
        distributed.get_pp_group = lambda: SimpleNamespace(rank_in_group=0)
        monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
        monkeypatch.setitem(sys.modules, "vllm.distributed", distributed)

    return install
