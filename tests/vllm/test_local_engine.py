"""A real vLLM as a local engine: ready, dead at start, dead at its first request, killed, stopped without a trace."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwright.campaign.request import prepare
from shardwright.connect.processes import session_members
from shardwright.connect.project import Project, shipped_data
from shardwright.errors import DeployError
from shardwright.render.command import render
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.base import EngineState
from shardwright.runtime.failure import EngineFailedError
from shardwright.runtime.local import LocalRuntime
from shardwright.runtime.local_record import Record
from shardwright.runtime.phases import Phase
from shardwright.runtime.wait import PhaseEvent, Ready, wait_ready

pytestmark = pytest.mark.vllm

WAIT_S = 400.0
API_KEY = "only-for-this-test"


class Engine:
    """One engine of the tiny model: started, waited for, looked at."""

    def __init__(self, root: Path, model: Path, port: int, **changes: Any) -> None:
        self.runtime = LocalRuntime(root)
        self.deployment = _deployment(root, model, port, **changes)
        self.events: list[PhaseEvent] = []
        self._root = root

    def start(self, **secrets: str) -> EngineState:
        self.runtime.preflight(self.deployment)
        self.state = self.runtime.start(self.deployment, render(self.deployment), secrets)
        return self.state

    def wait(self, **options: Any) -> Ready:
        return wait_ready(
            self.runtime,
            self.state.name,
            base_url=self.deployment.base_url,
            model="needle-tiny",
            timeout_s=WAIT_S,
            on_event=self.events.append,
            **options,
        )

    def members(self) -> tuple[int, ...]:
        process = Record(self._root / ".deploy" / "local" / self.state.name).process()
        assert process is not None
        return tuple(member.pid for member in session_members(process))

    def now(self) -> EngineState:
        return self.runtime.state(self.state.name)


def _deployment(root: Path, model: Path, port: int, **changes: Any) -> Deployment:
    layout: dict[str, Any] = {
        "schema": "shardwright/v1",
        "name": "needle",
        "runtime": "local",
        "model": {"path": str(model)},
        "engine": {"vllm": "0.30.0", "platform": "cpu", "python": sys.executable},
        "serve": {
            "served_model_name": "needle-tiny",
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 2048,
            "max_num_seqs": 8,
        },
        "env": {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "TORCHDYNAMO_DISABLE": "1",
        },
        "container": {"publish": f"127.0.0.1:{port}:8000"},
        **changes,
    }
    file = root / "configs" / "layouts" / "needle.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(layout))
    return prepare(str(file), {}, project=Project(root, (root, shipped_data()))).deployment


@pytest.fixture
def engine(tmp_path: Path, project_root: Path, free_port: int) -> Iterator[Any]:
    engines: list[Engine] = []

    def make(**changes: Any) -> Engine:
        engines.append(Engine(tmp_path, project_root / "configs" / "models" / "needle-tiny", free_port, **changes))
        return engines[-1]

    yield make
    for engine in engines:
        engine.runtime.stop(engine.deployment.instance_name, 5)


def test_a_real_engine_becomes_ready_phase_by_phase_and_stops_without_a_trace(
    engine: Any, tmp_path: Path, free_port: int
) -> None:
    needle = engine()
    assert needle.start(VLLM_API_KEY=API_KEY).status == "running"
    ready = needle.wait(api_key=API_KEY)
    phases = [phase for phase, _ in ready.phases]
    assert phases[0] is Phase.STARTING
    assert phases[-1] is Phase.READY
    assert {Phase.WEIGHTS, Phase.KV_ALLOCATION, Phase.API} <= set(phases)
    worker = next(event for event in needle.events if event.phase is Phase.WEIGHTS)
    assert worker.worker.startswith("Worker pid=")
    with pytest.raises(DeployError, match=r"another server answers .* other-model was asked for"):
        wait_ready(
            needle.runtime,
            needle.state.name,
            base_url=needle.deployment.base_url,
            model="other-model",
            timeout_s=30,
            api_key=API_KEY,
        )
    with pytest.raises(DeployError, match="wants an API key"):
        needle.wait()
    with pytest.raises(DeployError, match=f"port {free_port} is in use by pid {needle.state.identifier}"):
        needle.runtime.preflight(needle.deployment)
    assert len(needle.members()) >= 3
    stopped = needle.runtime.stop(needle.state.name, 30)
    assert stopped.status == "exited"
    assert needle.members() == ()
    with socket.create_server(("127.0.0.1", free_port)):
        pass
    log = "\n".join(needle.runtime.logs(needle.state.name))
    assert "Application shutdown complete." in log
    assert "died unexpectedly" not in log
    assert API_KEY not in log
    for file in (tmp_path / ".deploy").rglob("*.json"):
        assert API_KEY not in file.read_text()


def test_a_crash_at_start_ends_the_wait_at_once_with_the_first_traceback(engine: Any) -> None:
    needle = engine(parallel={"tensor": 3})
    needle.start()
    with pytest.raises(EngineFailedError, match="died in phase starting") as caught:
        needle.wait()
    assert caught.value.traceback is not None
    assert "attention heads (4) must be divisible by tensor parallel size (3)" in caught.value.traceback.error
    assert caught.value.diagnoses[0].id == "heads-not-divisible"
    assert needle.events[-1].elapsed_s < WAIT_S / 2
    assert needle.now().exit_code == 1
    assert needle.members() == ()


def test_health_200_with_a_first_token_500_is_a_failure(engine: Any) -> None:
    needle = engine(parallel={"pipeline": 2})
    needle.start()
    with pytest.raises(EngineFailedError, match="fails its first request") as caught:
        needle.wait()
    assert caught.value.traceback is not None
    assert caught.value.traceback.worker.startswith("Worker_PP1")
    assert any("assert self.intermediate_tensors is not None" in line for line in caught.value.traceback.lines)
    assert caught.value.diagnoses[0].id == "pp-cpu-eager"
    # It ends by itself, with exit code 0 although it crashed.
    assert needle.runtime.stop(needle.state.name, 30).status == "exited"
    assert needle.members() == ()


def test_a_killed_engine_core_ends_the_wait_and_leaves_no_process(engine: Any) -> None:
    needle = engine()
    needle.start()

    def kill_core(event: PhaseEvent) -> None:
        needle.events.append(event)
        if event.phase is Phase.WEIGHTS and event.is_new:
            core = next(pid for pid in needle.members() if _title(pid).startswith("VLLM::EngineCore"))
            os.kill(core, signal.SIGKILL)

    with pytest.raises(EngineFailedError) as caught:
        wait_ready(
            needle.runtime,
            needle.state.name,
            base_url=needle.deployment.base_url,
            model="needle-tiny",
            timeout_s=WAIT_S,
            on_event=kill_core,
        )
    # The engine sees that its core is gone before or after it can read the exit code.
    assert caught.value.diagnoses[0].id in ("killed-by-oom-killer", "core-vanished")
    needle.runtime.stop(needle.state.name, 30)
    assert needle.members() == ()


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
