"""The docker command line: run it, and turn its complaints into one clear error each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.errors import DeployError


@dataclass(frozen=True)
class CliResult:
    """What one docker command left: its status and both outputs, stripped; `interrupted` when Ctrl-C came meanwhile."""

    returncode: int
    stdout: str
    stderr: str
    interrupted: bool = False


@dataclass(frozen=True)
class _Rule:
    """A text that docker prints, and what to say instead; `{0}`, `{1}` are the pattern's groups."""

    pattern: re.Pattern[str]
    what: str
    why: str = ""
    fix: str = ""

    def error(self, match: re.Match[str]) -> DeployError:
        groups = match.groups()
        return DeployError(self.what.format(*groups), why=self.why.format(*groups), fix=self.fix.format(*groups))


def _rule(pattern: str, what: str, why: str = "", fix: str = "") -> _Rule:
    return _Rule(re.compile(pattern, re.IGNORECASE), what, why, fix)


_NO_TOOLKIT = "docker runs no container with GPUs until the NVIDIA container toolkit is set up"
_SET_UP_TOOLKIT = (
    "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker, and restart docker"
)
_GPU_RULES = (
    _rule(r"could not select device driver", "this Docker engine has no GPU runtime", _NO_TOOLKIT, _SET_UP_TOOLKIT),
    _rule(
        r"(?:unknown runtime specified|unknown or invalid runtime name:) *(\S+)",
        "this Docker engine has no runtime named {0}",
        _NO_TOOLKIT,
        _SET_UP_TOOLKIT,
    ),
    _rule(
        r"nvidia-container-cli: device error: ([^:]+): unknown device",
        "this host has no GPU {0}",
        "the layout asks for GPUs by number",
        "nvidia-smi -L lists the GPUs; correct container.gpus in the layout",
    ),
    _rule(
        r"(nvidia-container-cli: [^\n]+)",
        "the GPUs cannot be given to a container: {0}",
        "the driver on this host does not answer the container toolkit",
        "nvidia-smi, to see whether the driver works",
    ),
)
_RULES = (
    *_GPU_RULES,
    _rule(
        r"permission denied while trying to connect",
        "this user may not talk to the Docker engine",
        fix="sudo usermod -aG docker $USER, then log in again",
    ),
    _rule(
        r"cannot connect to the docker daemon|is the docker daemon running|connection refused",
        "no Docker engine answers",
        fix="start it (sudo systemctl start docker), or point DOCKER_HOST at the right one",
    ),
    _rule(
        r"bind source path does not exist: (.+)",
        "the mount source {0} does not exist",
        fix="correct the path in the layout, or create it",
    ),
    _rule(
        r"(?:no such image: |unable to find image ')([^\s']+)",
        "the image {0} is not on this host",
        "start never downloads an image by itself",
        "docker pull {0}",
    ),
    _rule(
        r"container name \"/?([^\"]+)\" is already in use",
        "the container name {0} was just taken by another start",
        fix="deploy status",
    ),
    _rule(
        r"bind for (\S+):(\d+) failed: port is already allocated",
        "port {1} is already published by another container",
        fix="docker ps --filter publish={1}; stop that one, or set PORT",
    ),
    _rule(
        r"listen tcp\d? (\S+):(\d+): bind: address already in use",
        "port {1} is in use by another process on this host",
        fix="ss -ltnp 'sport = :{1}'; stop that one, or set PORT",
    ),
    _rule(
        r"listen tcp\d? (\S+):(\d+): bind: cannot assign requested address",
        "this host has no address {0}",
        "the layout publishes the server there",
        "correct container.publish in the layout",
    ),
    _rule(
        r'exec: "([^"]+)": (?:executable file not found|stat|permission denied|no such file)',
        "the image cannot run {0}",
        "there is no such program in it, or it is not executable",
        "correct engine.entrypoint in the layout",
    ),
    _rule(
        r'error mounting "([^"]+)" to rootfs at "([^"]+)".*not a directory',
        "{0} cannot be mounted at {1}: one is a file, the other a directory",
        fix="correct the mount in the layout",
    ),
    _rule(
        r"duplicate mount point: (\S+)",
        "two mounts have the same target {0}",
        fix="remove one of them from the layout",
    ),
    _rule(
        r"error setting rlimit",
        "this host does not allow the asked ulimit",
        "the Docker engine may not raise its own limits",
        "remove the --ulimit from the layout",
    ),
    _rule(
        r"unable to apply caps",
        "this host does not allow privileged containers",
        fix="remove the privileged setting from the layout",
    ),
    _rule(
        r"no space left on device",
        "the disk of the Docker engine is full",
        fix="docker system df, to see what fills it",
    ),
    _rule(r"network (\S+) not found", "docker has no network {0}", fix="docker network ls"),
)


def run_docker(argv: Sequence[str]) -> CliResult:
    """Run one docker command line to its end. DeployError when the command itself cannot be run.

    Ctrl-C does not cut the command short, since a half-made container would be left behind: the caller sees it in the
    result, puts things in order and raises KeyboardInterrupt itself. A second Ctrl-C is raised at once.
    """
    import subprocess

    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        raise DeployError(
            f"{argv[0]} is not installed, or not in PATH",
            fix="install Docker, or use runtime: local in the layout",
        ) from None
    except OSError as error:
        raise DeployError(f"{argv[0]} cannot be run: {error.strerror}") from None
    interrupted = False
    try:
        stdout, stderr = process.communicate()
    except KeyboardInterrupt:
        interrupted = True
        stdout, stderr = process.communicate()
    return CliResult(process.returncode, stdout.strip(), stderr.strip(), interrupted)


def explain(complaint: str) -> DeployError:
    """The error that a text of the docker command or the Docker engine stands for; the text itself when unknown."""
    for rule in _RULES:
        match = rule.pattern.search(complaint)
        if match:
            return rule.error(match)
    return DeployError(f"docker refused: {first_line(complaint)}", fix="docker info, to see the state of the engine")


def gpu_problem(complaint: str) -> DeployError | None:
    """The error of a complaint that is about GPUs; None when it is about something else."""
    return explain(complaint) if any(rule.pattern.search(complaint) for rule in _GPU_RULES) else None


def first_line(complaint: str) -> str:
    """The first line that says something, without docker's own prefixes and its hint to the help."""
    for line in complaint.splitlines():
        text = line.removeprefix("docker: ").removeprefix("Error response from daemon: ").strip()
        if text and not text.startswith(("Run 'docker", "See 'docker")):
            return text
    return "no reason given"
