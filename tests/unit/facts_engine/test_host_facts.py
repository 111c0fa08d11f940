"""Facts of the host from the words of its tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.facts.host import links_outside, loose_paths, parse_gpus, parse_links, read_host

PAIRS = """\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity
GPU0\t X \tNV12\tPXB\tSYS\t0-31
GPU1\tNV12\t X \tSYS\tSYS\t0-31
GPU2\tPXB\tSYS\t X \tNV12\t32-63
GPU3\tSYS\tSYS\tNV12\t X \t32-63

Legend:
"""


def test_free_memory_is_read_beside_the_total() -> None:
    cards = parse_gpus("NVIDIA A100-SXM4-80GB, 8.0, 81920, 1024\n")
    assert cards is not None
    assert (cards[0].name, cards[0].memory_gib, cards[0].free_gib) == ("NVIDIA A100-SXM4-80GB", 80.0, 1.0)


def test_a_card_without_free_memory_still_reads() -> None:
    cards = parse_gpus("Card, with comma, 9.0, 81920\n")
    assert cards is not None
    assert (cards[0].name, cards[0].compute_capability, cards[0].free_gib) == ("Card, with comma", "9.0", None)


@pytest.mark.parametrize("text", ["nonsense\n", "A, 8.0, [N/A], [N/A]\n"])
def test_a_line_that_does_not_read_makes_the_cards_unknown(text: str) -> None:
    assert parse_gpus(text) is None


def test_links_of_a_matrix() -> None:
    assert parse_links(PAIRS) == "pairs"
    assert parse_links(PAIRS.replace("PXB", "NV4").replace("SYS", "NV4")) == "all"
    assert parse_links(PAIRS.replace("NV12", "PHB")) == "pcie"
    assert parse_links("\tGPU0\nGPU0\t X \n") is None


def test_an_overlay_that_others_may_write_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    (tmp_path / "a.py").chmod(0o664)
    (tmp_path / "b.py").write_text("")
    (tmp_path / "b.py").chmod(0o644)
    tmp_path.chmod(0o755)
    assert loose_paths(tmp_path) == (str(tmp_path / "a.py"),)


def test_only_links_that_leave_the_folder_are_found(tmp_path: Path) -> None:
    inside, other = tmp_path / "m", tmp_path / "other"
    inside.mkdir()
    other.mkdir()
    (inside / "own").mkdir()
    (inside / "near").symlink_to(inside / "own")
    (inside / "far").symlink_to(other)
    assert links_outside(inside) == ((str(inside / "far"), str(other)),)


def test_a_port_in_use_is_seen(free_port: int, tmp_path: Path) -> None:
    import socket

    assert read_host(tmp_path, free_port).listening == ()
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port))
        server.listen()
        assert read_host(tmp_path, free_port).listening == (free_port,)
