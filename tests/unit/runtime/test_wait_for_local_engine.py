"""The whole way with a stand-in for the engine: a real process, its real log, and real requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runtime_samples import DATA, HEALTHY, local_deployment, recorded, stub_command

from shardwright.errors import DeployError
from shardwright.runtime.failure import EngineFailedError
from shardwright.runtime.local import LocalRuntime
from shardwright.runtime.phases import Phase
from shardwright.runtime.wait import PhaseEvent, Ready, wait_ready

WAIT_S = 30.0

WaitFor = Callable[..., Ready]


@pytest.fixture
def events() -> list[PhaseEvent]:
    return []


@pytest.fixture
def wait_for(tmp_path: Path, free_port: int, events: list[PhaseEvent]) -> Iterator[WaitFor]:
    """Start the stand-in with these arguments and wait for it."""
    runtime = LocalRuntime(tmp_path)
    deployment = local_deployment(tmp_path, free_port)

    def run(log: str, *arguments: str, timeout_s: float = WAIT_S) -> Ready:
        command = stub_command("--log", str(DATA / log), "--port", str(free_port), *arguments)
        state = runtime.start(deployment, command, {})
        return wait_ready(
            runtime,
            state.name,
            base_url=deployment.base_url,
            model="needle-tiny",
            timeout_s=timeout_s,
            on_event=events.append,
        )

    yield run
    runtime.stop(deployment.instance_name, 0)


def test_a_played_start_becomes_ready_with_its_phases(wait_for: WaitFor, events: list[PhaseEvent]) -> None:
    ready = wait_for(HEALTHY, "--pace=0.03", "--serve=well")
    assert [phase.value for phase, _ in ready.phases][-2:] == ["api", "ready"]
    assert {Phase.WEIGHTS, Phase.KV_ALLOCATION} <= {event.phase for event in events}


def test_a_first_request_500_ends_the_wait_with_the_recorded_cause(wait_for: WaitFor) -> None:
    with pytest.raises(EngineFailedError, match="fails its first request: /v1/completions answers 500") as caught:
        wait_for("first-token-500.log", "--serve=token-500", "--end=0")
    assert caught.value.diagnoses[0].id == "pp-cpu-eager"


def test_a_played_crash_ends_the_wait_at_once(wait_for: WaitFor, events: list[PhaseEvent]) -> None:
    with pytest.raises(EngineFailedError, match="exit code 1") as caught:
        wait_for("partition-sum.log", "--end=1")
    assert caught.value.diagnoses[0].id == "partition-sum"
    assert events[-1].elapsed_s < WAIT_S / 2


def test_a_dead_core_under_a_living_process_ends_the_wait(wait_for: WaitFor) -> None:
    with pytest.raises(EngineFailedError, match="a process of it still runs"):
        wait_for("partition-sum.log")


def test_a_server_that_never_gives_a_token_is_a_timeout(wait_for: WaitFor) -> None:
    with pytest.raises(DeployError, match="in phase first-token"):
        wait_for(HEALTHY, "--serve=no-token", timeout_s=3)


def test_a_server_with_another_model_is_named(wait_for: WaitFor) -> None:
    with pytest.raises(DeployError, match="it serves llama, and needle-tiny was asked for"):
        wait_for(HEALTHY, "--serve=well", "--model=llama")


def test_what_the_stand_in_says_is_what_the_engine_said(wait_for: WaitFor, tmp_path: Path) -> None:
    wait_for(HEALTHY, "--serve=well")
    (record,) = (tmp_path / ".deploy" / "local").iterdir()
    said = (record / "engine.log").read_text().splitlines()
    assert said == recorded(HEALTHY)[: len(said)]
    assert "Application startup complete." in said[-1]
