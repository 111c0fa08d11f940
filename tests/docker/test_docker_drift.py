"""`deploy drift` against containers that really run: each thing that can come apart, and nothing where nothing did."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from quick_containers import SERVE_FOREVER, docker

from tests.deploy_cli import Deploy

pytestmark = pytest.mark.docker

PACKAGE = "/usr/local/lib/python3.11/dist-packages/vllm"
PATCHED = "v1/worker/cpu_model_runner.py"
SECRET = "planted-secret-7c1e4"
TAG = "shardwright-test/drift:moving"


class Running:
    """A layout of its own, started through the command; `drift` compares, `change` writes the layout anew."""

    def __init__(self, project: Path, image: str, port: int) -> None:
        self.project = project
        self.file = project / "configs" / "layouts" / "quick.yaml"
        self.deploy = Deploy(project, HF_TOKEN=SECRET)
        (project / "settings.json").write_text("{}")
        (project / "plugins").mkdir()
        self.layout: dict[str, Any] = {
            "schema": "shardwright/v1",
            "name": "quick",
            "runtime": "docker",
            "model": {"path": "some-org/some-model"},
            "engine": {
                "image": image,
                "vllm": "0.30.0",
                "platform": "cpu",
                "package_root": PACKAGE,
                "entrypoint": ["python3", "-c", SERVE_FOREVER],
            },
            "env": {"PLAIN": "as started"},
            "secrets": ["HF_TOKEN"],
            "container": {
                "publish": f"127.0.0.1:{port}:8000",
                "shm_size": "1g",
                "ulimits": {"core": "0", "nofile": "256:512"},
                "security_opt": ["label=disable"],
                "devices": ["/dev/null:/dev/nothing"],
                "healthcheck": {"command": "true"},
                "mounts": [
                    {"source": "settings.json", "target": "/etc/issue"},
                    {"source": "plugins", "target": "/plugins"},
                ],
            },
            "patches": [],
        }

    def change(self, **sections: Any) -> None:
        for name, value in sections.items():
            self.layout[name] = {**self.layout.get(name, {}), **value} if isinstance(value, dict) else value
        self.file.write_text(json.dumps(self.layout))

    def start(self) -> str:
        self.change()
        if self.layout["patches"]:
            self.deploy.ok("patch", "build", str(self.file))
        return self.deploy.ok("start", str(self.file)).stdout.split()[1].rstrip(";")

    def drift(self) -> tuple[int, dict[str, dict[str, str]]]:
        found = self.deploy("drift", str(self.file), "--json")
        assert found.status in (0, 2), found.stderr
        assert SECRET not in found.stdout + found.stderr
        assert found.data["verdict"] == ("drift" if found.status else "none")
        return found.status, {row["path"]: row for row in found.data["differences"]}


@pytest.fixture
def running(project: Path, engine_image: str, free_port: int) -> Running:
    return Running(project, engine_image, free_port)


def test_an_untouched_engine_has_no_drift_and_nothing_is_compared_where_nothing_runs(running: Running) -> None:
    running.change()
    refused = running.deploy("drift", str(running.file))
    assert refused.status == 1 and "nothing of quick" in refused.stderr
    running.start()
    assert running.drift() == (0, {})
    shown = running.deploy.ok("drift", str(running.file)).stdout
    assert "no drift" in shown
    running.deploy.ok("stop", str(running.file), "--timeout", "0")
    assert running.deploy("drift", str(running.file)).status == 1


def test_what_the_layout_now_says_otherwise_is_named_by_its_key(running: Running) -> None:
    running.start()
    running.change(
        env={"PLAIN": "changed", "MORE": "x"},
        serve={"max_model_len": 4096},
        secrets=["HF_TOKEN", "OTHER_TOKEN"],
        container={"shm_size": "2g", "ipc": "host", "restart": "on-failure:2", "publish": "127.0.0.1:1:8000"},
    )
    status, found = running.drift()
    assert status == 2
    assert set(found) == {
        *("argv.--max-model-len", "env.PLAIN", "env.MORE", "secrets"),
        *("container.shm_size", "container.ipc", "container.restart", "container.publish"),
    }
    assert (found["container.shm_size"]["running"], found["container.shm_size"]["wanted"]) == ("1024 MiB", "2048 MiB")
    assert found["env.MORE"]["running"] == "unset"
    assert "deploy stop quick" in found["container.ipc"]["fix"]


def test_a_mounted_file_that_was_replaced_or_written_after_the_start(running: Running) -> None:
    running.start()
    settings = running.project / "settings.json"
    settings.write_text('{"written": "in place"}')
    status, found = running.drift()
    assert (status, set(found)) == (2, {"files./etc/issue"})
    assert "may be older" in found["files./etc/issue"]["why"]

    (running.project / "new.json").write_text('{"another": "file"}')
    (running.project / "new.json").replace(settings)
    status, found = running.drift()
    assert (status, set(found)) == (2, {"files./etc/issue"})
    row = found["files./etc/issue"]
    assert "the running one is older" in row["why"]
    assert row["running"].startswith("sha256:") and row["running"] != row["wanted"]


def test_an_overlay_that_was_edited_after_the_start(running: Running) -> None:
    running.change(patches=["pp-cpu-eager"])
    running.start()
    (overlay,) = running.project.glob(f"overlays/*/*/vllm/{PATCHED}")
    built = overlay.read_bytes()
    edited = overlay.with_suffix(".new")
    edited.write_bytes(built + b"# edited\n")
    edited.replace(overlay)
    status, found = running.drift()
    path = f"files.{PACKAGE}/{PATCHED}"
    assert (status, set(found)) == (2, {path, "overlay"})
    assert "the running one is older" in found[path]["why"]
    assert "TAMPERED" in found["overlay"]["wanted"]
    assert found["overlay"]["fix"] == "deploy patch build quick"


def test_a_rebuilt_overlay_with_the_same_content_is_no_drift(running: Running) -> None:
    running.change(patches=["pp-cpu-eager"])
    running.start()
    (overlay,) = running.project.glob(f"overlays/*/*/vllm/{PATCHED}")
    again = overlay.with_suffix(".new")
    shutil.copy2(overlay, again)
    os.utime(again)
    again.replace(overlay)
    assert running.drift() == (0, {})


def test_a_folder_that_another_one_took_the_place_of(running: Running) -> None:
    running.start()
    plugins = running.project / "plugins"
    (plugins / "late.py").write_text("")
    assert running.drift() == (0, {}), "a mounted folder shows what is put into it"
    plugins.rename(running.project / "plugins.old")
    plugins.mkdir()
    status, found = running.drift()
    assert (status, set(found)) == (2, {"files./plugins"})


def test_code_that_was_changed_inside_the_container(running: Running) -> None:
    # Older Docker engines copy nothing into a container whose secrets file is gone from the host.
    running.change(secrets=[])
    name = running.start()
    docker("exec", name, "sh", "-c", f"echo '# x' >>{PACKAGE}/version.py; rm {PACKAGE}/envs.py; echo x >/tmp/x.py")
    docker("cp", str(running.project / "settings.json"), f"{name}:{PACKAGE}/added.py")
    docker("exec", name, "sh", "-c", f"mkdir -p {PACKAGE}/__pycache__; echo x >{PACKAGE}/__pycache__/x.pyc")
    status, found = running.drift()
    assert status == 2
    assert set(found) == {f"files.{PACKAGE}/{file}" for file in ("version.py", "envs.py", "added.py")}
    assert found[f"files.{PACKAGE}/envs.py"]["running"] == "absent"
    assert all(row["wanted"] == "the image's own" for row in found.values())


def test_a_container_that_was_made_anew_by_hand(running: Running) -> None:
    name = running.start()
    argv = json.loads(running.deploy.ok("cmd", str(running.file), "--json").stdout)["argv"]
    secrets_file = running.project / ".deploy" / "secrets" / "quick.env"
    secrets_file.write_text(f"HF_TOKEN='{SECRET}'\n")
    at = argv.index("--env")
    more = ["--env", f"API_KEY={SECRET}", "--cap-add", "SYS_PTRACE", "--memory", "1g"]
    docker("rm", "--force", name)
    subprocess.run([*argv[:at], *more, *argv[at:], "--api-key", SECRET], check=True, capture_output=True)
    status, found = running.drift()
    assert status == 2
    assert set(found) == {
        *("env.API_KEY", "argv.--api-key"),
        *("container.cap_add", "container.memory"),
    }
    assert (found["env.API_KEY"]["wanted"], found["argv.--api-key"]["wanted"]) == ("unset", "absent")


@pytest.fixture
def moving_tag(engine_image: str) -> Iterator[Callable[[], str]]:
    """A tag on the engine image; calling it moves the tag to another image and gives that one's id."""
    docker("tag", engine_image, TAG)
    parents, others = [docker("create", engine_image)], []

    def move() -> str:
        others.append(docker("commit", "--change", "LABEL other=1", "--change", "ENV ADDED=1", parents[0], TAG))
        return others[-1]

    yield move
    docker("rm", *parents)
    docker("rmi", "--force", TAG, *others)


def test_a_tag_that_names_another_image_than_at_the_start(
    running: Running, moving_tag: Callable[[], str], project: Path
) -> None:
    running.change(engine={"image": TAG}, patches=["pp-cpu-eager"])
    running.start()
    assert running.drift() == (0, {})
    other = moving_tag()
    status, found = running.drift()
    assert status == 2
    assert set(found) == {"image", "env.ADDED", "overlay"}
    assert found["image"]["wanted"] == other
    assert "IMAGE_CHANGED" in found["overlay"]["wanted"]
    docker("rmi", TAG)
    status, found = running.drift()
    assert status == 2 and set(found) == {"image"}
    assert "not on this host" in found["image"]["wanted"] and f"docker pull {TAG}" == found["image"]["fix"]
