"""The cards of a real host: the driver's library and its tool say the same, and memory that is taken is seen."""

from __future__ import annotations

import re

import pytest

from shardwright.campaign.card_memory import card_memory
from shardwright.facts.host import read_gpus, read_links
from shardwright.facts.nvml import read_nvml

pytestmark = pytest.mark.gpu

_TAKEN_GIB = 4


def _torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")
    return torch


def test_the_library_and_the_tool_agree_on_every_card():
    torch = _torch()
    library, by_tool = read_nvml(), read_gpus()
    assert library is not None
    assert library.gpus is not None
    assert by_tool is not None
    assert [(gpu.name, gpu.compute_capability) for gpu in library.gpus] == [
        (gpu.name, gpu.compute_capability) for gpu in by_tool
    ]
    assert [gpu.memory_gib for gpu in library.gpus] == pytest.approx([gpu.memory_gib for gpu in by_tool], abs=0.01)
    assert [gpu.free_gib for gpu in library.gpus] == pytest.approx([gpu.free_gib for gpu in by_tool], abs=1)
    assert library.links == read_links()
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)+", library.driver or "")
    assert library.gpus[0].compute_capability == ".".join(map(str, torch.cuda.get_device_capability(0)))


def test_memory_that_an_engine_takes_shows_in_its_card():
    torch = _torch()
    torch.cuda.init()
    torch.zeros(1, device="cuda:0")

    def used_gib() -> float:
        cards = read_nvml()
        assert cards is not None
        return card_memory(cards.gpus or ())[0].used_gib

    before = used_gib()
    taken = torch.zeros(_TAKEN_GIB << 30, dtype=torch.uint8, device="cuda:0")
    assert used_gib() - before == pytest.approx(_TAKEN_GIB, abs=0.5)
    del taken
