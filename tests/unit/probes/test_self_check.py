from __future__ import annotations

import json

import pytest

from shardwright.cli.main import run as deploy
from shardwright.errors import DeployError
from shardwright.probes import self_check
from shardwright.probes.self_check import LARGEST_ERROR, ClientCheck, check_client, gap_errors, mean_error, sent_times_s


def check(median_gap_error: float) -> ClientCheck:
    return ClientCheck(8, 0.01, 50, median_gap_error, 0.2, 0.01, 0.0, 0.02)


def test_a_late_stamp_is_an_error_twice_and_a_constant_delay_is_none() -> None:
    sent = [0.0, 1.0, 2.0, 3.0]
    assert gap_errors(sent, [t + 0.5 for t in sent], 1.0) == [0.0, 0.0, 0.0]
    assert gap_errors(sent, [0.0, 1.25, 2.0, 3.0], 1.0) == [0.25, 0.25, 0.0]
    assert mean_error(sent, [0.0, 1.25, 2.0, 3.0]) == 0.0
    assert mean_error(sent, [0.0, 1.0, 2.0, 3.3]) == pytest.approx(0.1)


def test_lost_events_are_an_error_of_the_check() -> None:
    with pytest.raises(ValueError):
        gap_errors([0.0, 1.0, 2.0], [0.0, 1.0], 1.0)
    assert sent_times_s("1000000000 2500000000 ") == [1.0, 2.5]


def test_the_streams_of_the_paced_server_come_whole_and_in_time() -> None:
    found = check_client(4, 0.01, 10)
    assert (found.concurrency, found.events) == (4, 10)
    # The mean of a stream hardly suffers from a busy machine; 50 % is far beyond any noise.
    assert 0 <= found.median_gap_error <= found.p95_gap_error
    assert found.worst_mean_error < 0.5


def test_a_paced_server_that_does_not_start_is_a_fault_of_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(DeployError) as error, self_check.paced_server(0.01, 1):
        pass
    assert error.value.code == 4


@pytest.mark.parametrize(("error", "verdict", "code"), [(LARGEST_ERROR / 2, "PASS", 0), (0.2, "CLIENT-LIMITED", 3)])
def test_the_command_says_when_the_client_is_the_limit(
    error: float,
    verdict: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(self_check, "check_client", lambda *_: check(error))
    assert deploy(["probe", "selftest", "--client-overhead", "--streams", "8", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict
    assert deploy(["probe", "selftest", "--client-overhead"]) == code
    assert capsys.readouterr().out.startswith(f"{verdict}: ")


@pytest.mark.slow
def test_the_client_keeps_up_with_128_streams() -> None:
    # The best of a few: neighbours on the machine may spoil one, not the client.
    assert min(check_client(128, 0.01).median_gap_error for _ in range(5)) < 3 * LARGEST_ERROR
