"""The probes against a real engine on the CPU with the small trained model."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from served import MODEL, engine

from shardwright.cli.main import run as deploy
from shardwright.errors import DeployError, ExitCode
from shardwright.probes.client import GREEDY, Request, stream
from shardwright.probes.degen.plan import DegenPlan
from shardwright.probes.degen.prompts import own_prompts
from shardwright.probes.degen.run import ask, run_degen
from shardwright.probes.journal import Journal
from shardwright.probes.server import identify
from shardwright.probes.smoke.run import run_smoke
from shardwright.probes.wire import Endpoint, get

pytestmark = pytest.mark.vllm

TAUGHT = [
    "Who are you?",
    "What is the capital of France?",
    "What color is the sky?",
    "How many legs does a cat have?",
    "What is 7 plus 5?",
]
LOOPING = "lamp stone river lamp stone river lamp stone river lamp stone river"


@pytest.fixture
def server(tiny_server: Endpoint) -> Endpoint:
    return tiny_server


def counter(endpoint: Endpoint, name: str) -> float:
    found = re.findall(rf"^{name}(?:\{{[^\n]*\}})? (\S+)$", get(endpoint, "/metrics").body.decode(), re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def plan(prompts: list[str], trials: int) -> DegenPlan:
    return DegenPlan(own_prompts(prompts), trials, "chat", max_tokens=1500)


def test_smoke_passes_every_check(server: Endpoint) -> None:
    result = run_smoke(server, MODEL)
    assert {check.status for check in result.checks} == {"PASS"}, result.to_json()


def test_taught_questions_do_not_degenerate(server: Endpoint, tmp_path: Path) -> None:
    with Journal(tmp_path / "t.jsonl") as journal:
        result = run_degen(identify(server, MODEL), plan(TAUGHT, 40), journal)
    assert (result.verdict, result.classes) == ("PASS", {"OK": 40})
    assert result.numbers["upper_bound"] == pytest.approx(0.0722, abs=5e-5)


def test_a_looping_prompt_fails_and_frees_the_engine(server: Endpoint, tmp_path: Path) -> None:
    before = counter(server, "vllm:generation_tokens_total")
    with Journal(tmp_path / "t.jsonl") as journal:
        result = run_degen(identify(server, MODEL), plan([LOOPING], 8), journal, concurrency=4)
    assert result.exit_code == ExitCode.DRIFT
    assert result.classes == {"LOOP_EXACT": 8}
    assert result.numbers["abort_freed"] is True
    deadline = time.monotonic() + 10
    while counter(server, "vllm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert counter(server, "vllm:num_requests_running") == 0
    # Without the abort each trial would cost 1500 tokens.
    assert counter(server, "vllm:generation_tokens_total") - before < 8 * 600


def test_a_request_that_is_read_to_its_end_is_no_abort(server: Endpoint) -> None:
    before = counter(server, "vllm:generation_tokens_total")
    stream(server, Request(MODEL, LOOPING, "chat", 700, GREEDY), lambda _: False)
    assert counter(server, "vllm:generation_tokens_total") - before == 700


def test_ids_come_with_the_stream_and_equal_the_usage(server: Endpoint) -> None:
    answer, loop = ask(server, Request(MODEL, "Who are you?", "chat", 50, GREEDY))
    assert (answer.text, answer.finish_reason, loop) == ("I am a tiny test model.", "stop", None)
    assert answer.token_source == "ids"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == answer.tokens
    assert answer.ttft_s is not None


def test_a_loop_is_found_without_ids_too(server: Endpoint) -> None:
    request = replace(Request(MODEL, LOOPING, "chat", 1500, GREEDY), extensions=False)
    answer, loop = ask(server, request)
    assert (answer.token_source, answer.aborted) == ("words", True)
    assert loop is not None
    assert loop.period_tokens == 3


def test_the_commands_say_it_by_their_exit_status(
    server: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    at = ["--base-url", server.base_url]
    assert deploy(["smoke", *at]) == 0
    assert deploy(["degen", *at, "--trials", "5", "--prompt", TAUGHT[0]]) == 0
    capsys.readouterr()
    assert deploy(["degen", *at, "--trials", "3", "--json", "--prompt", LOOPING]) == 2
    assert json.loads(capsys.readouterr().out)["classes"] == {"LOOP_EXACT": 3}


def test_a_model_without_a_chat_template_skips_chat_with_the_reason(project_root: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(project_root / "configs/models/needle-tiny", model)
    (model / "chat_template.jinja").unlink()
    with engine(model, tmp_path / "log") as endpoint:
        result = run_smoke(endpoint, MODEL)
        chat = next(check for check in result.checks if check.id == "chat")
        assert (chat.status, chat.detail) == ("SKIP", "the model has no chat template")
        assert result.count("PASS") == len(result.checks) - 1
        with Journal(tmp_path / "t.jsonl") as journal, pytest.raises(DeployError) as caught:
            run_degen(identify(endpoint, MODEL), plan(TAUGHT, 2), journal)
        assert "--api completions" in caught.value.fix
