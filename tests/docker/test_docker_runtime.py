"""The docker runtime against a real Docker engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from quick_containers import Build, containers_of, docker, eventually

from shardwright.errors import DeployError, ExitCode
from shardwright.render.command import render
from shardwright.resolve.deployment import Deployment
from shardwright.runtime.docker import DockerRuntime

pytestmark = pytest.mark.docker


def start(runtime: DockerRuntime, deployment: Deployment, secrets: dict[str, str] | None = None) -> Any:
    return runtime.start(deployment, render(deployment), secrets or {})


def refusal(call: Any, *arguments: Any) -> DeployError:
    with pytest.raises(DeployError) as caught:
        call(*arguments)
    assert caught.value.code == ExitCode.REFUSED
    assert "\n" not in caught.value.what
    return caught.value


def test_what_is_shown_is_what_runs(runtime: DockerRuntime, build: Build) -> None:
    deployment = build(env={"PLAIN": "a value, with 'quotes' and $dollar"})
    runtime.preflight(deployment)
    state = start(runtime, deployment)
    assert (state.name, state.layout, state.status) == (deployment.instance_name, deployment.name, "running")
    assert (state.exit_code, state.restart_count) == (None, 0)
    assert abs(time.time() - state.started_at) < 60
    facts = json.loads(docker("inspect", state.identifier))[0]
    assert "PLAIN=a value, with 'quotes' and $dollar" in facts["Config"]["Env"]
    assert facts["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert facts["HostConfig"]["Privileged"] is False
    assert facts["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]
    (binding,) = facts["HostConfig"]["PortBindings"]["8000/tcp"]
    assert binding == {"HostIp": "127.0.0.1", "HostPort": str(deployment.container.publish_port)}


def test_an_engine_that_was_never_started_is_absent(runtime: DockerRuntime) -> None:
    state = runtime.state("no-such-engine")
    assert (state.status, state.identifier, state.exit_code) == ("absent", "", None)
    assert runtime.stop("no-such-engine", 1).status == "absent"
    assert "no container no-such-engine" in refusal(runtime.logs, "no-such-engine").what


def test_stop_asks_before_it_kills_and_keeps_the_logs(runtime: DockerRuntime, build: Build) -> None:
    polite = (
        "import signal,sys,time; signal.signal(15, lambda *a: sys.exit(7)); print('up', flush=True); time.sleep(600)"
    )
    deployment = build(polite)
    start(runtime, deployment)
    next(runtime.logs(deployment.instance_name, follow=True))
    state = runtime.stop(deployment.instance_name, 20)
    assert (state.status, state.exit_code) == ("exited", 7)
    assert list(runtime.logs(deployment.instance_name)) == ["up"]
    assert runtime.stop(deployment.instance_name, 20) == state


def test_an_engine_that_ignores_the_request_is_killed(runtime: DockerRuntime, build: Build) -> None:
    deployment = build(
        "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    start(runtime, deployment)
    next(runtime.logs(deployment.instance_name, follow=True))
    assert runtime.stop(deployment.instance_name, 1).exit_code == 137


def test_an_exit_with_code_zero_is_reported_as_exited(runtime: DockerRuntime, build: Build) -> None:
    deployment = build("print('bye')")
    start(runtime, deployment)
    state = eventually(lambda: runtime.state(deployment.instance_name), lambda state: state.status == "exited")
    assert state.exit_code == 0


def test_a_restart_loop_is_not_taken_for_running(runtime: DockerRuntime, build: Build) -> None:
    deployment = build("import sys; sys.exit(3)", container={"restart": "always"})
    start(runtime, deployment)
    state = eventually(
        lambda: runtime.state(deployment.instance_name),
        lambda state: state.restart_count >= 2 and state.status == "restarting",
    )
    assert state.exit_code == 3
    # Docker itself says Running=true here.
    assert runtime.stop(deployment.instance_name, 1).status == "exited"


def test_logs_follow_and_tail(runtime: DockerRuntime, build: Build) -> None:
    script = (
        "import sys,time\nfor i in range(5): print('line', i, flush=True)\n"
        "print('warned', file=sys.stderr, flush=True)\n"
        "time.sleep(1); print('\\u2028 late \\xff', flush=True)"
    )
    deployment = build(script, env={"PYTHONIOENCODING": "utf-8"})
    start(runtime, deployment)
    followed = list(runtime.logs(deployment.instance_name, follow=True))
    assert sorted(followed) == sorted([*(f"line {i}" for i in range(5)), "warned", "\u2028 late ÿ"])
    assert list(runtime.logs(deployment.instance_name, tail=1)) == ["\u2028 late ÿ"]
    # The order between the two outputs is Docker's to choose, the order within one is not.
    lines = [line for line in runtime.logs(deployment.instance_name) if line.startswith("line")]
    assert lines == [f"line {i}" for i in range(5)]


def test_an_exited_predecessor_keeps_its_logs_under_another_name(
    runtime: DockerRuntime, build: Build, project: Path
) -> None:
    deployment = build("import time; print(time.time())")
    names = []
    for _ in range(4):
        first = start(runtime, deployment)
        eventually(lambda: runtime.state(deployment.instance_name), lambda state: state.status == "exited")
        names.append(first.identifier)
    instances = runtime.instances(deployment.name)
    assert [instance.identifier for instance in instances] == names[::-1]
    assert instances[0].name == deployment.instance_name
    assert all(len(list(runtime.logs(instance.name))) == 1 for instance in instances)
    assert runtime.instances("another-layout") == ()
    removed = runtime.remove_old(deployment.name, keep=3)
    assert removed == (instances[-1].name,)
    assert [instance.identifier for instance in runtime.instances()] == names[:0:-1]
    assert len(containers_of(project)) == 3


def test_a_running_engine_is_never_removed_as_old(runtime: DockerRuntime, build: Build) -> None:
    deployment = build()
    start(runtime, deployment)
    assert runtime.remove_old(deployment.name, keep=0) == ()
    assert runtime.state(deployment.instance_name).status == "running"


def test_the_same_deployment_is_not_started_twice(runtime: DockerRuntime, build: Build) -> None:
    deployment = build()
    first = start(runtime, deployment)
    for call in (runtime.preflight, lambda one: start(runtime, one)):
        error = refusal(call, deployment)
        assert "already running" in error.what
        assert f"deploy status {deployment.name}" in error.fix
    assert runtime.state(deployment.instance_name) == first


@pytest.mark.parametrize(
    ("labels", "own_project"),
    [([], True), ([], False), (["--label", "shardwright.layout=x"], True)],
    ids=["unlabelled", "unlabelled, for any project", "of another project"],
)
def test_a_foreign_container_of_the_name_is_never_touched(
    build: Build, project: Path, engine_image: str, labels: list[str], own_project: bool
) -> None:
    runtime = DockerRuntime(str(project)) if own_project else DockerRuntime()
    deployment = build()
    name = deployment.instance_name
    foreign = docker("create", *labels, "--pull", "never", "--name", name, "--entrypoint", "true", engine_image)
    try:
        for call in (
            runtime.preflight,
            lambda one: start(runtime, one),
            lambda one: runtime.stop(one.instance_name, 1),
        ):
            assert "did not start" in refusal(call, deployment).what
        assert runtime.state(name).status == "absent"
        assert docker("inspect", "--format", "{{.Name}} {{.State.Status}}", foreign) == f"/{name} created"
    finally:
        docker("rm", foreign)


def test_a_start_that_was_cut_off_before_it_ran_is_cleared_away(runtime: DockerRuntime, build: Build) -> None:
    deployment = build()
    argv = render(deployment).argv
    docker("create", *(token for token in argv[2:] if token != "--detach"))
    assert runtime.state(deployment.instance_name).status == "created"
    start(runtime, deployment)
    assert [instance.status for instance in runtime.instances(deployment.name)] == ["running"]


def test_stop_clears_away_what_never_ran(runtime: DockerRuntime, build: Build) -> None:
    deployment = build()
    docker("create", *(token for token in render(deployment).argv[2:] if token != "--detach"))
    assert runtime.stop(deployment.instance_name, 1).status == "absent"


def test_ctrl_c_during_start_leaves_a_whole_engine(runtime: DockerRuntime, build: Build) -> None:
    deployment = build(secrets=["TOKEN"])
    start(runtime, deployment, {"TOKEN": "x"})
    runtime.stop(deployment.instance_name, 0)
    file = Path(str(render(deployment).secrets_file))

    def interrupt_while_docker_runs() -> None:
        while not file.exists():
            time.sleep(0.001)
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_while_docker_runs, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        start(runtime, deployment, {"TOKEN": "x"})
    assert runtime.state(deployment.instance_name).status == "running"
    assert not file.exists()


class TestSecrets:
    VALUE = "s3cr3t 'quoted' $HOME\nsecond line \\ end"
    SCRIPT = (
        "import os,time,hashlib; print(hashlib.sha256(os.environb[b'TOKEN']).hexdigest(), flush=True); time.sleep(600)"
    )

    def test_reach_the_engine_and_nothing_else(self, runtime: DockerRuntime, build: Build, project: Path) -> None:
        from hashlib import sha256

        deployment = build(self.SCRIPT, secrets=["TOKEN"])
        command = render(deployment)
        state = start(runtime, deployment, {"TOKEN": self.VALUE})
        seen = next(runtime.logs(deployment.instance_name, follow=True))
        assert seen == sha256(self.VALUE.encode()).hexdigest()
        assert "s3cr3t" not in docker("inspect", state.identifier)
        assert "s3cr3t" not in docker("logs", state.identifier)
        assert "s3cr3t" not in " ".join(command.argv)
        assert not Path(str(command.secrets_file)).exists()

    def test_stay_for_a_restart_and_go_at_stop(self, runtime: DockerRuntime, build: Build) -> None:
        deployment = build("import sys; sys.exit(3)", secrets=["TOKEN"], container={"restart": "always"})
        file = Path(str(render(deployment).secrets_file))
        start(runtime, deployment, {"TOKEN": self.VALUE})
        eventually(lambda: runtime.state(deployment.instance_name), lambda state: state.restart_count >= 2)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        runtime.stop(deployment.instance_name, 1)
        assert not file.exists()

    def test_of_an_engine_that_may_restart_outlive_the_removal_of_an_old_one(
        self, runtime: DockerRuntime, build: Build
    ) -> None:
        deployment = build(secrets=["TOKEN"], container={"restart": "always"})
        file = Path(str(render(deployment).secrets_file))
        for _ in range(2):
            runtime.stop(deployment.instance_name, 1)
            start(runtime, deployment, {"TOKEN": self.VALUE})
        assert len(runtime.remove_old(deployment.name, keep=0)) == 1
        assert file.exists()

    def test_are_removed_when_the_start_fails(self, runtime: DockerRuntime, build: Build) -> None:
        deployment = build(secrets=["TOKEN"], engine={"image": "no-such-image:1"}, container={"restart": "always"})
        refusal(lambda: start(runtime, deployment, {"TOKEN": self.VALUE}))
        assert not Path(str(render(deployment).secrets_file)).exists()


class TestNothingIsLeftBehind:
    """Faults that only show when docker is asked to run; whatever it had created is gone afterwards."""

    @pytest.fixture(autouse=True)
    def _clean(self, project: Path) -> Any:
        yield
        assert containers_of(project) == []

    def test_when_the_port_was_taken_meanwhile(self, runtime: DockerRuntime, build: Build, free_port: int) -> None:
        deployment = build()
        with socket.create_server(("127.0.0.1", free_port)):
            error = refusal(lambda: start(runtime, deployment))
        assert f"port {free_port} is in use by another process" in error.what

    def test_when_the_entrypoint_is_missing(self, runtime: DockerRuntime, build: Build) -> None:
        deployment = build(engine={"entrypoint": ["no-such-program"]})
        assert "cannot run no-such-program" in refusal(lambda: start(runtime, deployment)).what

    def test_when_the_image_is_absent(self, runtime: DockerRuntime, build: Build) -> None:
        deployment = build(engine={"image": "no-such-image:1"})
        error = refusal(lambda: start(runtime, deployment))
        assert "the image no-such-image:1 is not on this host" in error.what
        assert error.fix == "docker pull no-such-image:1"

    def test_when_there_is_no_gpu_runtime(self, runtime: DockerRuntime, build: Build) -> None:
        if "nvidia" in docker("info", "--format", "{{json .Runtimes}}"):
            pytest.skip("this host has a GPU runtime")
        deployment = build(container={"gpus": "all"})
        assert "no GPU runtime" in refusal(lambda: start(runtime, deployment)).what

    def test_when_a_mount_source_vanished(self, runtime: DockerRuntime, build: Build) -> None:
        deployment = build(container={"mounts": [{"source": "gone", "target": "/data"}]})
        assert "gone does not exist" in refusal(lambda: start(runtime, deployment)).what


def test_a_predecessor_gets_its_name_back_when_the_start_fails(
    runtime: DockerRuntime, build: Build, free_port: int
) -> None:
    deployment = build("print('first')")
    first = start(runtime, deployment)
    eventually(lambda: runtime.state(deployment.instance_name), lambda state: state.status == "exited")
    with socket.create_server(("127.0.0.1", free_port)):
        refusal(lambda: start(runtime, deployment))
    assert runtime.state(deployment.instance_name).identifier == first.identifier
    assert len(runtime.instances(deployment.name)) == 1
