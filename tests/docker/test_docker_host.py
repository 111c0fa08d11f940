"""What is read of a real Docker engine and of a running container for facts and proofs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from quick_containers import Build, docker

from shardwright.connect.container_tree import ContainerTree
from shardwright.connect.docker_sdk import DockerEngine
from shardwright.facts.docker_host import read_docker_host
from shardwright.render.command import render
from shardwright.runtime.docker import DockerRuntime

pytestmark = pytest.mark.docker

PACKAGE = "/usr/local/lib/python3.11/dist-packages/vllm"
MODEL_FILE = "model_executor/models/deepseek_v2.py"


def test_the_engine_says_its_runtimes_and_where_it_keeps_images() -> None:
    found = read_docker_host()
    assert found is not None
    assert set(docker("info", "--format", "{{range $name, $_ := .Runtimes}}{{$name}} {{end}}").split()) <= set(
        found.runtimes
    )
    assert str(found.root) == docker("info", "--format", "{{.DockerRootDir}}")


def test_the_files_of_a_container_are_those_that_it_runs_with(
    runtime: DockerRuntime, build: Build, project: Path
) -> None:
    """Not those that stand on the host now, and also when the source of its secrets is gone."""
    mounted = project / "patched.py"
    mounted.write_text("as started")
    mounts = [{"source": "patched.py", "target": f"{PACKAGE}/{MODEL_FILE}"}]
    deployment = build(secrets=["TOKEN"], container={"mounts": mounts})
    state = runtime.start(deployment, render(deployment), {"TOKEN": "x"})
    assert not Path(str(render(deployment).secrets_file)).exists()
    (project / "new.py").write_text("replaced")
    (project / "new.py").replace(mounted)
    tree = ContainerTree(state.name, PACKAGE, "0.30.0")
    assert tree.read(MODEL_FILE) == b"as started"
    assert b"MixtralForCausalLM" in tree.read("model_executor/models/mixtral.py")
    assert not tree.exists("model_executor/models/no_such_model.py")


def test_a_program_that_is_not_in_the_container_is_told_from_one_that_fails(
    runtime: DockerRuntime, build: Build
) -> None:
    deployment = build()
    state = runtime.start(deployment, render(deployment), {})
    engine = DockerEngine()
    assert engine.execute(state.identifier, ["sh", "-c", "echo out; echo err >&2; exit 3"]).stdout == b"out\n"
    assert engine.execute(state.identifier, ["sh", "-c", "exit 3"]).status == 3
    assert engine.execute(state.identifier, ["no-such-program"]).status in (126, 127)
    assert subprocess.run(["docker", "exec", state.name, "true"]).returncode == 0
