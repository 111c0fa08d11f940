"""Recorded logs, deployments and doubles for the tests of waiting and of local engines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shardwright.campaign.request import prepare
from shardwright.connect.http import Reply
from shardwright.connect.project import Project, shipped_data
from shardwright.layout.provenance import Origin
from shardwright.render.command import Part, RenderedCommand
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.base import EngineState, EngineStatus

DATA = Path(__file__).parent / "data"
STUB = Path(__file__).parent / "stub_engine.py"
HEALTHY = "healthy-0.30-cpu.log"


def recorded(name: str) -> list[str]:
    """The lines of a log that a real engine wrote."""
    return (DATA / name).read_text().splitlines()


def local_deployment(project: Path, port: int, **changes: Any) -> Deployment:
    """A deployment of the local runtime in `project`, with the interpreter that runs the tests."""
    model = project / "model"
    model.mkdir(exist_ok=True)
    layout: dict[str, Any] = {
        "schema": "shardwright/v1",
        "name": "quick",
        "runtime": "local",
        "model": {"path": str(model)},
        "engine": {"vllm": "0.30.0", "platform": "cpu", "python": sys.executable},
        "container": {"publish": f"127.0.0.1:{port}:8000"},
    }
    for key, value in changes.items():
        layout[key] = {**layout.get(key, {}), **value} if isinstance(value, dict) else value
    file = project / "configs" / "layouts" / "quick.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(layout))
    return prepare(str(file), {}, project=Project(project, (project, shipped_data()))).deployment


def stub_command(*arguments: str, env: Mapping[str, str] | None = None) -> RenderedCommand:
    """A command line that runs the stand-in for the engine."""
    argv = (sys.executable, str(STUB), *arguments)
    return RenderedCommand((Part("command", argv, Origin("rule", "test")),), tuple((env or {}).items()), None)


def eventually(accept: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """The first true answer of `accept`."""
    deadline = time.monotonic() + timeout_s
    while not (answer := accept()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return answer


class FakeClock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class ScriptedLog:
    """Log lines that come one batch per look: `{0: lines, 7: lines}` by the number of the look."""

    def __init__(self, batches: Mapping[int, list[str]]) -> None:
        self._batches = batches
        self._looks = -1
        self.closed = False

    def new_lines(self) -> list[str]:
        self._looks += 1
        return self._batches.get(self._looks, [])

    def close(self) -> None:
        self.closed = True


class ScriptedRuntime:
    """An engine whose states come one per question; the last one stays."""

    kind = "local"

    def __init__(self, *states: EngineState, log: list[str] | None = None) -> None:
        self._states = list(states)
        self._log = log or []

    def state(self, name: str) -> EngineState:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def logs(self, name: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        return iter(self._log)


class ScriptedServer:
    """Answers by path; what is missing refuses the connection. A list of replies is used up, its last one stays."""

    def __init__(self, **replies: Reply | list[Reply]) -> None:
        self.replies = replies
        self.tokens_asked = 0

    def get(self, url: str, timeout_s: float) -> Reply:
        return self._reply("health" if url.endswith("/health") else "models")

    def post(self, url: str, payload: Mapping[str, Any], timeout_s: float) -> Reply:
        self.tokens_asked += 1
        assert payload["max_tokens"] == 1
        return self._reply("token")

    def _reply(self, key: str) -> Reply:
        reply = self.replies.get(key, Reply("refused", error="connection refused"))
        if isinstance(reply, list):
            return reply.pop(0) if len(reply) > 1 else reply[0]
        return reply


def state(status: EngineStatus = "running", exit_code: int | None = None, restarts: int = 0) -> EngineState:
    return EngineState("quick-0a1b2c3d", "quick", status, exit_code, restarts, 1.0, "42")


HEALTH_OK = Reply("answered", 200)
MODELS_OK = Reply("answered", 200, {"data": [{"id": "needle-tiny"}]})
TOKEN_OK = Reply("answered", 200, {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}})
