"""Status at a glance: what the server says of itself, a start under way, a dead engine, and drift."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from campaign_stage import Stage
from deploy_cli_process import Killable

from shardwright.runtime.local import LocalRuntime
from tests.deploy_cli import ROOT


def test_a_running_engine_shows_its_own_numbers_and_no_drift(stage: Stage, deploy: Killable) -> None:
    instance = deploy.ok("up", "stub", "--json").data["instance"]
    (row,) = deploy.ok("status", "stub", "--json").data
    assert row["instance"] == instance
    assert (row["status"], row["phase"], row["answers"]) == ("running", "ready", "yes")
    assert (row["running"], row["waiting"], row["preemptions"]) == (0, 0, 0)
    assert 0 <= row["kv_usage"] <= 1
    assert (row["drift"], row["drifted"]) == ("none", [])
    shown = deploy.ok("status").stdout
    assert f"{instance}  running  ready  up " in shown
    assert "running 0  waiting 0  KV use " in shown
    assert "drift: none" in shown


def test_a_changed_layout_shows_as_drift(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub")
    stage.layout(env={"STUB_MODE": "healthy", "NCCL_DEBUG": "INFO"})
    (row,) = deploy.ok("status", "stub", "--json").data
    assert row["drift"] == "drift"
    assert any("NCCL_DEBUG" in path for path in row["drifted"]), row
    assert "deploy drift stub" in deploy.ok("status", "stub").stdout


def test_a_dead_engine_is_neither_asked_nor_ready(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub")
    (state,) = LocalRuntime(stage.folder).instances("stub")
    os.killpg(int(state.identifier), signal.SIGKILL)
    (row,) = deploy.ok("status", "stub", "--json").data
    assert row["status"] in ("exited", "dead")
    assert (row["phase"], row["answers"], row["drift"]) == (None, None, None)


def test_an_engine_that_starts_shows_its_phase(stage: Stage, deploy: Killable) -> None:
    stage.layout("slow-start")
    deploy.ok("start", "stub")
    (row,) = deploy.ok("status", "stub", "--json").data
    assert (row["answers"], row["phase"]) == ("no", "starting")
    assert "does not answer" in deploy.ok("status", "stub").stdout


def test_the_fullest_engine_counts_and_a_restart_begins_anew() -> None:
    from shardwright.campaign.records import StartRecord
    from shardwright.campaign.watch import _phase, _served
    from shardwright.runtime.phases import Phase

    class Log:
        def logs(self, _name: str, *, tail: int) -> list[str]:
            return [
                "INFO:     Application startup complete.",
                "INFO 12-01 00:00:00 [core.py:101] Initializing a V1 LLM engine (v0)",
            ]

    assert _phase(Log(), "one") is Phase.STARTING  # type: ignore[arg-type]
    body = 'vllm:kv_cache_usage_perc{engine="0"} 0.75\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    for health, answers, usage in ((200, "yes", 0.75), (503, "unhealthy", None)):
        with answering(health, body) as url:
            record = StartRecord("i", "l", "local", url, "m", "d", (), 1, 1, 0.0)
            served = _served(record, {})
        assert (served["answers"], served.get("kv_usage")) == (answers, usage)


@contextmanager
def answering(health: int, metrics: str) -> Iterator[str]:
    """A server that is as healthy as this status says, with these metrics."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(health if self.path == "/health" else 200)
            self.end_headers()
            self.wfile.write(metrics.encode() if self.path == "/metrics" else b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_watching_prints_a_line_each_time_until_it_is_told_to_end(stage: Stage, deploy: Killable) -> None:
    deploy.ok("up", "stub")
    watching = subprocess.Popen(
        [sys.executable, str(ROOT / "deploy.py"), "status", "stub", "--watch", "0.5", "--json"],
        env=deploy.environment,
        cwd=stage.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert watching.stdout is not None
    rounds = [json.loads(watching.stdout.readline()) for _ in range(2)]
    watching.send_signal(signal.SIGINT)
    assert watching.wait(10) == 130
    assert [rows[0]["answers"] for rows in rounds] == ["yes", "yes"]
