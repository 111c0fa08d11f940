"""The words of `docker run` as the container of a layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwright.campaign.importing.shell import Remark, Word
from shardwright.campaign.importing.shown import shown
from shardwright.errors import UsageError

_SHORT = {
    "-d": "--detach",
    "-e": "--env",
    "-h": "--hostname",
    "-i": "--interactive",
    "-l": "--label",
    "-m": "--memory",
    "-p": "--publish",
    "-t": "--tty",
    "-u": "--user",
    "-v": "--volume",
    "-w": "--workdir",
}
_SAME = {"--net": "--network", "--stop-grace-period": "--stop-timeout"}
_SWITCHES = frozenset(("--detach", "--interactive", "--tty", "--rm", "--privileged", "--init", "--read-only"))
# Decided anew by every start, so that a layout has no word for them.
_OURS = frozenset(("--detach", "--interactive", "--tty", "--rm", "--pull", "--label", "--quiet"))
_TEXTS = {"--gpus": "gpus", "--ipc": "ipc", "--shm-size": "shm_size", "--network": "network", "--restart": "restart"}
_HEALTH = {
    "--health-cmd": "command",
    "--health-interval": "interval_s",
    "--health-timeout": "timeout_s",
    "--health-retries": "retries",
    "--health-start-period": "start_period_s",
}
# Options that take a value and that no layout can say.
_UNSAID = frozenset(
    (
        *(
            "--add-host",
            "--cap-add",
            "--cap-drop",
            "--cgroupns",
            "--cidfile",
            "--cpu-shares",
            "--cpus",
            "--cpuset-cpus",
        ),
        *("--cpuset-mems", "--device-cgroup-rule", "--dns", "--env-file", "--group-add", "--hostname", "--log-driver"),
        *(
            "--log-opt",
            "--memory",
            "--memory-swap",
            "--memory-swappiness",
            "--network-alias",
            "--oom-score-adj",
            "--pid",
        ),
        *(
            "--pids-limit",
            "--platform",
            "--runtime",
            "--stop-signal",
            "--sysctl",
            "--tmpfs",
            "--user",
            "--userns",
            "--uts",
        ),
        *("--volumes-from", "--workdir", "--mac-address", "--ip", "--isolation", "--cgroup-parent", "--blkio-weight"),
    )
)
_READ = frozenset(
    (
        *(
            "--env",
            "--volume",
            "--mount",
            "--publish",
            "--name",
            "--ulimit",
            "--device",
            "--security-opt",
            "--entrypoint",
        ),
        *("--stop-timeout", "--pull", "--label"),
    )
)
_VALUED = _UNSAID | _READ | _OURS | frozenset(_TEXTS) | frozenset(_HEALTH)
_TIMES = ("interval", "timeout", "start-period")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


@dataclass
class DockerRun:
    """What `docker run` was asked for: keys of `container:`, variables (None: the shell's own), image and its words."""

    tool: str
    container: dict[str, Any] = field(default_factory=dict)
    variables: list[tuple[str, Word | None]] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    name: str = ""
    entrypoint: str | None = None
    image: Word | None = None
    words: tuple[Word, ...] = ()
    remarks: list[Remark] = field(default_factory=list)


def read_docker_run(words: Sequence[Word]) -> DockerRun:
    """Read the words from `docker` on. Raises UsageError for an option that nobody here knows, or without an image."""
    found = DockerRun(words[0].text.rsplit("/", 1)[-1])
    at = next(index for index, word in enumerate(words) if word.text == "run") + 1
    while at < len(words) and words[at].text.startswith("-") and words[at].text != "-":
        at += _option(found, words, at)
    if at >= len(words):
        raise UsageError(f"line {words[0].line}: {found.tool} run names no image")
    found.image, found.words = words[at], tuple(words[at + 1 :])
    return found


def _option(found: DockerRun, words: Sequence[Word], at: int) -> int:
    """Take one option; returns how many words it has."""
    word = words[at]
    name, equals, inline = word.text.partition("=")
    if not name.startswith("--") and len(name) > 2 and not equals:
        letters = [f"-{letter}" for letter in name[1:]]
        if all(_SHORT.get(letter) in _SWITCHES for letter in letters):
            return 1
        # -p8000:8000
        name, equals, inline = name[:2], "=", name[2:]
    name = _SHORT.get(name, name)
    name = _SAME.get(name, name)
    if name in _SWITCHES:
        _switch(found, name, word)
        return 1
    if name not in _VALUED:
        raise UsageError(
            f"line {word.line}: {name} is no option of {found.tool} run that can be read here",
            why="whether the next word belongs to it is not known, so nothing after it would be certain",
            fix="remove it, or write it as --option=value",
        )
    if not equals and at + 1 >= len(words):
        raise UsageError(f"line {word.line}: {name} needs a value")
    value = Word(inline, word.line, word.unknown) if equals else words[at + 1]
    _take(found, name, value)
    return 1 if equals else 2


def _switch(found: DockerRun, name: str, word: Word) -> None:
    if name == "--privileged":
        found.container["privileged"] = True
    elif name not in _OURS:
        found.remarks.append(_unsaid(name, "", word.line))


def _take(found: DockerRun, name: str, value: Word) -> None:
    container, text = found.container, value.text
    if name in _TEXTS:
        container[_TEXTS[name]] = text
    elif name in _HEALTH:
        container.setdefault("healthcheck", {})[_HEALTH[name]] = (
            _seconds(text) if name.endswith(_TIMES) else _plain(text)
        )
    elif name == "--env":
        variable, equals, content = text.partition("=")
        found.variables.append((variable, Word(content, value.line, value.unknown) if equals else None))
    elif name == "--volume":
        _volume(found, value)
    elif name == "--mount":
        _mount(found, value)
    elif name == "--publish":
        found.published.append(_published(text))
    elif name == "--name":
        found.name = text
    elif name == "--entrypoint":
        found.entrypoint = text
    elif name == "--stop-timeout":
        container["stop_timeout_s"] = _plain(text)
    elif name == "--ulimit":
        limit, _, amount = text.partition("=")
        container.setdefault("ulimits", {})[limit] = amount
    elif name in ("--device", "--security-opt"):
        if text != "no-new-privileges":
            container.setdefault("devices" if name == "--device" else "security_opt", []).append(text)
    elif name not in _OURS:
        found.remarks.append(_unsaid(name, text, value.line))


def _unsaid(name: str, value: str, line: int) -> Remark:
    why, fix = "the container would run without it", "build it into the image, or start that container by hand"
    if name == "--runtime" and value == "nvidia":
        fix = "write container: {gpus: all}"
    return Remark(line, f"{name} {shown(value)}".rstrip() + " cannot be said in a layout and is left out", why, fix)


def _volume(found: DockerRun, value: Word) -> None:
    source, _, rest = value.text.partition(":")
    target, _, mode = rest.partition(":")
    modes = mode.split(",") if mode else []
    if not target:
        why, fix = "an anonymous volume is empty at every start", "write HOST:CONTAINER"
        found.remarks.append(Remark(value.line, f"the volume {source} is left out", why, fix))
        return
    for other in modes:
        if other not in ("ro", "rw"):
            found.remarks.append(_unsaid(f"--volume …:{other}", "", value.line))
    _add_mount(
        found,
        source,
        target,
        readonly="ro" in modes,
        named="/" not in source and not source.startswith((".", "~", "$")),
    )


def _mount(found: DockerRun, value: Word) -> None:
    fields = dict(part.partition("=")[::2] for part in value.text.split(","))
    source, target = fields.get("source", fields.get("src", "")), fields.get("target", fields.get("dst", ""))
    target = target or fields.get("destination", "")
    kind = fields.get("type", "volume")
    if kind not in ("bind", "volume") or not source or not target:
        found.remarks.append(_unsaid("--mount", value.text, value.line))
        return
    readonly = "readonly" in fields or "ro" in fields
    _add_mount(found, source, target, readonly=readonly, named=kind == "volume")


def _add_mount(found: DockerRun, source: str, target: str, *, readonly: bool, named: bool) -> None:
    source = source.replace("${HOME}", "~").replace("${PWD}", ".").replace("$(pwd)", ".")
    mount = {"volume" if named else "source": source, "target": target, "readonly": readonly}
    found.container.setdefault("mounts", []).append(mount)


def _published(text: str) -> str:
    """`8000:8000` is open to everybody in Docker's reading, and a layout's own reading is the loopback address."""
    parts = text.removesuffix("/tcp").rsplit(":", 2)
    return ":".join(["0.0.0.0", *parts] if len(parts) < 3 else parts)


def _seconds(text: str) -> Any:
    for unit in ("ms", "s", "m", "h"):
        number = text.removesuffix(unit)
        if number != text and number.isdigit():
            return round(int(number) * _UNITS_S[unit])
    return _plain(text)


def _plain(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() else text


def image_words(found: DockerRun) -> Iterator[Word]:
    """What the container runs: its entry point, then the words after the image."""
    if found.entrypoint:
        yield Word(found.entrypoint, found.words[0].line if found.words else 0)
    yield from found.words
