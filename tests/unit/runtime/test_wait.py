"""The wait loop: ready means a token, and an engine that cannot become ready ends the wait at once."""

from __future__ import annotations

from typing import Any

import pytest
from runtime_samples import (
    HEALTH_OK,
    HEALTHY,
    MODELS_OK,
    TOKEN_OK,
    FakeClock,
    ScriptedLog,
    ScriptedRuntime,
    ScriptedServer,
    recorded,
    state,
)

from shardwright.connect.http import Reply
from shardwright.errors import DeployError, ExitCode
from shardwright.runtime.failure import EngineFailedError
from shardwright.runtime.phases import Phase
from shardwright.runtime.wait import PhaseEvent, Ready, wait_ready

WAIT_S = 1000.0


class Waited:
    """One wait with everything scripted."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.events: list[PhaseEvent] = []

    def __call__(
        self, runtime: ScriptedRuntime, server: ScriptedServer, log: dict[int, list[str]] | None = None, **changes: Any
    ) -> Ready:
        options: dict[str, Any] = {"timeout_s": WAIT_S, **changes}
        self.source = ScriptedLog(log or {})
        return wait_ready(
            runtime,  # type: ignore[arg-type]
            "quick-0a1b2c3d",
            base_url="http://127.0.0.1:8000",
            model="needle-tiny",
            on_event=self.events.append,
            clock=self.clock,
            http=server,
            log=self.source,
            **options,
        )


@pytest.fixture
def waited() -> Waited:
    return Waited()


def good_server(**changes: Any) -> ScriptedServer:
    return ScriptedServer(**{"health": HEALTH_OK, "models": MODELS_OK, "token": TOKEN_OK, **changes})


def test_ready_needs_health_model_name_and_a_token(waited: Waited) -> None:
    ready = waited(ScriptedRuntime(state()), good_server())
    assert ready.model == "needle-tiny"
    assert waited.events[-1].phase is Phase.READY
    assert waited.source.closed


def test_health_200_without_a_token_is_not_ready(waited: Waited) -> None:
    server = good_server(token=Reply("timeout", error="no answer within 30 s"))
    with pytest.raises(DeployError, match=r"in phase first-token .*/health answers 200 and no token comes") as caught:
        waited(ScriptedRuntime(state()), server)
    assert caught.value.code is ExitCode.TIMEOUT


def test_a_slow_first_token_is_waited_for(waited: Waited) -> None:
    server = good_server(token=[Reply("timeout"), Reply("answered", 429), TOKEN_OK])
    assert waited(ScriptedRuntime(state()), server).elapsed_s > 0
    assert server.tokens_asked == 3
    assert Phase.FIRST_TOKEN in [event.phase for event in waited.events]


def test_an_empty_answer_with_status_200_is_not_a_token(waited: Waited) -> None:
    server = good_server(token=Reply("answered", 200, {"choices": [], "usage": {"completion_tokens": 0}}))
    with pytest.raises(EngineFailedError, match="fails its first request"):
        waited(ScriptedRuntime(state()), server)


def test_first_request_500_is_a_failure_with_the_first_traceback(waited: Waited) -> None:
    server = good_server(token=Reply("answered", 500, text='{"error": "EngineCore encountered an issue."}'))
    log = recorded("first-token-500.log")
    with pytest.raises(EngineFailedError, match="says that it is ready and fails its first request") as caught:
        waited(ScriptedRuntime(state(), log=log), server)
    error = caught.value
    assert error.code is ExitCode.REFUSED
    assert error.traceback is not None
    assert error.traceback.worker.startswith("Worker_PP1")
    assert error.traceback.error == "AssertionError"
    assert error.diagnoses[0].id == "pp-cpu-eager"
    assert "pp-cpu-eager" in error.fix
    assert waited.clock.now < 10


def test_a_dead_engine_ends_the_wait_at_once_with_the_root_cause(waited: Waited) -> None:
    runtime = ScriptedRuntime(state(), state(), state("exited", exit_code=1), log=recorded("partition-sum.log"))
    with pytest.raises(EngineFailedError, match=r"died in phase starting.*exit code 1") as caught:
        waited(runtime, ScriptedServer())
    assert caught.value.traceback is not None
    assert caught.value.traceback.error == "ValueError: sum(partitions)=4 does not match num_hidden_layers=3."
    assert "adds up to 4 layers and the model has 3" in caught.value.why
    assert "deploy logs quick" in caught.value.fix
    assert waited.clock.now < 5


def test_exit_code_0_before_ready_is_a_crash_too(waited: Waited) -> None:
    with pytest.raises(EngineFailedError, match="exit code 0; nobody stopped it, so it crashed all the same"):
        waited(ScriptedRuntime(state("exited", exit_code=0)), ScriptedServer())


def test_a_killed_engine_without_a_log_is_diagnosed_by_its_exit_code(waited: Waited) -> None:
    with pytest.raises(EngineFailedError) as caught:
        waited(ScriptedRuntime(state("exited", exit_code=137)), ScriptedServer())
    assert [diagnosis.id for diagnosis in caught.value.diagnoses] == ["killed-by-oom-killer"]
    assert "the log is empty" in caught.value.why


def test_a_process_that_vanished_without_a_note_is_dead(waited: Waited) -> None:
    with pytest.raises(EngineFailedError, match="exit code unknown"):
        waited(ScriptedRuntime(state("dead")), ScriptedServer())


def test_running_true_with_a_growing_restart_count_is_a_loop(waited: Waited) -> None:
    runtime = ScriptedRuntime(state(restarts=2), state(restarts=2), state(exit_code=3, restarts=3))
    with pytest.raises(EngineFailedError, match=r"restarts in a loop \(3 restarts, last exit code 3\)"):
        waited(runtime, ScriptedServer())


def test_restarting_seen_twice_is_a_loop_and_once_is_not(waited: Waited) -> None:
    once = ScriptedRuntime(state("restarting"), state())
    assert waited(once, good_server(health=[Reply("refused"), HEALTH_OK])).name == "quick-0a1b2c3d"
    with pytest.raises(EngineFailedError, match="restarts in a loop"):
        waited(ScriptedRuntime(state("restarting", exit_code=1)), ScriptedServer())


def test_old_restarts_of_an_engine_that_runs_now_do_not_count(waited: Waited) -> None:
    assert waited(ScriptedRuntime(state(restarts=35)), good_server())


def test_a_dead_core_ends_the_wait_although_the_process_still_runs(waited: Waited) -> None:
    log = recorded("partition-sum.log")
    with pytest.raises(EngineFailedError, match=r"engine core .* is dead, though a process of it still runs") as caught:
        waited(ScriptedRuntime(state(), log=log), ScriptedServer(), {3: log})
    assert caught.value.diagnoses[0].id == "partition-sum"
    assert waited.clock.now < 10


def test_a_server_that_answers_over_a_dead_core_is_not_ready(waited: Waited) -> None:
    log = recorded("partition-sum.log")
    with pytest.raises(EngineFailedError, match="a process of it still runs"):
        waited(ScriptedRuntime(state(), log=log), good_server(), {0: log})


def test_health_503_is_a_dead_engine(waited: Waited) -> None:
    with pytest.raises(EngineFailedError, match="/health answers 503"):
        waited(ScriptedRuntime(state()), ScriptedServer(health=Reply("answered", 503)))


def test_another_server_on_the_port_is_named_as_such(waited: Waited) -> None:
    other = good_server(models=Reply("answered", 200, {"data": [{"id": "llama"}]}))
    with pytest.raises(DeployError, match=r"another server answers .*serves llama, and needle-tiny was asked for"):
        waited(ScriptedRuntime(state()), other)
    with pytest.raises(DeployError, match=r"another server answers .*/health answers 404"):
        waited(ScriptedRuntime(state()), ScriptedServer(health=Reply("answered", 404)))


def test_a_server_that_wants_a_key_is_not_waited_for(waited: Waited) -> None:
    with pytest.raises(DeployError, match="wants an API key") as caught:
        waited(ScriptedRuntime(state()), good_server(models=Reply("answered", 401)))
    assert "VLLM_API_KEY" in caught.value.fix


def test_a_timeout_names_the_phase_that_it_was_stuck_in(waited: Waited) -> None:
    lines = ["INFO 11-30 21:10:58 [default_loader.py:430] Loading weights took 0.02 seconds"]
    with pytest.raises(DeployError, match=r"not ready after 60 s: in phase weights for 5\d s") as caught:
        waited(ScriptedRuntime(state()), ScriptedServer(), {8: lines}, timeout_s=60)
    assert caught.value.code is ExitCode.TIMEOUT
    assert "Loading weights took" in caught.value.why
    assert "deploy wait quick" in caught.value.fix


def test_an_engine_that_does_not_exist_is_not_waited_for(waited: Waited) -> None:
    with pytest.raises(DeployError, match="there is no engine"):
        waited(ScriptedRuntime(state("absent")), ScriptedServer())


def test_phases_of_a_real_start_come_in_order_with_their_time(waited: Waited) -> None:
    lines = recorded(HEALTHY)
    batches = {index: [line] for index, line in enumerate(lines)}
    health = [Reply("refused")] * len(lines) + [HEALTH_OK]
    ready = waited(ScriptedRuntime(state()), good_server(health=health), batches)
    names = [phase.value for phase, _ in ready.phases]
    assert names == ["starting", "weights", "kv-allocation", "api", "ready"]
    seconds = [since for _, since in ready.phases]
    assert seconds == sorted(seconds)
    assert seconds[1] > 0


def test_a_long_quiet_phase_gives_signs_of_life(waited: Waited) -> None:
    waited(ScriptedRuntime(state()), good_server(health=[Reply("refused")] * 100 + [HEALTH_OK]))
    signs = [event for event in waited.events if not event.is_new]
    assert [event.phase for event in signs] == [Phase.STARTING] * 3
    assert signs[0].elapsed_s >= 15
    assert signs[0].phase_s == pytest.approx(signs[0].elapsed_s)
