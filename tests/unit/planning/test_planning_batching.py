from __future__ import annotations

from typing import Any

import pytest

from shardwright.plan.batching import BatchSettings, batched_tokens


def tokens(**changes: Any) -> int:
    given: dict[str, Any] = {"version": "0.30.0", "platform": "cuda", "world_size": 8, "card_gib": 79.25}
    return batched_tokens(BatchSettings(**{**given, "card_name": "", "compute_capability": "", **changes}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 8192),
        ({"card_name": "NVIDIA A100-SXM4-80GB"}, 2048),
        ({"compute_capability": "8.0"}, 2048),
        ({"card_name": "NVIDIA A800-SXM4-80GB", "compute_capability": "8.0"}, 8192),
        ({"card_gib": 69.9}, 2048),
        ({"card_gib": 70.0}, 8192),
        ({"card_gib": 159.9}, 8192),
        ({"card_gib": 160.0}, 16384),
        ({"card_gib": 119.0, "compute_capability": "12.1"}, 8192),
        ({"card_gib": 119.0, "compute_capability": "12.1", "version": "0.32.1"}, 8192),
        ({"card_gib": 119.0, "compute_capability": "12.1", "version": "0.33.0"}, 2048),
        ({"card_gib": 0.0}, 2048),
        ({"platform": "cpu", "world_size": 2}, 4096),
        ({"asked": 512, "throughput_mode": True}, 512),
        ({"throughput_mode": True}, 16384),
        ({"max_model_len": 4}, 4096),
        ({"max_model_len": 4, "card_gib": 180.0}, 4096),
        ({"max_model_len": 4, "card_gib": 24.0}, 1024),
        ({"max_model_len": 4, "platform": "cpu", "world_size": 2}, 1024),
        ({"max_model_len": 4, "throughput_mode": True}, 8192),
        ({"max_model_len": 4, "max_num_seqs": 3}, 12),
        ({"max_model_len": 100_000}, 8192),
        ({"max_model_len": 100_000, "chunked_prefill": False}, 100_000),
        ({"max_model_len": 100, "chunked_prefill": False}, 8192),
    ],
)
def test_the_engines_default_table(changes: dict[str, Any], expected: int) -> None:
    assert tokens(**changes) == expected
