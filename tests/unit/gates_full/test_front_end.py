"""Flags of the API server that need one another, and the parsers that the engine has."""

from __future__ import annotations

from typing import Any

import pytest
from deployed import deployed, fixes, said

from shardwright.facts.engine import EngineFacts
from shardwright.facts.engine_tables import EngineTable
from shardwright.facts.facts import Facts
from shardwright.facts.shape import ModelShape
from shardwright.gates.front_end import check_front_end
from shardwright.layout.schema import Provides

TABLE = EngineTable("0.30.0", "test", (), (), (), ("glm45", "glm47", "hermes"), ("glm45", "qwen3"))
ENGINE = Facts(engine=EngineFacts(TABLE))
GLM = Facts(engine=EngineFacts(TABLE), shape=ModelShape("c", model_type="glm_moe_dsa"))
AUTO = "--enable-auto-tool-choice"


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ((), []),
        ((AUTO,), ["reject: enable_auto_tool_choice without tool_call_parser"]),
        ((AUTO, "--no-enable-auto-tool-choice"), []),
        ((AUTO, "--tool-call-parser glm47"), []),
        ((AUTO, "--tool-call-parser glm48"), ["reject: vLLM 0.30.0 has no tool_call_parser 'glm48'"]),
        ((AUTO, "--tool-call-parser own", "--tool-parser-plugin own.py"), []),
        (("--tool-call-parser glm47",), ["warn: tool_call_parser glm47 without enable_auto_tool_choice"]),
        # Nothing looks for it, so it does not stop the engine.
        (("--tool-call-parser glm48",), ["warn: tool_call_parser glm48 without enable_auto_tool_choice"]),
        (("--reasoning-parser qwen3",), []),
        (("--reasoning-parser glm47",), ["reject: vLLM 0.30.0 has no reasoning_parser 'glm47'"]),
        (("--reasoning-parser own", "--reasoning-parser-plugin own.py"), []),
        (
            ("--structured-outputs-config.reasoning_parser glm47",),
            ["reject: vLLM 0.30.0 has no reasoning_parser 'glm47'"],
        ),
        (("--enable-log-outputs",), ["reject: enable_log_outputs without enable_log_requests"]),
        (("--enable-log-outputs", "--enable-log-requests"), []),
        (("--lora-modules a=/x",), ["reject: lora_modules without enable_lora"]),
        (("--lora-modules a=/x", "--enable-lora"), []),
        (("--ssl-keyfile /k",), ["reject: ssl_keyfile without ssl_certfile"]),
        (("--ssl-keyfile /k", "--ssl-certfile /c"), []),
        (("--ssl-certfile /c",), []),
        (("--enable-per-request-metrics",), []),
        (
            ("--enable-per-request-metrics", "--disable-log-stats"),
            ["reject: enable_per_request_metrics with disable_log_stats"],
        ),
        (("--enable-per-request-metrics", "--no-disable-log-stats"), []),
    ],
)
def test_what_the_server_refuses_together(flags: tuple[str, ...], found: list[str]) -> None:
    assert said(check_front_end, deployed(*flags), ENGINE) == [f"front-end {text}" for text in found]


def test_what_is_usual_for_the_model_is_suggested_else_the_nearest() -> None:
    usual = "usual for glm_moe_dsa: serve: {tool_call_parser: glm47, reasoning_parser: glm45}"
    for flags in ((AUTO,), (AUTO, "--tool-call-parser x"), ("--reasoning-parser x",)):
        assert fixes(check_front_end, deployed(*flags), GLM) == [usual]
    other = Facts(engine=EngineFacts(TABLE), shape=ModelShape("c", model_type="llama"))
    for facts in (ENGINE, other):
        assert fixes(check_front_end, deployed(AUTO), facts) == ["write serve: {tool_call_parser: NAME}"]
    assert fixes(check_front_end, deployed("--reasoning-parser quen3"), ENGINE) == [
        "did you mean qwen3? Or engine.provides: {parsers: [quen3]} where the image brings it"
    ]
    assert fixes(check_front_end, deployed("--reasoning-parser zzz"), ENGINE) == [
        "engine.provides: {parsers: [zzz]} where the image brings it"
    ]


@pytest.mark.parametrize(
    ("engine", "facts"),
    [
        ({"provides": Provides((), (), (), ("own",))}, ENGINE),
        ({"command": ("run.sh",)}, ENGINE),
        ({}, Facts()),
        ({}, Facts(engine=EngineFacts(None))),
        ({}, Facts(engine=EngineFacts(EngineTable("0.30.0", "test", (), (), ())))),
    ],
)
def test_a_parser_that_may_be_there_is_not_refused(engine: dict[str, Any], facts: Facts) -> None:
    asked = deployed(AUTO, "--tool-call-parser own", "--reasoning-parser own", engine=engine)
    assert said(check_front_end, asked, facts) == []
