"""The one interface of every runtime: facts about engines, no judgement; what a state means the wait loop decides."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from shardwright.runtime.description import Description

if TYPE_CHECKING:
    from shardwright.render.command import RenderedCommand
    from shardwright.resolve.deployment import Deployment

EngineStatus = Literal["absent", "created", "running", "restarting", "exited", "dead"]


@dataclass(frozen=True)
class EngineState:
    """What a runtime knows about one engine at one moment: facts, no judgement.

    `exit_code` is the last one seen, also while restarting; code 0 of a server that nobody stopped is a crash too.
    `started_at` is in unix seconds. `identifier` is the container id or the process id, empty when absent.
    """

    name: str
    layout: str
    status: EngineStatus
    exit_code: int | None
    restart_count: int
    started_at: float | None
    identifier: str


class Runtime(Protocol):
    """Where engines run. Every method raises DeployError, with the next command, when it cannot do its work."""

    @property
    def kind(self) -> str:
        """`docker` or `local`, as the layout's `runtime` key says it."""

    def preflight(self, deployment: Deployment) -> None:
        """Refuse what could not start, before anything is created."""

    def engine_identity(self, deployment: Deployment) -> str:
        """What the lock of an overlay must name: the image's id, or the installed package's folder."""

    def expect(self, deployment: Deployment, command: RenderedCommand) -> Description:
        """What `start` would bring up now, as plain data."""

    def describe(self, name: str, wanted: Description, secrets: Collection[str] = ()) -> Description:
        """The running engine of that name as plain data, with the files that `wanted` has, as the engine sees them.

        `secrets`: names of variables that the engine was given beside those of its command line.
        """

    def start(self, deployment: Deployment, command: RenderedCommand, secrets: Mapping[str, str]) -> EngineState:
        """Execute the rendered command and return at once; a failed start leaves nothing behind."""

    def resume(self, name: str, secrets: Mapping[str, str]) -> EngineState:
        """Start a stopped engine again, exactly as it was started before, and return at once."""

    def state(self, name: str) -> EngineState:
        """The engine of that name; status `absent` when there is none of ours."""

    def instances(self, layout: str | None = None) -> tuple[EngineState, ...]:
        """Our engines, of one layout or of all, newest first; exited ones included."""

    def logs(self, name: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """Log lines without line ends, oldest first; `tail` keeps the last so many; `follow` goes on until the end."""

    def stop(self, name: str, timeout_s: int) -> EngineState:
        """Ask the engine to stop, kill it after `timeout_s`, and return its last state."""

    def remove_old(self, layout: str, keep: int, protected: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """Remove stopped engines of a layout but for the `keep` newest and the `protected`; the names that went."""
