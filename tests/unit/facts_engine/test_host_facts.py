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
    assert loose_paths(tmp_path / "a.py") == (str(tmp_path / "a.py"),)
    assert loose_paths(tmp_path / "b.py") == loose_paths(tmp_path / "c.py") == ()


def test_only_links_that_leave_the_folder_are_found(tmp_path: Path) -> None:
    inside, other = tmp_path / "m", tmp_path / "other"
    inside.mkdir()
    other.mkdir()
    (inside / "own").mkdir()
    (inside / "near").symlink_to(inside / "own")
    (inside / "far").symlink_to(other)
    (inside / "up").symlink_to("../other")
    assert links_outside(inside) == ((str(inside / "far"), str(other)), (str(inside / "up"), "../other"))


def test_a_port_in_use_is_seen(free_port: int, tmp_path: Path) -> None:
    import socket

    assert read_host([tmp_path], free_port).listening == ()
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port))
        server.listen()
        assert read_host([tmp_path], free_port).listening == (free_port,)


def test_the_fullest_disk_counts_also_where_its_folder_is_still_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from shardwright.facts import host

    (tmp_path / "small").mkdir()
    real = os.statvfs

    def statvfs(path: str | Path) -> os.statvfs_result:
        found = list(real(path))
        found[1], found[4] = 1 << 20, 3 * 1024 if Path(path).name == "small" else 7 * 1024
        return os.statvfs_result(found)

    monkeypatch.setattr(host.os, "statvfs", statvfs)
    assert read_host([tmp_path], None).disk_free_gib == 7.0
    assert read_host([tmp_path, tmp_path / "small" / "not" / "yet"], None).disk_free_gib == 3.0
    assert read_host([], None).disk_free_gib is None


def test_shared_memory_is_counted_whole_and_unknown_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardwright.facts import host

    found = read_host([tmp_path], None).shm_gib
    assert found is None or found > 0

    def absent(path: str | Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(host.os, "statvfs", absent)
    nothing = read_host([tmp_path], None)
    assert (nothing.shm_gib, nothing.disk_free_gib) == (None, None)


@pytest.mark.parametrize(
    ("files", "driver", "selinux"),
    [
        ({}, None, None),
        ({"/sys/module/nvidia/version": "580.159.04\n"}, "580.159.04", None),
        ({"/sys/fs/selinux/enforce": "1"}, None, "enforcing"),
        ({"/sys/fs/selinux/enforce": "0"}, None, "permissive"),
    ],
)
def test_driver_and_selinux_are_read_from_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], driver: str | None, selinux: str | None
) -> None:
    from shardwright.facts import host

    monkeypatch.setattr(host, "_text", lambda path: files.get(str(path)))
    found = read_host([tmp_path], None)
    assert (found.driver, found.selinux) == (driver, selinux)
    assert read_host([tmp_path], None, "of the library").driver == "of the library"
