"""The comparison of two plain descriptions: each kind of difference is found, and what is equal or unknown is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.runtime.description import Description, FileState, MountedFrom, value_digest
from shardwright.runtime.differences import Difference, differences

SECRET = "planted-secret-19ab"
STARTED = 1000.0
BASE = Description(
    image="sha256:one",
    image_name="engine:1",
    argv=("vllm", "serve", "/model", "--max-model-len", "4096", "--enforce-eager"),
    env={"NCCL_DEBUG": value_digest("WARN")},
    mounts={"/model": MountedFrom("bind", "/data/model", True)},
    options={"ipc": "private"},
    started_at=STARTED,
)


def found(running: Description, wanted: Description) -> dict[str, Difference]:
    return {difference.path: difference for difference in differences(running, wanted, "demo")}


def test_the_same_twice_has_no_difference() -> None:
    assert differences(BASE, replace(BASE, started_at=0.0), "demo") == ()


@pytest.mark.parametrize(
    ("changes", "path", "running", "wanted"),
    [
        ({"image": "sha256:two"}, "image", "sha256:one", "sha256:two"),
        ({"env": {"NCCL_DEBUG": value_digest("INFO")}}, "env.NCCL_DEBUG", value_digest("WARN"), value_digest("INFO")),
        ({"env": {}}, "env.NCCL_DEBUG", value_digest("WARN"), "unset"),
        ({"mounts": {}}, "mounts./model", "bind /data/model (read-only)", "absent"),
        (
            {"mounts": {"/model": MountedFrom("bind", "/data/model", False)}},
            "mounts./model",
            "bind /data/model (read-only)",
            "bind /data/model",
        ),
        ({"options": {"ipc": "host"}}, "container.ipc", "private", "host"),
        ({"options": {}}, "container.ipc", "private", "absent"),
        (
            {"argv": ("vllm", "serve", "/model", "--max-model-len", "8192", "--enforce-eager")},
            "argv.--max-model-len",
            "--max-model-len 4096",
            "--max-model-len 8192",
        ),
        (
            {"argv": ("vllm", "serve", "/model", "--max-model-len", "4096")},
            "argv.--enforce-eager",
            "--enforce-eager",
            "absent",
        ),
        (
            {"argv": ("vllm", "serve", "/other", "--max-model-len", "4096", "--enforce-eager")},
            "argv",
            "vllm serve /model",
            "vllm serve /other",
        ),
        (
            {"argv": ("vllm", "serve", "/model", "--enforce-eager", "--max-model-len", "4096")},
            "argv",
            "in another order",
            "as deploy cmd prints it",
        ),
    ],
)
def test_each_change_is_one_difference_with_its_path(
    changes: dict[str, Any], path: str, running: str, wanted: str
) -> None:
    (difference,) = differences(BASE, replace(BASE, **changes), "demo")
    assert (difference.path, difference.running, difference.wanted) == (path, running, wanted)
    assert "deploy stop demo" in difference.fix
    (back,) = differences(replace(BASE, **changes), BASE, "demo")
    assert back.path == path
    if running != "in another order":
        assert (back.running, back.wanted) == (wanted, running)


def test_an_image_that_is_gone_hides_no_other_difference_and_makes_none_up() -> None:
    running = replace(BASE, env={**BASE.env, "PATH": value_digest("/bin")})
    wanted = replace(BASE, image="", argv=(), env={"NCCL_DEBUG": value_digest("INFO")})
    assert set(found(running, wanted)) == {"image", "env.NCCL_DEBUG"}
    assert found(running, wanted)["image"].fix == "docker pull engine:1"


def test_a_local_engine_without_images_has_its_variables_compared_both_ways() -> None:
    running, wanted = replace(BASE, image=""), replace(BASE, image="", env={})
    assert set(found(running, wanted)) == {"env.NCCL_DEBUG"}


@pytest.mark.parametrize(
    "argv",
    [
        ("vllm", "serve", "--api-key", SECRET),
        ("vllm", "serve", "--api-key", "first", SECRET),
        ("vllm", "serve", f"--api-key={SECRET}"),
        ("vllm", "serve", f"--hf-token={SECRET}"),
        ("vllm", "serve", "--some-password", SECRET, "--port", "1"),
        ("vllm", "serve", "hf_abcdefghijklmnopqrstuvwxyz0123"),
        ("vllm", "serve", "--header=hf_abcdefghijklmnopqrstuvwxyz0123"),
    ],
)
def test_a_secret_in_a_command_line_is_seen_and_not_shown(argv: tuple[str, ...]) -> None:
    shown = str(differences(replace(BASE, argv=argv), BASE, "demo"))
    assert "sha256:" in shown
    assert SECRET not in shown and "hf_abc" not in shown


def test_only_what_may_be_a_secret_is_hidden() -> None:
    words = ("vllm", "serve", "--max-model-len=4096", "--api-key", SECRET, "--port", "1")
    rows = found(replace(BASE, argv=words), replace(BASE, argv=("vllm", "serve")))
    assert {path: row.running for path, row in rows.items()} == {
        "argv.--max-model-len": "--max-model-len=4096",
        "argv.--api-key": f"--api-key {value_digest(SECRET)}",
        "argv.--port": "--port 1",
    }


@given(st.text(min_size=8))
def test_no_digest_holds_its_value(value: str) -> None:
    assert value not in value_digest(value)
    assert value_digest(value) != value_digest(value + "x")


PATH = "/usr/lib/vllm/a.py"
MOUNT = {PATH: MountedFrom("bind", "/overlays/a.py", True)}


def file_difference(inside: FileState, now: FileState | None, **running: Any) -> Difference | None:
    """The one about the file, of an engine that started at 1000 s."""
    description = Description(mounts=MOUNT, files={PATH: inside}, started_at=STARTED)
    wanted = Description(mounts=MOUNT, files={} if now is None else {PATH: now})
    rows = found(replace(description, **running), wanted)
    return rows.get(f"files.{PATH}")


def test_a_replaced_host_file_makes_the_running_one_older() -> None:
    row = file_difference(FileState("a" * 64, 1), FileState("b" * 64, 2, 2000.0, 2000.0))
    assert row is not None and "the running one is older" in row.why
    assert (row.running, row.wanted) == ("sha256:" + "a" * 12, "sha256:" + "b" * 12)


def test_an_older_file_that_was_moved_into_place_after_the_start_still_makes_the_running_one_older() -> None:
    row = file_difference(FileState("a" * 64, 1), FileState("b" * 64, 2, 10.0, 2000.0))
    assert row is not None and "the running one is older" in row.why


def test_a_removed_host_file_makes_the_running_one_older() -> None:
    row = file_difference(FileState("a" * 64, 1), FileState(None))
    assert row is not None and "older" in row.why and row.wanted == "absent"


@pytest.mark.parametrize("changed_at", [10.0, STARTED])
def test_a_file_that_was_changed_inside_is_newer(changed_at: float) -> None:
    row = file_difference(FileState("b" * 64, 1), FileState("a" * 64, 1, 10.0, changed_at))
    assert row is not None and "the running one is newer" in row.why


def test_code_of_the_image_that_was_changed_is_named_without_a_host_file() -> None:
    row = file_difference(FileState("b" * 64, 1), None)
    assert row is not None and row.wanted == "the image's own"
    gone = file_difference(FileState(None), None)
    assert gone is not None and gone.running == "absent"


def test_a_file_that_was_written_in_place_after_the_start_may_not_be_what_the_engine_read() -> None:
    row = file_difference(FileState("a" * 64, 1), FileState("a" * 64, 1, 2000.0, 2000.0))
    assert row is not None and "may be older" in row.why


@pytest.mark.parametrize(
    ("inode", "written_at", "locked", "readonly"),
    [
        (1, 999.0, False, True),
        (1, 1000.0, False, True),
        (2, 2000.0, False, True),
        (1, 2000.0, True, True),
        (1, 2000.0, False, False),
    ],
    ids=["before", "at the start", "another file of the same content", "as the lock says", "the engine's to write"],
)
def test_a_file_of_the_same_content_is_no_difference_where(
    inode: int, written_at: float, locked: bool, readonly: bool
) -> None:
    mounts = {PATH: MountedFrom("bind", "/overlays/a.py", readonly)}
    now = FileState("a" * 64, inode, written_at, written_at, locked)
    running = Description(mounts=mounts, files={PATH: FileState("a" * 64, 1)}, started_at=STARTED)
    assert found(running, Description(mounts=mounts, files={PATH: now})) == {}


@pytest.mark.parametrize(
    ("inode", "changed_at", "differs"), [(2, 2000.0, True), (2, 1000.0, False), (1, 2000.0, False)]
)
def test_a_folder_is_told_by_its_inode(inode: int, changed_at: float, differs: bool) -> None:
    row = file_difference(FileState("", 1), FileState("", inode, changed_at, changed_at))
    assert (row is not None) == differs


def test_a_file_of_another_mount_is_explained_by_that_mount_alone() -> None:
    other = {PATH: MountedFrom("bind", "/elsewhere/a.py", True)}
    inside, now = FileState("a" * 64, 1), FileState("b" * 64, 2, 2000.0, 2000.0)
    running = Description(mounts=MOUNT, files={PATH: inside}, started_at=STARTED)
    assert set(found(running, Description(mounts=other, files={PATH: now}))) == {f"mounts.{PATH}"}


def test_the_deepest_mount_decides() -> None:
    outer = MountedFrom("bind", "/all", True)
    running = Description(mounts={"/usr": outer, **MOUNT}, files={PATH: FileState("a" * 64, 1)}, started_at=STARTED)
    now = {PATH: FileState("b" * 64, 2, 2000.0, 2000.0)}
    wanted = Description(mounts={"/usr": MountedFrom("bind", "/another", True), **MOUNT}, files=now)
    assert set(found(running, wanted)) == {"mounts./usr", f"files.{PATH}"}
