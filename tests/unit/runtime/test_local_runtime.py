"""Local engines: detached, with a noted end, stopped with all their workers, and never mistaken for a stranger."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_samples import DATA, HEALTHY, eventually, local_deployment, recorded, stub_command

from shardwright.connect.processes import identify, is_alive, session_members
from shardwright.errors import DeployError
from shardwright.layout.provenance import Origin
from shardwright.render.command import Part, RenderedCommand
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.base import EngineState
from shardwright.runtime.local import LocalRuntime, engine_environment
from shardwright.runtime.local_record import Record

SECRET = "tok-5ecret-value"


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[LocalRuntime]:
    runtime = LocalRuntime(tmp_path)
    yield runtime
    for state in runtime.instances():
        runtime.stop(state.name, 0)


@pytest.fixture
def deployment(tmp_path: Path, free_port: int) -> Deployment:
    return local_deployment(tmp_path, free_port)


def record_of(tmp_path: Path, state: EngineState) -> Record:
    return Record(tmp_path / ".deploy" / "local" / state.name)


def members(tmp_path: Path, state: EngineState) -> int:
    process = record_of(tmp_path, state).process()
    assert process is not None
    return len(session_members(process))


def _catches(tmp_path: Path, state: EngineState, number: signal.Signals) -> int:
    """How many processes of the engine's session have a handler for the signal."""
    process = record_of(tmp_path, state).process()
    assert process is not None
    masks = []
    for member in session_members(process):
        status = Path(f"/proc/{member.pid}/status").read_text().splitlines()
        masks.append(int(next(line for line in status if line.startswith("SigCgt:")).split()[1], 16))
    return sum(bool(mask & 1 << (number - 1)) for mask in masks)


def until_ended(runtime: LocalRuntime, state: EngineState) -> EngineState:
    def ended() -> EngineState | None:
        now = runtime.state(state.name)
        return now if now.status == "exited" else None

    found = eventually(ended)
    assert isinstance(found, EngineState)
    return found


def test_a_started_engine_runs_detached_and_is_stopped(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path
) -> None:
    state = runtime.start(deployment, stub_command(), {})
    assert (state.status, state.layout, state.restart_count) == ("running", "quick", 0)
    pid = int(state.identifier)
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert Path(f"/proc/{pid}/fd/0").readlink() == Path("/dev/null")
    assert state.started_at is not None
    assert abs(time.time() - state.started_at) < 30
    stopped = runtime.stop(state.name, 10)
    assert (stopped.status, stopped.exit_code) == ("exited", 128 + signal.SIGTERM)
    assert members(tmp_path, state) == 0


def test_an_interrupt_of_the_starting_command_does_not_reach_the_engine(tmp_path: Path, free_port: int) -> None:
    deployment = local_deployment(tmp_path, free_port)
    code = (
        f"import signal, sys, time; sys.path.insert(0, {str(DATA.parent)!r})\n"
        # A shell's background job ignores the interrupt, and so would this process.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path\n"
        "from runtime_samples import local_deployment, stub_command\n"
        "from shardwright.runtime.local import LocalRuntime\n"
        f"deployment = local_deployment(Path({str(tmp_path)!r}), {free_port})\n"
        f"print(LocalRuntime({str(tmp_path)!r}).start(deployment, stub_command(), {{}}).status, flush=True)\n"
        "time.sleep(60)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"running\n"
    os.killpg(starter.pid, signal.SIGINT)
    starter.communicate(timeout=20)
    runtime = LocalRuntime(tmp_path)
    assert runtime.state(deployment.instance_name).status == "running"
    assert runtime.stop(deployment.instance_name, 10).status == "exited"


@pytest.mark.parametrize(("end", "code"), [(0, 0), (3, 3), (-signal.SIGKILL, 137), (-signal.SIGABRT, 134)])
def test_the_end_of_an_engine_is_noted_with_its_exit_code(
    runtime: LocalRuntime, deployment: Deployment, end: int, code: int
) -> None:
    state = runtime.start(deployment, stub_command(f"--end={end}"), {})
    assert until_ended(runtime, state).exit_code == code


def test_an_engine_that_ignores_sigterm_is_killed_after_the_timeout(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path
) -> None:
    command = stub_command("--ignore-term", "--log", str(DATA / "unknown-flag.log"))
    state = runtime.start(deployment, command, {})
    eventually(lambda: list(runtime.logs(state.name)))
    assert runtime.stop(state.name, 1).exit_code == 137
    assert members(tmp_path, state) == 0


def test_an_engine_ignores_no_signal_that_the_starting_command_ignored(
    runtime: LocalRuntime, deployment: Deployment
) -> None:
    sleep = shutil.which("sleep")
    assert sleep is not None
    command = RenderedCommand((Part("command", (sleep, "60"), Origin("rule", "test")),), (), None)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        state = runtime.start(deployment, command, {})
    finally:
        signal.signal(signal.SIGHUP, before)
    status = Path(f"/proc/{state.identifier}/status").read_text().splitlines()
    ignored = int(next(line for line in status if line.startswith("SigIgn:")).split()[1], 16)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        assert not ignored & 1 << (number - 1), number


def test_no_worker_outlives_a_stop_and_each_is_asked_first(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    state = runtime.start(deployment, stub_command("--workers", "2", "--worker-note", str(note)), {})
    eventually(lambda: _catches(tmp_path, state, signal.SIGTERM) == 2)
    runtime.stop(state.name, 10)
    assert members(tmp_path, state) == 0
    assert note.read_text() == "asked to end"


def test_workers_that_outlive_a_crash_are_ended(runtime: LocalRuntime, deployment: Deployment, tmp_path: Path) -> None:
    state = runtime.start(deployment, stub_command("--workers", "2"), {})
    eventually(lambda: members(tmp_path, state) == 3)
    os.kill(int(state.identifier), signal.SIGKILL)
    assert until_ended(runtime, state).exit_code == 137
    eventually(lambda: members(tmp_path, state) == 0, timeout_s=30)


def test_a_second_start_is_refused_while_the_first_runs(runtime: LocalRuntime, deployment: Deployment) -> None:
    state = runtime.start(deployment, stub_command(), {})
    with pytest.raises(DeployError, match=f"already runs .pid {state.identifier}") as caught:
        runtime.start(deployment, stub_command(), {})
    assert caught.value.fix.startswith("deploy stop quick")


def test_a_start_after_an_end_keeps_the_earlier_log(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path
) -> None:
    first = runtime.start(deployment, stub_command("--log", str(DATA / "unknown-flag.log"), "--end=2"), {})
    until_ended(runtime, first)
    second = runtime.start(deployment, stub_command(), {})
    assert (second.status, second.exit_code) == ("running", None)
    kept = record_of(tmp_path, second).folder / "engine.log.1"
    assert kept.read_text().splitlines() == recorded("unknown-flag.log")


def test_a_failed_start_leaves_nothing_behind(runtime: LocalRuntime, deployment: Deployment, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/nonexistent/interpreter\n")
    broken.chmod(0o755)
    for program in (str(broken), "/nonexistent/python"):
        command = RenderedCommand((Part("command", (program,), Origin("rule", "test")),), (), None)
        with pytest.raises(DeployError, match=r"cannot be started|is not an executable"):
            runtime.start(deployment, command, {})
        assert runtime.state(deployment.instance_name).status == "absent"
        assert list((tmp_path / ".deploy" / "local").iterdir()) == []


def test_a_stranger_under_the_old_number_is_neither_running_nor_stopped(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path
) -> None:
    state = runtime.start(deployment, stub_command("--end=0"), {})
    until_ended(runtime, state)
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        record = record_of(tmp_path, state)
        record.exit_file.unlink()
        noted = json.loads(record.process_file.read_text())
        noted["engine"]["pid"] = noted["supervisor"]["pid"] = stranger.pid
        record.process_file.write_text(json.dumps(noted))
        assert runtime.state(state.name).status == "dead"
        assert runtime.stop(state.name, 0).status == "exited"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_engine_whose_supervisor_was_killed_can_still_be_stopped(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path
) -> None:
    state = runtime.start(deployment, stub_command(), {})
    stat = Path(f"/proc/{state.identifier}/stat").read_text()
    os.kill(int(stat[stat.rfind(")") + 2 :].split()[1]), signal.SIGKILL)
    assert runtime.state(state.name).status == "running"
    stopped = runtime.stop(state.name, 10)
    assert (stopped.status, stopped.exit_code) == ("exited", None)
    assert members(tmp_path, state) == 0


def test_between_its_end_and_the_note_of_it_an_engine_is_not_dead(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path
) -> None:
    state = runtime.start(deployment, stub_command(), {})
    supervisor = json.loads(record_of(tmp_path, state).process_file.read_text())["supervisor"]["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        os.kill(int(state.identifier), signal.SIGKILL)
        process = record_of(tmp_path, state).process()
        assert process is not None
        eventually(lambda: not is_alive(process))
        assert runtime.state(state.name).status == "running"
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert until_ended(runtime, state).exit_code == 137


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"name": 1}', '{"engine": {"pid": "x"}}', '{"engine": 7}'])
def test_damaged_records_are_no_engine_and_no_traceback(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path, damage: str
) -> None:
    state = runtime.start(deployment, stub_command("--end=0"), {})
    until_ended(runtime, state)
    record = record_of(tmp_path, state)
    record.exit_file.write_text(damage)
    assert runtime.state(state.name).exit_code is None
    record.process_file.write_text(damage)
    assert runtime.state(state.name).status == "exited"
    (record.folder / "state.json").write_text(damage)
    assert runtime.state(state.name).status == "absent"
    assert runtime.instances() == ()


def test_a_start_that_was_cut_off_is_dead_after_a_while(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path
) -> None:
    state = runtime.start(deployment, stub_command("--end=0"), {})
    until_ended(runtime, state)
    record = record_of(tmp_path, state)
    record.process_file.unlink()
    record.exit_file.unlink()
    assert runtime.state(state.name).status == "created"
    data = json.loads((record.folder / "state.json").read_text())
    (record.folder / "state.json").write_text(json.dumps(data | {"created_at": time.time() - 3600}))
    assert runtime.state(state.name).status == "dead"


def test_instances_are_newest_first_and_old_ones_can_be_removed(tmp_path: Path, free_port: int) -> None:
    runtime = LocalRuntime(tmp_path)
    names = []
    for number in range(4):
        deployment = local_deployment(tmp_path, free_port, env={"NUMBER": str(number)})
        state = runtime.start(deployment, stub_command(*(["--end=0"] if number < 3 else [])), {})
        names.append(state.name)
        if number < 3:
            until_ended(runtime, state)
    assert [state.name for state in runtime.instances("quick")] == names[::-1]
    assert runtime.instances("other") == ()
    assert runtime.remove_old("quick", 1) == (names[1], names[0])
    assert [state.name for state in runtime.instances()] == [names[3], names[2]]
    assert runtime.remove_old("quick", 0) == (names[2],)
    assert runtime.state(names[3]).status == "running"
    runtime.stop(names[3], 5)


def test_logs_are_those_of_the_engine_and_following_ends_with_it(runtime: LocalRuntime, deployment: Deployment) -> None:
    command = stub_command("--log", str(DATA / "unknown-flag.log"), "--pace", "0.1", "--end=2")
    state = runtime.start(deployment, command, {})
    assert list(runtime.logs(state.name, follow=True)) == recorded("unknown-flag.log")
    assert list(runtime.logs(state.name, tail=1)) == recorded("unknown-flag.log")[-1:]
    with pytest.raises(DeployError, match="there is no engine other"):
        runtime.logs("other")


def test_secrets_are_in_the_environment_of_the_engine_and_nowhere_else(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path
) -> None:
    state = runtime.start(deployment, stub_command(env={"PLAIN": "1"}), {"VLLM_API_KEY": SECRET})
    environment = Path(f"/proc/{state.identifier}/environ").read_bytes().split(b"\0")
    assert f"VLLM_API_KEY={SECRET}".encode() in environment
    assert b"PLAIN=1" in environment
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert SECRET.encode() not in entry.read_bytes()
        except OSError:
            continue


def test_only_what_says_where_things_lie_is_inherited() -> None:
    shell = {"PATH": "/bin", "HOME": "/home/x", "VLLM_USE_V2_MODEL_RUNNER": "1", "PYTHONPATH": "/evil", "AWS_KEY": "x"}
    command = stub_command(env={"PATH": "/opt/bin", "TOKEN": "layout"})
    assert engine_environment(shell, command, {"TOKEN": "secret"}) == {
        "PATH": "/opt/bin",
        "HOME": "/home/x",
        "TOKEN": "secret",
    }


def test_the_supervisor_does_not_load_what_the_engine_is_given(
    runtime: LocalRuntime, deployment: Deployment, tmp_path: Path
) -> None:
    farm = tmp_path / "farm"
    farm.mkdir()
    (farm / "json.py").write_text("raise SystemExit('the overlay was loaded by the supervisor')\n")
    (farm / "sitecustomize.py").write_text("import pathlib; pathlib.Path('seen').write_text('by the engine')\n")
    state = runtime.start(deployment, stub_command(env={"PYTHONPATH": str(farm)}), {})
    assert state.status == "running"
    assert eventually(lambda: (tmp_path / "seen").exists())


def test_a_port_in_use_is_refused_with_its_holder(runtime: LocalRuntime, deployment: Deployment) -> None:
    holder = f"port .* is in use by pid {os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", deployment.container.publish_port)),
        pytest.raises(DeployError, match=holder) as caught,
    ):
        runtime.preflight(deployment)
    assert "PORT=" in caught.value.fix


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {"python": "/nonexistent/python"}}, "/nonexistent/python is not an executable"),
        ({"model": {"path": "/nonexistent/model"}}, "there is no model at /nonexistent/model"),
    ],
)
def test_what_is_missing_is_one_clear_line(
    runtime: LocalRuntime, tmp_path: Path, free_port: int, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(DeployError, match=message) as caught:
        runtime.preflight(local_deployment(tmp_path, free_port, **changes))
    assert "\n" not in caught.value.what
    assert caught.value.fix
    assert not (tmp_path / ".deploy").exists()


def fake_environment(tmp_path: Path, version: str | None) -> str:
    """An interpreter whose vllm package only states its version; None gives one without vLLM."""
    site = tmp_path / "site"
    (site / "vllm").mkdir(parents=True)
    if version is not None:
        (site / "vllm" / "__init__.py").write_text("raise SystemExit('imported')\n")
        (site / "vllm" / "_version.py").write_text(f"__version__ = {version!r}\n")
    else:
        (site / "vllm").rmdir()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_the_engines_version_must_be_the_layouts(runtime: LocalRuntime, tmp_path: Path, free_port: int) -> None:
    python = fake_environment(tmp_path, "0.28.0+cpu")
    with pytest.raises(DeployError, match=r"has vLLM 0\.28\.0\+cpu, and the layout is for 0\.30\.0"):
        runtime.preflight(local_deployment(tmp_path, free_port, engine={"python": python}))
    runtime.preflight(local_deployment(tmp_path, free_port, engine={"python": python, "vllm": "0.28.0"}))


def test_an_interpreter_without_vllm_is_refused(runtime: LocalRuntime, tmp_path: Path, free_port: int) -> None:
    python = fake_environment(tmp_path, None)
    with pytest.raises(DeployError, match="has no vllm package"):
        runtime.preflight(local_deployment(tmp_path, free_port, engine={"python": python}))


def test_overlays_that_are_not_built_are_refused(runtime: LocalRuntime, tmp_path: Path, free_port: int) -> None:
    deployment = local_deployment(tmp_path, free_port, patches=["pp-cpu-eager"])
    assert deployment.overlay is not None
    with pytest.raises(DeployError, match="the overlays of quick are not built") as caught:
        runtime.preflight(deployment)
    assert caught.value.fix == "deploy patch build quick"


def test_the_recorded_healthy_log_is_whole_enough_to_be_played() -> None:
    assert any("Application startup complete." in line for line in recorded(HEALTHY))
    assert identify(os.getpid()) is not None
