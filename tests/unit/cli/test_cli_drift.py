"""`deploy drift` through the command, against a local engine that really runs: a stand-in for vLLM."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwright.runtime.local_record import Record, records
from tests.unit.helpers import Result

SECRET = "planted-secret-44c0"
SERVER = "import time\nprint('serving', flush=True)\ntime.sleep(600)\n"


class Local:
    """A project with one layout, called `quick`."""

    def __init__(self, project: Path, cli: Callable[..., Result], port: int) -> None:
        self.project, self._cli = project, cli
        self.site = project / "site"
        (self.site / "vllm" / "entrypoints" / "cli").mkdir(parents=True)
        for package in ("vllm", "vllm/entrypoints", "vllm/entrypoints/cli"):
            (self.site / package / "__init__.py").write_text("")
        (self.site / "vllm" / "_version.py").write_text("__version__ = '0.30.0'\n")
        (self.site / "vllm" / "entrypoints" / "cli" / "main.py").write_text(SERVER)
        python = project / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={self.site} exec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
        (project / "model").mkdir()
        self.file = project / "configs" / "layouts" / "quick.yaml"
        self.file.parent.mkdir(parents=True)
        self.layout: dict[str, Any] = {
            "schema": "shardwright/v1",
            "name": "quick",
            "runtime": "local",
            "model": {"path": str(project / "model")},
            "engine": {"vllm": "0.30.0", "platform": "cpu", "python": str(python)},
            "env": {"PLAIN": "as started"},
            "secrets": ["HF_TOKEN"],
            "serve": {"max_model_len": 4096},
            "container": {"publish": f"127.0.0.1:{port}:8000"},
        }
        self.change()

    def change(self, **sections: Any) -> None:
        for name, value in sections.items():
            self.layout[name] = {**self.layout.get(name, {}), **value} if isinstance(value, dict) else value
        self.file.write_text(json.dumps(self.layout))

    def call(self, *words: str) -> Result:
        return self._cli(*words, DEPLOY_PROJECT=str(self.project), HF_TOKEN=SECRET, TERM="here")

    def start(self) -> Record:
        # An installation is older than the engines that run from it.
        for file in self.site.rglob("*.py"):
            os.utime(file, (10**9, 10**9))
        started = self.call("start", "quick")
        assert started.code == 0, started.err
        (record,) = records(self.project / ".deploy" / "local")
        return record

    def drift(self) -> tuple[int, dict[str, Any]]:
        found = self.call("drift", "quick", "--json")
        assert SECRET not in found.out + found.err
        rows = {row["path"]: row for row in found.data["differences"]}
        assert found.data["verdict"] == ("drift" if rows else "none")
        return found.code, rows


@pytest.fixture
def local(tmp_path: Path, cli: Callable[..., Result], free_port: int) -> Iterator[Local]:
    local = Local(tmp_path, cli, free_port)
    yield local
    local.call("stop", "quick", "--timeout", "0")


def test_nothing_runs_is_neither_drift_nor_its_absence(local: Local) -> None:
    never = local.call("drift", "quick")
    assert never.code == 1 and "nothing of quick" in never.err
    local.start()
    local.call("stop", "quick", "--timeout", "0")
    over = local.call("drift", "quick")
    assert over.code == 1 and "(quick-" in over.err and "is exited" in over.err


def test_an_untouched_engine_has_no_drift_from_whatever_shell(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    local.start()
    monkeypatch.setenv("LANG", "of another shell")
    assert local.drift() == (0, {})
    assert "no drift" in local.call("drift", "quick").out


def test_each_change_of_the_layout_is_named_and_no_value_is_shown(local: Local) -> None:
    local.start()
    local.change(env={"PLAIN": SECRET, "MORE": "x"}, secrets=["HF_TOKEN", "OTHER"], serve={"max_model_len": 8192})
    code, rows = local.drift()
    assert code == 2
    assert set(rows) == {"argv.--max-model-len", "env.PLAIN", "env.MORE", "secrets"}
    assert (rows["secrets"]["running"], rows["secrets"]["wanted"]) == ("HF_TOKEN", "HF_TOKEN, OTHER")
    shown = local.call("drift", "quick")
    assert shown.code == 2 and "DRIFT env.MORE: running unset, would be sha256:" in shown.out
    assert "4 differences" in shown.out and SECRET not in shown.out
    local.change(env={"PLAIN": "as started", "MORE": None}, secrets=["HF_TOKEN"], serve={"max_model_len": 4096})
    assert local.drift() == (0, {})


def test_a_change_for_this_call_only_counts_as_it_does_for_start(local: Local) -> None:
    local.start()
    changed = local.call("drift", "quick", "--set", "serve.max_model_len=8192")
    assert changed.code == 2 and "argv.--max-model-len" in changed.out


def test_a_variable_that_the_layout_dropped_is_seen_in_the_process_itself(local: Local) -> None:
    record = local.start()
    # The record alone would not tell.
    state = json.loads((record.folder / "state.json").read_text())
    (record.folder / "state.json").write_text(json.dumps({**state, "env": []}))
    local.change(env={"PLAIN": None})
    code, rows = local.drift()
    assert (code, set(rows)) == (2, {"env.PLAIN"})
    assert rows["env.PLAIN"]["wanted"] == "unset"


def test_an_engine_whose_supervisor_is_gone_is_told_by_its_record(local: Local) -> None:
    import signal

    from shardwright.connect.processes import is_alive, send_signal

    record = local.start()
    supervisor = record.supervisor()
    assert supervisor is not None
    send_signal(supervisor, signal.SIGKILL)
    while is_alive(supervisor):
        time.sleep(0.01)
    assert local.drift() == (0, {})
    local.change(env={"PLAIN": "changed"})
    assert set(local.drift()[1]) == {"env.PLAIN"}


def test_an_installation_that_was_renewed_under_the_engine_is_newer(local: Local) -> None:
    local.start()
    file = local.site / "vllm" / "_version.py"
    os.utime(file, (time.time() + 5, time.time() + 5))
    code, rows = local.drift()
    assert (code, set(rows)) == (2, {f"files.{file}"})
    assert "may be older" in rows[f"files.{file}"]["why"]


def test_a_layout_that_moved_to_another_runtime_is_one_difference(local: Local) -> None:
    local.start()
    local.change(runtime="docker", engine={"image": "engine:1"})
    code, rows = local.drift()
    assert (code, set(rows)) == (2, {"runtime"})
    assert (rows["runtime"]["running"], rows["runtime"]["wanted"]) == ("local", "docker")


def test_a_patch_that_was_added_and_not_built_is_told_by_the_overlays_lock(local: Local) -> None:
    local.start()
    local.change(patches=["pp-cpu-eager"])
    code, rows = local.drift()
    assert code == 2
    assert {"overlay", "env.PYTHONPATH"} <= set(rows)
    assert "NO_LOCK" in rows["overlay"]["wanted"] and rows["overlay"]["fix"] == "deploy patch build quick"
