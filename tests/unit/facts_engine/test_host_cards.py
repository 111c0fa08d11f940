"""The cards of this host as the driver's library reports them: its answers on one H200, and made-up neighbours."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from shardwright.facts import nvml
from shardwright.facts.host import Cards, Gpu
from shardwright.facts.nvml import read_cards, read_nvml

# Recorded with driver 580.159.04; nvidia-smi said "NVIDIA H200, 9.0, 143771, 143156" at the same moment.
H200 = SimpleNamespace(
    name="NVIDIA H200", capability=(9, 0), memory=SimpleNamespace(total=150754820096, free=150109880320)
)
NVLINK, OK, CHIPSET = 2, 0, 1


class Nvml:
    """The functions of the library's package that are used, over recorded cards.

    `statuses`: what peer-to-peer over NVLink comes to for a pair of cards; an exception is raised.
    """

    NVML_P2P_CAPS_INDEX_NVLINK = NVLINK
    NVML_P2P_STATUS_OK = OK

    class NVMLError(Exception):
        pass

    def __init__(self, *cards: Any, statuses: Mapping[tuple[int, int], Any] | None = None, driver: Any = "1.2") -> None:
        self._cards, self._statuses, self._driver = cards, statuses or {}, driver
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int) -> Any:  # noqa: N802
        return self._cards[handle].name

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> Any:  # noqa: N802
        return self._cards[handle].capability

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        if isinstance(self._cards[handle].memory, Exception):
            raise self._cards[handle].memory
        return self._cards[handle].memory

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802
        return self._driver

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, index: int) -> int:  # noqa: N802
        assert index == NVLINK
        status = self._statuses.get((one, other), CHIPSET)
        if isinstance(status, Exception):
            raise status
        return int(status)


@pytest.fixture(autouse=True)
def _no_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "read_gpus", lambda: None)
    monkeypatch.setattr(nvml, "read_links", lambda: None)


def use(monkeypatch: pytest.MonkeyPatch, library: Nvml) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def test_the_stand_in_has_nothing_that_the_package_does_not_have() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = [name for name in vars(Nvml) if name.lower().startswith("nvml")]
    assert len(names) > 8
    assert [name for name in names if not hasattr(pynvml, name)] == []
    assert (pynvml.NVML_P2P_CAPS_INDEX_NVLINK, pynvml.NVML_P2P_STATUS_OK) == (NVLINK, OK)


def test_one_card_reads_as_the_tool_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = use(monkeypatch, Nvml(H200, driver="580.159.04"))
    cards = read_nvml()
    assert cards is not None and cards.gpus is not None
    (card,) = cards.gpus
    assert (card.name, card.compute_capability) == ("NVIDIA H200", "9.0")
    assert (round(card.memory_gib * 1024), round((card.free_gib or 0) * 1024)) == (143771, 143156)
    assert (cards.links, cards.driver) == (None, "580.159.04")
    assert library.open == 0


def test_texts_that_come_as_bytes_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(**{**vars(H200), "name": b"NVIDIA H200"})
    use(monkeypatch, Nvml(old, driver=b"470.1"))
    cards = read_nvml()
    assert cards is not None and cards.gpus is not None
    assert (cards.gpus[0].name, cards.driver) == ("NVIDIA H200", "470.1")


@pytest.mark.parametrize(
    ("joined", "links"),
    [
        ([(0, 1), (0, 2), (1, 2)], "all"),
        ([(0, 1)], "pairs"),
        ([(1, 2)], "pairs"),
        ([], "pcie"),
    ],
)
def test_links_are_asked_pair_by_pair(
    monkeypatch: pytest.MonkeyPatch, joined: list[tuple[int, int]], links: str
) -> None:
    use(monkeypatch, Nvml(H200, H200, H200, statuses=dict.fromkeys(joined, OK)))
    cards = read_nvml()
    assert cards is not None and cards.links == links


def test_where_the_library_does_not_know_the_links_the_tool_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Nvml(H200, H200, statuses={(0, 1): Nvml.NVMLError("not supported")}))
    monkeypatch.setattr(nvml, "read_links", lambda: "pcie")
    cards = read_cards()
    assert cards.links == "pcie" and cards.gpus is not None and len(cards.gpus) == 2


def test_no_cards_is_known_and_not_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Nvml())
    cards = read_nvml()
    assert cards is not None and cards.gpus == ()


def test_without_the_library_the_tool_is_asked_and_without_both_the_cards_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_library() -> None:
        raise Nvml.NVMLError("library not found")

    monkeypatch.setattr(use(monkeypatch, Nvml(H200)), "nvmlInit", no_library)
    assert read_cards() == Cards()
    card = Gpu("Card", "8.0", 80.0)
    monkeypatch.setattr(nvml, "read_gpus", lambda: (card,))
    assert read_cards() == Cards((card,))


def test_a_card_that_does_not_tell_its_memory_leaves_the_tool_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SimpleNamespace(**{**vars(H200), "memory": Nvml.NVMLError("not supported")})
    library = use(monkeypatch, Nvml(shared))
    assert read_nvml() is None
    assert library.open == 0
