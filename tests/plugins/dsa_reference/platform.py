"""The CPU platform, with a backend for sparse attention and without the rotary kernel that is wrong for it."""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform

_NATIVE_ROTARY = "-rotary_embedding"


class ReferencePlatform(CpuPlatform):
    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, attn_selector_config: Any, num_heads: Any = None) -> str:
        if attn_selector_config.use_sparse:
            return "dsa_reference.backend.ReferenceBackend"
        return str(super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads))

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        super().check_and_update_config(vllm_config)
        parallel, compilation = vllm_config.parallel_config, vllm_config.compilation_config
        if parallel.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker":
            parallel.worker_cls = "dsa_reference.worker.ReferenceWorker"
        # The CPU kernel reads a three-dimensional query with the wrong strides, which is what MLA passes. Two engines
        # that share the fault agree with each other, so it must not be there when they are compared.
        if _NATIVE_ROTARY not in compilation.custom_ops:
            compilation.custom_ops.append(_NATIVE_ROTARY)
