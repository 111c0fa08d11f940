"""Which cards of the host a layout chooses, by their numbers on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.gates.devices import chosen_cards
from tests.unit.helpers import BASE, request_for


@pytest.mark.parametrize(
    ("keys", "cards"),
    [
        ("", None),
        ("container: {gpus: all}\n", None),
        ("container: {gpus: '2'}\n", (0, 1)),
        ("container: {gpus: 'device=2'}\n", (2,)),
        ("container: {gpus: '\"device=2,3\"'}\n", (2, 3)),
        ("container: {gpus: 'device=GPU-7f'}\n", None),
        ("container: {gpus: '\"device=4,5,6\"'}\nenv: {CUDA_VISIBLE_DEVICES: '2,0'}\n", (6, 4)),
        ("container: {gpus: '\"device=4,5\"'}\nenv: {CUDA_VISIBLE_DEVICES: '0,2'}\n", (4,)),
        ("container: {gpus: all}\nenv: {CUDA_VISIBLE_DEVICES: '1,3'}\n", (1, 3)),
        ("container: {gpus: all}\nserve: {device_ids: '1,2'}\n", (1, 2)),
        ("container: {gpus: null}\nenv: {NVIDIA_VISIBLE_DEVICES: '4,5'}\n", (4, 5)),
        ("runtime: local\nengine: {vllm: '0.30.0'}\nenv: {CUDA_VISIBLE_DEVICES: 'GPU-7f'}\n", None),
    ],
)
def test_a_container_chooses_among_the_cards_that_it_was_given(
    tmp_path: Path, keys: str, cards: tuple[int, ...] | None
) -> None:
    base = "\n".join(line for line in BASE.splitlines() if "engine:" not in keys or not line.startswith("engine:"))
    assert chosen_cards(request_for(tmp_path, f"{base}\n{keys}").deployment) == cards


def test_an_absurd_count_of_cards_is_not_spelled_out(tmp_path: Path) -> None:
    cards = chosen_cards(request_for(tmp_path, f"{BASE}\ncontainer: {{gpus: '99999999999'}}\n").deployment)
    assert cards is not None
    assert len(cards) <= 1000
