"""A campaign on Docker that is cut off: killed between two steps, its engine killed, its Docker socket gone.

A stand-in in the engine's image answers. Each time the next call goes on, and a container that is not ours stays as it
is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from quick_containers import containers_of, docker

from tests.deploy_cli import ROOT, Deploy

pytestmark = pytest.mark.docker

HERE = Path(__file__).parent
UNASKED = ("quality", "degen", "needle", "repeat", "speed", "parity", "degen-long")
BETWEEN_START_AND_NOTE = "shardwright.campaign.launch:write_record"
BETWEEN_STOP_AND_START = "shardwright.campaign.rollback:start_again"
BETWEEN_THE_OLD_AND_THE_NEW = "shardwright.campaign.up:start_locked"


class Stage:
    """One project with one layout, `stub`, in containers."""

    def __init__(self, project: Path, image: str, port: int) -> None:
        self.project = project
        self._image = image
        self._port = port
        self.deploy = Deploy(project)
        self.layout()

    def layout(self, max_model_len: int = 8192, image: str | None = None) -> None:
        """Write the layout; another length makes another deployment, and so does another image."""
        mounts = {ROOT / "shardwright": "/package/shardwright", HERE / "stand_in": "/stand-in"}
        content = {
            "schema": "shardwright/v1",
            "name": "stub",
            "status": "ready",
            "runtime": "docker",
            "model": {"path": "some-org/some-model"},
            "engine": {
                "image": image or self._image,
                "vllm": "0.30.0",
                "platform": "cpu",
                "entrypoint": ["python3", "-B", "/stand-in/serve.py"],
            },
            "container": {
                "publish": f"127.0.0.1:{self._port}:8000",
                "mounts": [{"source": str(source), "target": target} for source, target in mounts.items()],
                "stop_timeout_s": 10,
            },
            "env": {"PYTHONPATH": "/package"},
            "serve": {"served_model_name": "faulty-model", "max_model_len": max_model_len},
            "probes": {"not_applicable": dict.fromkeys(UNASKED, "not what this test is about")},
            "wait": {"timeout_s": 60},
        }
        (self.project / "configs" / "layouts" / "stub.yaml").write_text(json.dumps(content))

    def killed(self, before: str, *words: str) -> None:
        """`deploy WORDS`, dead at this boundary."""
        done = subprocess.run(
            [sys.executable, str(HERE / "killed_before.py"), *words],
            env={**self.deploy.environment, "KILL_BEFORE": before},
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr

    def running(self) -> list[str]:
        """Ids of the containers of this project that run."""
        return docker("ps", "--quiet", "--filter", f"label=shardwright.project={self.project}").splitlines()

    def up(self, *words: str) -> str:
        """Bring it up; the id of its container."""
        outcome = self.deploy.ok("up", "stub", "--json", *words)
        assert outcome.data["verdict"] == "PASS"
        assert self.deploy("evidence", "verify", outcome.data["run"]).status == 0
        (container,) = self.running()
        return container


@pytest.fixture
def stage(project: Path, engine_image: str, free_port: int) -> Stage:
    return Stage(project, engine_image, free_port)


@pytest.fixture(autouse=True)
def foreign(engine_image: str) -> Iterator[None]:
    """A container of another project with a layout of the same name runs beside, and runs untouched at the end."""
    labels = ("--label", "shardwright.project=/elsewhere", "--label", "shardwright.layout=stub")
    other = docker("run", "--detach", "--pull", "never", *labels, "--entrypoint", "sleep", engine_image, "600")
    form = ("inspect", "--format", "{{.Id}} {{.Name}} {{.State.Status}} {{.State.StartedAt}}", other)
    before = docker(*form)
    try:
        yield
        assert docker(*form) == before
        assert " running " in before
    finally:
        docker("rm", "--force", other)


def test_an_up_that_was_killed_before_its_note_takes_the_container_that_runs(stage: Stage) -> None:
    stage.killed(BETWEEN_START_AND_NOTE, "up", "stub")
    (left,) = stage.running()
    assert stage.up() == left
    assert len(containers_of(stage.project)) == 1


def test_a_rollback_that_was_killed_between_stop_and_start_ends_on_the_accepted_container(stage: Stage) -> None:
    first = stage.up()
    stage.layout(4096)
    second = stage.up("--replace")
    stage.killed(BETWEEN_STOP_AND_START, "rollback", "stub")
    assert stage.running() == []
    stage.deploy.ok("rollback", "stub")
    assert stage.running() == [first] != [second]


@pytest.mark.parametrize("verb", ["up", "rollback"])
def test_a_replacement_that_was_killed_between_the_old_and_the_new_can_go_on_or_back(stage: Stage, verb: str) -> None:
    first = stage.up()
    stage.layout(4096)
    stage.killed(BETWEEN_THE_OLD_AND_THE_NEW, "up", "stub", "--replace")
    assert stage.running() == []
    if verb == "up":
        assert stage.up("--replace") != first
    else:
        stage.deploy.ok("rollback", "stub")
        assert stage.running() == [first]


def test_a_replacement_whose_image_is_missing_goes_back_by_itself(stage: Stage) -> None:
    first = stage.up()
    stage.layout(image="no-such-image:0.30.0")
    outcome = stage.deploy("up", "stub", "--replace", "--auto-rollback")
    assert outcome.status == 1, outcome.stderr
    assert "no-such-image" in outcome.stderr
    assert stage.running() == [first]


def test_a_killed_engine_is_brought_up_again_and_its_log_is_kept(stage: Stage) -> None:
    first = stage.up()
    docker("kill", first)
    assert stage.running() == []
    assert stage.up() != first
    assert len(containers_of(stage.project)) == 2
    assert "Application startup complete." in docker("logs", first)


@pytest.mark.parametrize("verb", ["up", "rollback"])
def test_a_docker_socket_that_is_gone_is_one_line_and_loses_nothing(stage: Stage, verb: str) -> None:
    first = stage.up()
    stage.layout(4096)
    second = stage.up("--replace")
    cut_off = Deploy(stage.project, DOCKER_HOST="unix:///no/such/docker.sock")
    outcome = cut_off(verb, "stub")
    assert outcome.status == 1
    errors = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Docker" in errors[0]
    assert "Traceback" not in outcome.stderr and os.linesep * 2 not in outcome.stderr
    assert stage.running() == [second]
    if verb == "up":
        assert stage.up() == second
    else:
        stage.deploy.ok("rollback", "stub")
        assert stage.running() == [first]
