"""`deploy vtp qualify`: a later rung is refused while an earlier one is open, and no rung passes on stale evidence."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from shardwright.campaign.vtp import checks
from shardwright.campaign.vtp import qualify as climbing
from shardwright.campaign.vtp.parity import (
    Drafts,
    Greedy,
    Recording,
    compare,
    drafts_between,
    final_tokens_agree,
)
from shardwright.facts.vtp_ladder import read_evidence, standings
from shardwright.probes.metrics import CounterResetError, Metrics, parse_metrics
from tests.unit.helpers import ROOT, Result, write_layout
from tests.unit.vtp.vtp_samples import FLASH, plan

LAYOUT = (ROOT / "configs/layouts/dsv4flash-tp3-lucifer.yaml").read_text()
GOOD = {
    "loader-bytes": {
        "padded": {"audit": ["", "", ""], "cuts": {}, "conversion": {"values_kept": True}},
        "stock": {"audit": ["wrong"]},
        "blind": {"audit": ["wrong"]},
    },
    "moe-numerics": {
        "audit": {"padded": []},
        "rows": [{"tokens": 1, "padded": 1e-7, "padded_finite": True, "stock": 0.5, "blind": 1.1}],
    },
    "attention-padding": {
        "decode": {
            "split": 1.0,
            "single": 1.0,
            "finite": True,
            "virtual_groups_zero": True,
            "contribution_zero": True,
            "virtual_heads_nonzero": True,
        }
    },
}


class Server(BaseHTTPRequestHandler):
    """Answers every prompt with the same `words`, each time at logprobs that are `drift` away from the last."""

    words: ClassVar[list[str]] = ["the", "quick", "fox"]
    accepted = 0
    answers = 0
    drift = 0.0

    def do_GET(self) -> None:
        if self.path == "/metrics":
            type(self).accepted += 5
            self.reply(f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {type(self).accepted}\n')
        elif self.path == "/v1/models":
            self.reply(json.dumps({"data": [{"id": "deepseek-v4-flash", "created": 1}]}))
        else:
            self.reply(json.dumps({"version": "0.30.0"}))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).answers += 1
        logprob = -0.1 + type(self).answers * type(self).drift
        logprobs = {"tokens": type(self).words, "token_logprobs": [logprob] * len(type(self).words)}
        self.reply(json.dumps({"choices": [{"text": "", "logprobs": logprobs}]}))

    def reply(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.words, Server.accepted, Server.answers, Server.drift = ["the", "quick", "fox"], 0, 0, 0.0
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()
    listening.server_close()


@pytest.fixture
def qualify(cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    write_layout(tmp_path, LAYOUT.replace("name: dsv4flash-tp3-lucifer", "name: demo"))
    monkeypatch.setattr(climbing, "run_check", lambda name, *_: GOOD[name])

    def call(*words: str, **environ: str) -> Result:
        return cli("vtp", "qualify", "demo", *words, DEPLOY_PROJECT=str(tmp_path), **environ)

    return call


def states(result: Result) -> dict[str, str]:
    return {row["rung"]: row["state"] for row in result.data["rungs"]}


def test_the_ladder_is_climbed_as_far_as_it_goes_without_a_server(qualify: Callable[..., Result]):
    result = qualify("--json")
    assert result.code == 3, "open rungs are not a pass"
    found = states(result)
    assert list(found) == [
        "plan",
        "loader-bytes",
        "attention-padding",
        "moe-numerics",
        "parity",
        "graph-replay",
        "mtp",
        "speed",
    ]
    assert list(found.values()) == ["green"] * 4 + ["open"] * 4


def test_the_text_names_the_next_step(qualify: Callable[..., Result], server: str, tmp_path: Path):
    two = str(tmp_path / "tp2.json")
    assert "next: deploy vtp qualify demo --rung parity --against FILE; FILE: --record FILE" in qualify().out
    qualify("--record", two, "--base-url", server, TP_SIZE="2")
    out = qualify("--rung", "parity", "--against", two, "--base-url", server).out
    assert out.endswith("next: deploy vtp qualify demo --rung graph-replay\n")


@pytest.mark.parametrize("text", [None, "{}", "not JSON"])
def test_a_file_that_is_no_recording_is_said_to_be_none(
    qualify: Callable[..., Result], server: str, tmp_path: Path, text: str | None
):
    file = tmp_path / "reference.json"
    if text is not None:
        file.write_text(text)
    qualify()
    result = qualify("--rung", "parity", "--against", str(file), "--base-url", server)
    assert result.code == 1
    assert f"{file} is not a recording: " in result.err and "Errno" not in result.err


def test_a_failed_rung_stops_the_climb(qualify: Callable[..., Result], monkeypatch: pytest.MonkeyPatch):
    bad = {**GOOD, "attention-padding": {"decode": {**GOOD["attention-padding"]["decode"], "contribution_zero": False}}}
    monkeypatch.setattr(climbing, "run_check", lambda name, *_: bad[name])
    result = qualify("--json")
    assert result.code == 2
    assert states(result)["attention-padding"] == "red"
    assert states(result)["moe-numerics"] == "open"


@pytest.mark.parametrize("rung", ["parity", "graph-replay", "mtp", "speed"])
def test_a_later_rung_is_refused_while_an_earlier_one_is_open(
    qualify: Callable[..., Result], server: str, tmp_path: Path, rung: str
):
    (tmp_path / "reference.json").write_text("{}")
    against = ("--against", str(tmp_path / "reference.json")) if rung in ("parity", "mtp") else ()
    result = qualify("--rung", rung, "--base-url", server, *against)
    assert result.code == 1
    assert f"the rung {rung} may not be tried: plan is open" in result.err


def test_a_refused_rung_asks_no_server(qualify: Callable[..., Result]):
    result = qualify("--rung", "speed", "--base-url", "http://127.0.0.1:9")
    assert result.code == 1
    assert "the rung speed may not be tried: plan is open" in result.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--record", "x.json", "--rung", "speed"), "--record excludes --rung and --against"),
        (("--record", "x.json", "--against", "y.json"), "--record excludes --rung and --against"),
        (("--against", "y.json"), "is read by --rung parity and --rung mtp only"),
        (("--rung", "speed", "--against", "y.json"), "is read by --rung parity and --rung mtp only"),
        (("--rung", "parity"), "--rung parity needs --against FILE"),
        (("--rung", "mtp"), "--rung mtp needs --against FILE"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(qualify: Callable[..., Result], words: tuple, text: str):
    result = qualify(*words)
    assert result.code == 64
    assert text in result.err


def test_parity_then_replay_then_mtp_then_speed(qualify: Callable[..., Result], server: str, tmp_path: Path):
    two, three = str(tmp_path / "tp2.json"), str(tmp_path / "tp3.json")
    qualify()
    assert qualify("--record", two, "--base-url", server, TP_SIZE="2").code == 0
    assert states(qualify("--rung", "parity", "--against", two, "--base-url", server, "--json"))["parity"] == "green"
    assert qualify("--record", three, "--base-url", server).code == 0
    refused = qualify("--rung", "speed", "--base-url", server)
    assert refused.code == 1 and "graph-replay is open" in refused.err
    assert qualify("--rung", "graph-replay", "--base-url", server).code == 3
    mtp = qualify("--rung", "mtp", "--against", three, "--base-url", server, SPEC_METHOD="mtp")
    assert mtp.code == 3, mtp.err
    last = qualify("--rung", "speed", "--base-url", server)
    assert last.code == 0 and "next:" not in last.out


@pytest.mark.parametrize(
    ("settings", "environ", "text"),
    [
        ((), {"SPEC_METHOD": "mtp"}, "graph replay is shown with MTP off"),
        (("--set", "serve.enforce_eager=true"), {}, "there is no graph to replay"),
    ],
)
def test_a_server_that_cannot_show_graph_replay_is_refused(
    qualify: Callable[..., Result], server: str, tmp_path: Path, settings: tuple, environ: dict, text: str
):
    two = str(tmp_path / "tp2.json")
    qualify()
    qualify("--record", two, "--base-url", server, TP_SIZE="2")
    qualify("--rung", "parity", "--against", two, "--base-url", server)
    result = qualify("--rung", "graph-replay", "--base-url", server, *settings, **environ)
    assert result.code == 64
    assert text in result.err


def test_answers_that_differ_fail_graph_replay(qualify: Callable[..., Result], server: str, tmp_path: Path):
    two = str(tmp_path / "tp2.json")
    qualify()
    qualify("--record", two, "--base-url", server, TP_SIZE="2")
    qualify("--rung", "parity", "--against", two, "--base-url", server)
    Server.drift = -0.01
    result = qualify("--rung", "graph-replay", "--base-url", server, "--json")
    assert result.code == 2
    assert states(result)["graph-replay"] == "red" and states(result)["speed"] == "open"


def test_mtp_is_tried_on_a_layout_with_mtp_against_one_without(
    qualify: Callable[..., Result], server: str, tmp_path: Path
):
    two, three = str(tmp_path / "tp2.json"), str(tmp_path / "tp3.json")
    qualify()
    qualify("--record", two, "--base-url", server, TP_SIZE="2")
    qualify("--record", three, "--base-url", server)
    qualify("--rung", "parity", "--against", two, "--base-url", server)
    qualify("--rung", "graph-replay", "--base-url", server)
    mtp = ("--rung", "mtp", "--base-url", server, "--against")
    off = qualify(*mtp, three)
    assert off.code == 64 and "the layout has MTP off" in off.err
    other = qualify(*mtp, two, SPEC_METHOD="mtp")
    assert other.code == 64 and "must be of TP=3 with MTP off" in other.err
    Server.words = ["the", "slow", "fox"]
    assert states(qualify(*mtp, three, "--json", SPEC_METHOD="mtp"))["mtp"] == "red"


def test_parity_with_mtp_on_is_refused(qualify: Callable[..., Result], server: str, tmp_path: Path):
    two = str(tmp_path / "tp2.json")
    qualify()
    qualify("--record", two, "--base-url", server, TP_SIZE="2")
    result = qualify("--rung", "parity", "--against", two, "--base-url", server, SPEC_METHOD="mtp")
    assert result.code == 64
    assert "parity is shown with MTP off on both sides" in result.err


def test_other_tokens_fail_parity(qualify: Callable[..., Result], server: str, tmp_path: Path):
    two = str(tmp_path / "tp2.json")
    qualify()
    qualify("--record", two, "--base-url", server, TP_SIZE="2")
    Server.words = ["the", "slow", "fox"]
    result = qualify("--rung", "parity", "--against", two, "--base-url", server, "--json")
    assert result.code == 2
    assert states(result)["parity"] == "red"


def test_a_recording_of_the_same_tp_proves_nothing(qualify: Callable[..., Result], server: str, tmp_path: Path):
    same = str(tmp_path / "same.json")
    qualify()
    qualify("--record", same, "--base-url", server)
    result = qualify("--rung", "parity", "--against", same, "--base-url", server)
    assert result.code == 64
    assert "is of TP=3 itself" in result.err


def test_a_recording_of_another_odd_tp_proves_nothing(qualify: Callable[..., Result], server: str, tmp_path: Path):
    odd = str(tmp_path / "odd.json")
    qualify()
    qualify("--record", odd, "--base-url", server, TP_SIZE="5")
    result = qualify("--rung", "parity", "--against", odd, "--base-url", server)
    assert result.code == 64
    assert "is of TP=5, which does not divide the model either" in result.err


def test_evidence_of_other_hardware_is_stale(qualify: Callable[..., Result], server: str, tmp_path: Path):
    two = str(tmp_path / "tp2.json")
    qualify()
    qualify("--record", two, "--base-url", server, TP_SIZE="2")
    assert states(qualify("--rung", "parity", "--against", two, "--base-url", server, "--json"))["parity"] == "green"
    found = states(qualify("--set", "hardware.compute_capability=9.0", "--json"))
    assert found["parity"] == "stale" and found["moe-numerics"] == "green"


def test_ready_is_refused_until_the_rungs_are_green_on_the_layouts_hardware(
    qualify: Callable[..., Result], cli: Callable[..., Result], server: str, tmp_path: Path
):
    ready = ("check", "demo", "--set", "status=ready")
    project = {"DEPLOY_PROJECT": str(tmp_path)}
    refused = cli(*ready, **project)
    assert refused.code == 1
    assert "status is ready, but these rungs are not green on 3 cards of 12.0: plan (open)" in refused.err + refused.out
    two = str(tmp_path / "tp2.json")
    qualify()
    qualify("--record", two, "--base-url", server, TP_SIZE="2")
    qualify("--rung", "parity", "--against", two, "--base-url", server)
    qualify("--rung", "graph-replay", "--base-url", server)
    assert cli(*ready, **project).code == 0
    with_mtp = cli(*ready, **project, SPEC_METHOD="mtp")
    assert with_mtp.code == 1 and "mtp (open)" in with_mtp.err + with_mtp.out


def test_evidence_about_another_patch_is_stale(qualify: Callable[..., Result], tmp_path: Path):
    qualify()
    file = tmp_path / ".deploy/vtp/demo.json"
    kept = json.loads(file.read_text())
    for evidence in kept:
        evidence["subject"] = "0" * 16
    file.write_text(json.dumps(kept))
    assert {standing.state for standing in standings(read_evidence(file), "1" * 16, "x")} == {"stale", "open"}


def test_a_layout_without_the_patch_has_no_ladder(cli: Callable[..., Result]):
    result = cli("vtp", "qualify", "glm53-tp4pp2")
    assert result.code == 64
    assert "does not name the patch virtual-tp" in result.err


def recording(*tokens: str, logprob: float = -0.1, vllm: str = "0.30.0") -> Recording:
    return Recording("demo", 2, vllm, "none", (Greedy(tokens, (logprob,) * len(tokens)),))


def test_parity_counts_first_tokens_and_logprobs_on_the_shared_prefix_only():
    long = ("a",) * 9
    assert compare(recording(*long, "b"), recording(*long, "c"), 0.25)[0] == []
    assert compare(recording(*long), recording(*long, logprob=-0.5), 0.25)[0]
    assert compare(recording("a", "b"), recording("a", "c"), 0.25)[0]
    assert compare(recording("a"), recording("a", vllm="0.32.0"), 0.25)[0]


@pytest.mark.parametrize("tolerance", [0.25, float("inf"), float("nan")])
def test_a_logprob_that_is_no_number_fails_parity(tolerance: float):
    assert compare(recording("a", "b"), recording("a", "b", logprob=float("nan")), tolerance)[0]


def test_a_tolerance_that_is_no_number_lets_nothing_pass():
    assert compare(recording("a"), recording("a"), float("nan"))[0]
    assert compare(recording("a"), recording("a"), 0.0)[0] == []


def test_mtp_needs_accepted_drafts():
    faults, numbers = final_tokens_agree(recording("a"), recording("a"), Drafts(3.0, 8.0))
    assert faults == [] and numbers.endswith("3 of 8 draft tokens accepted")
    none = Drafts(0.0, 8.0)
    assert final_tokens_agree(recording("a"), recording("a"), none)[0] == ["not one draft token was accepted"]
    assert final_tokens_agree(recording("a"), recording("a"), Drafts(None, None))[0]


def readings(*accepted: float) -> list[Metrics]:
    """One reading of a server for each of these counts of accepted draft tokens."""
    return [parse_metrics(f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {count}\n') for count in accepted]


def test_drafts_are_counted_between_two_readings():
    before, after = readings(4, 7)
    drafted = parse_metrics("vllm:spec_decode_num_draft_tokens_total 9\n")
    both = Metrics({**after.samples, **drafted.samples})
    assert drafts_between(before, both) == Drafts(3.0, 9.0)
    assert drafts_between(before, None) == drafts_between(None, after) == Drafts(None, None)


def test_a_server_that_was_started_anew_between_them_accepts_nothing():
    with pytest.raises(CounterResetError):
        drafts_between(*readings(7, 3))


def test_a_control_that_nobody_caught_fails_the_rung():
    made = plan(FLASH, 3)
    blind_passed = {**GOOD["loader-bytes"], "blind": {"audit": ["", "", ""]}}
    assert checks.judge("loader-bytes", made, GOOD["loader-bytes"]) == []
    assert checks.judge("loader-bytes", made, blind_passed) == ["the control blind was not found wrong"]
    row = {**GOOD["moe-numerics"]["rows"][0], "stock": 0.0}
    assert checks.judge("moe-numerics", made, {**GOOD["moe-numerics"], "rows": [row]})
    heads = {"decode": {**GOOD["attention-padding"]["decode"], "virtual_heads_nonzero": False}}
    assert checks.judge("attention-padding", made, heads)


def test_a_cut_at_another_place_fails_the_rung():
    cuts = {"experts.w2.weight": [{"start": 384 * r, "units": 352, "zero_tail": 32} for r in range(3)]}
    found = {**GOOD["loader-bytes"], "padded": {**GOOD["loader-bytes"]["padded"], "cuts": cuts}}
    faults = checks.judge("loader-bytes", plan(FLASH, 3), found)
    assert any("experts.w2.weight on rank 1: cut at (384, 352, 32), planned (352, 352, 32)" in text for text in faults)


def test_a_check_that_cannot_run_says_nothing_about_the_padding(tmp_path: Path):
    from shardwright.errors import DeployError, ExitCode

    with pytest.raises(DeployError, match="could not run") as caught:
        checks.run_check("moe-numerics", plan(FLASH, 3), str(tmp_path / "no-python"), ROOT / "patches/virtual-tp")
    assert caught.value.code == ExitCode.HARNESS
