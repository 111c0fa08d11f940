from __future__ import annotations

import pytest

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.faulty.server import FaultyServer
from shardwright.probes.metrics import (
    CounterResetError,
    delta,
    deltas_by_label,
    parse_metrics,
    read_metrics,
    require_idle,
    wait_idle,
)
from shardwright.probes.server import identify
from shardwright.probes.wire import Endpoint

TEXT = """# HELP vllm:x_total Things.
# TYPE vllm:x_total counter
vllm:x_total{engine="0",model_name="a b, \\"c\\" {d}"} 3.0
vllm:x_total{engine="1",model_name="m"} 4.5e1
vllm:pos_total{engine="0",position="0"} 9
vllm:pos_total{engine="1",position="0"} 1
vllm:pos_total{engine="0",position="1"} 4 1700000000
plain 7
broken{ 8
odd x
process_start_time_seconds 1000.5
"""


def test_samples_are_summed_over_engines_and_read_by_label() -> None:
    metrics = parse_metrics(TEXT)
    assert metrics.value("vllm:x_total") == 48.0
    assert metrics.value("plain") == 7.0
    assert metrics.value("missing") is None
    assert metrics.by_label("vllm:pos_total", "position") == {"0": 10.0, "1": 4.0}
    assert metrics.samples["vllm:x_total"][0][0]["model_name"] == 'a b, \\"c\\" {d}'
    assert metrics.value("broken") is metrics.value("odd") is None


def test_a_delta_and_what_is_not_to_be_had() -> None:
    before, after = parse_metrics("x_total 3\n"), parse_metrics("x_total 5\ny_total 2\n")
    assert delta(before, after, "x_total") == 2
    assert delta(before, after, "y_total") == 2
    assert delta(before, after, "z_total") is None
    assert delta(None, after, "x_total") is delta(before, None, "x_total") is None


@pytest.mark.parametrize(
    "before, after",
    [
        ("x_total 3", "x_total 2"),
        ("x_total 3", "other 1"),
        ("x_total 3\nprocess_start_time_seconds 1", "x_total 9\nprocess_start_time_seconds 2"),
    ],
)
def test_a_counter_that_was_reset_is_a_fault_and_no_number(before: str, after: str) -> None:
    with pytest.raises(CounterResetError) as caught:
        delta(parse_metrics(before), parse_metrics(after), "x_total")
    assert caught.value.code == ExitCode.HARNESS


def test_a_reset_of_one_label_shows_too() -> None:
    one = 'p{position="0"} 5\np{position="1"} 5\n'
    assert deltas_by_label(parse_metrics(one), parse_metrics(one + 'p{position="2"} 1\n'), "p", "position") == {
        "0": 0,
        "1": 0,
        "2": 1,
    }
    with pytest.raises(CounterResetError):
        deltas_by_label(parse_metrics(one), parse_metrics('p{position="0"} 9\np{position="1"} 4\n'), "p", "position")


def test_a_busy_server_is_refused_and_an_idle_one_is_not() -> None:
    with FaultyServer("healthy", seed=1) as server:
        assert require_idle(Endpoint(server.base_url))
    with FaultyServer("busy", seed=1) as server:
        endpoint = Endpoint(server.base_url)
        assert wait_idle(endpoint, 0.1) == 3
        with pytest.raises(DeployError, match="busy with 3 requests") as caught:
            require_idle(endpoint, 0.1)
        assert caught.value.code == ExitCode.HARNESS


def test_a_server_without_metrics_says_nothing(stub: object) -> None:
    server = stub("healthy")  # type: ignore[operator]
    assert require_idle(Endpoint(server.base_url)) is False
    server.started_at = None
    assert read_metrics(Endpoint(server.base_url)) is None


def test_capabilities_are_found_by_effect_and_asked_once(stub: object) -> None:
    with FaultyServer("healthy", seed=1) as server:
        found = identify(Endpoint(server.base_url), None).capabilities
    assert found.chat
    assert found.tokenize
    assert found.return_token_ids
    assert found.prompt_logprobs
    assert found.tools
    assert found.responses
    assert found.metrics
    assert found.max_model_len == 32_768
    plain = stub("no-template")  # type: ignore[operator]
    known = identify(Endpoint(plain.base_url), None)
    assert known.capabilities.completions
    assert not known.capabilities.chat
    assert not known.capabilities.prompt_logprobs
    assert known.capabilities.max_model_len == 4096
    asked = len(plain.requests)
    assert known.capabilities is known.capabilities
    assert len(plain.requests) == asked
    silent = identify(Endpoint(stub("no-ids").base_url), None).capabilities  # type: ignore[operator]
    assert silent.extensions
    assert not silent.return_token_ids
    strict = identify(Endpoint(stub("strict").base_url), None).capabilities  # type: ignore[operator]
    assert strict.chat
    assert not strict.extensions
    assert not strict.return_token_ids
