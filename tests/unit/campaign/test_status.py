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
from types import SimpleNamespace

import pytest
from campaign_stage import Stage
from deploy_cli_process import Killable

from shardwright.campaign.watch import EngineStatus, look
from shardwright.cli import status as status_verb
from shardwright.connect.project import open_project
from shardwright.facts.host import Cards, Gpu
from shardwright.runtime.local import LocalRuntime
from tests.deploy_cli import ROOT
from tests.unit.facts_engine.test_host_cards import H200, Nvml


def test_a_running_engine_shows_its_own_numbers_and_no_drift(stage: Stage, deploy: Killable) -> None:
    instance = deploy.ok("up", "stub", "--json").data["instance"]
    (row,) = deploy.ok("status", "stub", "--json").data
    assert row["instance"] == instance
    assert (row["status"], row["phase"], row["answers"]) == ("running", "ready", "yes")
    assert (row["running"], row["waiting"], row["preemptions"]) == (0, 0, 0)
    assert 0 <= row["kv_usage"] <= 1
    assert (row["drift"], row["drifted"]) == ("none", [])
    shown = deploy.ok("status").stdout
    assert f"{instance}  running, ready, up " in shown
    assert "  requests  0 running, 0 waiting\n" in shown
    assert "  KV cache  0.0 % used, 0 preemptions\n" in shown
    assert "  drift     none\n" in shown


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
    from shardwright.campaign.watch import _served
    from shardwright.runtime.phases import Phase, phase_of

    ready, again = (
        "INFO:     Application startup complete.",
        "INFO 12-01 00:00:00 [core.py:101] Initializing a V1 LLM engine (v0)",
    )
    assert phase_of([ready]) is Phase.API
    assert phase_of([ready, again]) is Phase.STARTING
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


def seen_on_two_cards(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> EngineStatus:
    """The engine of the stage as a host sees it that has two recorded cards, the second of them full."""
    full = SimpleNamespace(**{**vars(H200), "memory": SimpleNamespace(total=H200.memory.total, free=0)})
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(H200, full))
    environ = {**os.environ, "DEPLOY_PROJECT": str(stage.folder), "DEPLOY_PYTHON": str(stage.python)}
    (row,) = look(open_project(environ), "stub", environ)
    return row


def test_the_memory_of_the_cards_that_a_layout_names_is_that_of_its_engine(
    stage: Stage, deploy: Killable, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"STUB_MODE": "healthy", "CUDA_VISIBLE_DEVICES": "1"}
    stage.layout(env=environment)
    deploy.ok("start", "stub")
    row = seen_on_two_cards(stage, monkeypatch)
    assert [(card.number, round(card.used_gib, 1), round(card.total_gib, 1)) for card in row.cards] == [
        (1, 140.4, 140.4)
    ]
    assert row.cards_named
    shown = "\n".join(status_verb._lines([row], "stub"))
    assert "  GPU 1     140.4 of 140.4 GiB" in shown and "all of this host" not in shown
    # The layout now names another card; what runs still has the one that it was started with.
    stage.layout(env=environment | {"CUDA_VISIBLE_DEVICES": "0"})
    row = seen_on_two_cards(stage, monkeypatch)
    assert ([card.number for card in row.cards], row.cards_named) == ([0, 1], False)
    assert "  GPU 0     0.6 of 140.4 GiB (all of this host)\n  GPU 1 " in "\n".join(status_verb._lines([row], "stub"))


def test_without_cards_nothing_is_said_of_them(stage: Stage, deploy: Killable, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy.ok("start", "stub")
    for cards in (Cards(), Cards(()), Cards((Gpu("Card", "8.0", 80.0),))):
        monkeypatch.setattr("shardwright.campaign.watch.read_cards", lambda cards=cards: cards)
        environ = {**os.environ, "DEPLOY_PROJECT": str(stage.folder), "DEPLOY_PYTHON": str(stage.python)}
        (row,) = look(open_project(environ), None, environ)
        assert (row.cards, row.cards_named) == ((), False)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "up 0 s"), (59, "up 59 s"), (60, "up 1 min 0 s"), (11_400, "up 3 h 10 min"), (187_200, "up 2 d 4 h")],
)
def test_uptime_is_told_in_two_units_at_most(seconds: int, told: str) -> None:
    assert status_verb._uptime(seconds) == told


def test_a_terminal_is_drawn_over_and_a_file_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = EngineStatus("one-1", "one", "local", "exited", 3, 2, None, None, None)
    status_verb._redraw(["head"], [row], None)
    assert capsys.readouterr().out == "head\none-1  exited, exit code 3\n  restarts  2\n\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    status_verb._redraw(["head"], [row], None)
    drawn = capsys.readouterr().out
    assert drawn.startswith("\x1b[Hhead\x1b[K\n") and drawn.endswith("\x1b[J")
