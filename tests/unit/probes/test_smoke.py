from __future__ import annotations

from collections.abc import Callable

import pytest
from stub_server import MODEL, StubServer

from shardwright.errors import ExitCode
from shardwright.probes.smoke.run import CHECKS, Check, SmokeResult, run_smoke
from shardwright.probes.wire import Endpoint, TransportError

Start = Callable[[str], StubServer]


def run(server: StubServer, model: str | None = MODEL) -> SmokeResult:
    return run_smoke(Endpoint(server.base_url, idle_timeout_s=2 if server.mode == "stalls" else 30), model)


def statuses(result: SmokeResult) -> dict[str, str]:
    return {check.id: check.status for check in result.checks}


def detail(result: SmokeResult, check_id: str) -> str:
    return next(check.detail for check in result.checks if check.id == check_id)


@pytest.mark.parametrize("mode", ["healthy", "u2028", "byte-by-byte", "no-ids", "strict"])
def test_a_healthy_server_passes_every_check(stub: Start, mode: str) -> None:
    result = run(stub(mode))
    assert statuses(result) == dict.fromkeys(CHECKS, "PASS")
    assert (result.verdict, result.exit_code) == ("PASS", ExitCode.OK)


@pytest.mark.parametrize(
    "mode, check_id, reason",
    [
        ("wrong-model", "models", "lists another-model, not stub-model"),
        ("http-500", "completion", "HTTP 500: EngineCore"),
        ("http-500", "chat", "HTTP 500: EngineCore"),
        ("empty", "completion", "the completion is empty"),
        ("empty", "chat", "the answer is empty"),
        ("changes-its-mind", "completion", "they part at character 0"),
        ("stream-differs", "stream-equals-non-stream", "they part at character 6"),
        ("truncated", "stream-equals-non-stream", "without [DONE]"),
        ("no-finish", "stream-equals-non-stream", "without a finish_reason"),
        ("error-in-stream", "stream-equals-non-stream", "worker died"),
        ("wrong-usage", "usage", "does not add up"),
        ("no-usage", "usage", "has no usage"),
        ("garbage", "no-replacement-character", "U+FFFD"),
        ("ignores-max-tokens", "finish-reason", "max_tokens 1 gave 4000 tokens"),
        ("ends-early", "completion", "early"),
        ("not-json", "completion", "not JSON"),
        ("error-with-200", "completion", "worker died"),
        ("stalls", "completion", "sent nothing for 2 s"),
        ("refuses-key", "completion", "HTTP 401"),
    ],
)
def test_each_check_says_no_to_its_fault(stub: Start, mode: str, check_id: str, reason: str) -> None:
    result = run(stub(mode))
    assert statuses(result)[check_id] == "FAIL"
    assert reason in detail(result, check_id)
    assert (result.verdict, result.exit_code) == ("FAIL", ExitCode.DRIFT)


@pytest.mark.parametrize(
    "mode, check_id",
    [("wrong-usage", "usage"), ("garbage", "no-replacement-character"), ("stream-differs", "stream-equals-non-stream")],
)
def test_a_fault_is_told_by_its_own_check_alone(stub: Start, mode: str, check_id: str) -> None:
    failed = [name for name, status in statuses(run(stub(mode))).items() if status != "PASS"]
    assert failed == [check_id]


@pytest.mark.parametrize(
    "mode, check_ids, reason",
    [("no-template", ["chat"], "no chat template"), ("no-health", ["health", "version"], "the server has no /")],
)
def test_what_cannot_be_asked_is_skipped_with_a_reason(
    stub: Start, mode: str, check_ids: list[str], reason: str
) -> None:
    result = run(stub(mode))
    assert [name for name, status in statuses(result).items() if status == "SKIP"] == check_ids
    assert reason in detail(result, check_ids[0])
    assert result.count("PASS") == len(CHECKS) - len(check_ids)
    assert result.to_json()["skipped"] == len(check_ids)


def test_skipped_checks_alone_are_no_pass(stub: Start) -> None:
    result = run(stub("wrong-model"))
    assert result.count("PASS") == 2
    assert result.count("SKIP") == len(CHECKS) - 3
    assert result.verdict == "FAIL"


def test_a_stall_is_waited_for_once(stub: Start) -> None:
    result = run(stub("stalls"))
    assert result.count("FAIL") == 1
    assert detail(result, "chat") == "the server stalled in the check completion"


def test_nobody_there_is_an_error_and_no_verdict(free_port: int) -> None:
    with pytest.raises(TransportError) as caught:
        run_smoke(Endpoint(f"http://127.0.0.1:{free_port}"), None)
    assert caught.value.code == ExitCode.HARNESS


def test_checks_are_told_as_they_end(stub: Start) -> None:
    seen: list[Check] = []
    result = run_smoke(Endpoint(stub("healthy").base_url), None, seen.append)
    assert tuple(seen) == result.checks
    assert result.model == MODEL


def test_a_key_that_the_server_repeats_is_not_shown(stub: Start) -> None:
    endpoint = Endpoint(stub("refuses-key").base_url, api_key="sk-planted")
    assert "planted" not in str(run_smoke(endpoint, None).to_json())
