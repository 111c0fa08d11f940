"""What differs between an engine that runs and the one that would be started now. Shows no value of a variable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from shardwright.gates.secret_texts import looks_secret
from shardwright.runtime.description import Description, FileState, MountedFrom, value_digest

ABSENT = "absent"
_MOST_CHARACTERS = 200
_SECRET_FLAG = re.compile(r"--.*(key|token|secret|password)", re.IGNORECASE)


class Difference(Struct, frozen=True):
    """One thing: its path, how it runs, how it would be, where that is known why, and what to do."""

    path: str
    running: str
    wanted: str
    fix: str
    why: str = ""


def differences(running: Description, wanted: Description, layout: str) -> tuple[Difference, ...]:
    """All differences, the image first, files and container options last; empty when there are none."""
    restart = f"deploy stop {layout}, then deploy start {layout}"
    return (
        *_image(running, wanted, restart),
        *_argv(running.argv, wanted.argv, restart),
        *_env(running, wanted, restart),
        *_plain("mounts", running.mounts, wanted.mounts, restart),
        *_files(running, wanted, restart),
        *_plain("container", running.options, wanted.options, restart),
    )


def _image(running: Description, wanted: Description, restart: str) -> Iterator[Difference]:
    if running.image == wanted.image:
        return
    if not wanted.image:
        text = f"{wanted.image_name}, which is not on this host"
        yield Difference("image", running.image, text, f"docker pull {wanted.image_name}")
        return
    yield Difference(
        "image",
        running.image,
        wanted.image,
        restart,
        f"{wanted.image_name} names another image than at the start",
    )


def _argv(running: Sequence[str], wanted: Sequence[str], restart: str) -> Iterator[Difference]:
    if not wanted or tuple(running) == tuple(wanted):
        return
    one, other = _by_flag(running), _by_flag(wanted)
    found = [flag for flag in {**other, **one} if one.get(flag) != other.get(flag)]
    for flag in found:
        path = f"argv.{flag}" if flag else "argv"
        yield Difference(path, _words(one.get(flag)), _words(other.get(flag)), restart)
    if not found:
        yield Difference("argv", "in another order", "as deploy cmd prints it", restart)


def _by_flag(argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The words of each flag, those of a repeated one together; the command itself under an empty name."""
    found: dict[str, tuple[str, ...]] = {}
    flag = ""
    for word in argv:
        if re.match(r"--?[A-Za-z]", word):
            flag = word.partition("=")[0]
        found[flag] = (*found.get(flag, ()), word)
    return found


def _words(words: Sequence[str] | None) -> str:
    if words is None:
        return ABSENT
    return " ".join(_shown(words))[:_MOST_CHARACTERS]


def _shown(words: Sequence[str]) -> Iterator[str]:
    hidden = False
    for word in words:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            hidden = bool(_SECRET_FLAG.fullmatch(flag))
            yield f"{flag}={value_digest(value)}" if equals and (hidden or looks_secret(value)) else word
        else:
            yield value_digest(word) if hidden or looks_secret(word) else word


def _env(running: Description, wanted: Description, restart: str) -> Iterator[Difference]:
    # Without its image nobody knows which variables the engine would have beside those of the command line.
    names = {*wanted.env, *(running.env if wanted.image or not running.image else ())}
    for name in sorted(names):
        one, other = running.env.get(name), wanted.env.get(name)
        if one != other:
            yield Difference(f"env.{name}", one or "unset", other or "unset", restart)


def _plain(
    prefix: str, running: Mapping[str, MountedFrom | str], wanted: Mapping[str, MountedFrom | str], restart: str
) -> Iterator[Difference]:
    for name in sorted({*running, *wanted}):
        one, other = running.get(name), wanted.get(name)
        if one != other:
            path = f"{prefix}.{name}"
            yield Difference(path, str(one or ABSENT), str(other or ABSENT), restart)


def _files(running: Description, wanted: Description, restart: str) -> Iterator[Difference]:
    for path, inside in sorted(running.files.items()):
        now = wanted.files.get(path)
        if now is None:
            why = "changed inside the container after it was made from its image"
            yield Difference(f"files.{path}", _content(inside), "the image's own", restart, why)
            continue
        mount = _mount_of(path, running.mounts)
        # Another mount is a difference of its own, and explains the content.
        if mount == _mount_of(path, wanted.mounts):
            yield from _file(path, inside, now, running.started_at, mount is not None and not mount.readonly, restart)


def _file(
    path: str, inside: FileState, now: FileState, started_at: float, writable: bool, restart: str
) -> Iterator[Difference]:
    path = f"files.{path}"
    if inside.sha256 != now.sha256:
        newer = now.changed_at > started_at
        older = "the file on the host was replaced after the start: the running one is older"
        why = older if newer or now.sha256 is None else "changed inside the container: the running one is newer"
        yield Difference(path, _content(inside), _content(now), restart, why)
    elif not now.sha256:
        if inside.inode != now.inode and now.changed_at > started_at:
            why = "another one stands in its place on the host since the start: the running one is older"
            yield Difference(path, f"inode {inside.inode}", f"inode {now.inode}", restart, why)
    elif not writable and not now.locked and inside.inode == now.inode and now.written_at > started_at:
        why = "written after the start: what the engine read then may be older"
        yield Difference(path, "what it read at the start", _content(now), restart, why)


def _mount_of(path: str, mounts: Mapping[str, MountedFrom]) -> MountedFrom | None:
    """The mount that a path lies in: the deepest one."""
    inside = [target for target in mounts if path == target or path.startswith(f"{target.rstrip('/')}/")]
    return mounts[max(inside, key=len)] if inside else None


def _content(state: FileState) -> str:
    return ABSENT if state.sha256 is None else f"sha256:{state.sha256[:12]}" if state.sha256 else "there"
