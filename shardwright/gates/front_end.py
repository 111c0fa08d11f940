"""`front-end`: what the API server asks of its flags together, before and after it has loaded the model."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.facts.engine_tables import EngineTable
from shardwright.facts.facts import Facts
from shardwright.facts.parsers import usual_parsers
from shardwright.gates.finding import Finding
from shardwright.gates.options import switched_on, value_of
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Deployment

GATE = "front-end"

_TOOL, _TOOL_PLUGIN = "--tool-call-parser", "--tool-parser-plugin"
_REASONING, _REASONING_PLUGIN = "--reasoning-parser", "--reasoning-parser-plugin"
_NESTED = "--structured-outputs-config.reasoning_parser"


def check_front_end(deployment: Deployment, plan: Plan, facts: Facts) -> list[Finding]:
    """vLLM entrypoints cli_args.py validate_parsed_serve_args, and validate_api_server_args."""
    return [*_tools(deployment, facts), *_reasoning(deployment, facts), *_pairs(deployment), *_late(deployment)]


def _tools(deployment: Deployment, facts: Facts) -> Iterator[Finding]:
    auto, parser = switched_on(deployment, "--enable-auto-tool-choice"), value_of(deployment, _TOOL)
    if auto and not parser:
        text = "enable_auto_tool_choice without tool_call_parser"
        why = "the engine stops with '--enable-auto-tool-choice requires --tool-call-parser'"
        yield Finding(GATE, "reject", text, why=why, fix=_suggestion(facts, "write serve: {tool_call_parser: NAME}"))
    elif parser and not auto:
        text = f"tool_call_parser {parser} without enable_auto_tool_choice"
        why = "requests that leave the choice of a tool to the model are answered with HTTP 400"
        yield Finding(GATE, "warn", text, why=why, fix="write serve: {enable_auto_tool_choice: true}")
    if auto and parser and value_of(deployment, _TOOL_PLUGIN) is None:
        known = table.tool_parsers if (table := _table(facts)) else ()
        yield from _unknown(deployment, facts, parser, "tool_call_parser", known)


def _reasoning(deployment: Deployment, facts: Facts) -> Iterator[Finding]:
    parser = value_of(deployment, _REASONING) or value_of(deployment, _NESTED)
    if parser and value_of(deployment, _REASONING_PLUGIN) is None:
        known = table.reasoning_parsers if (table := _table(facts)) else ()
        yield from _unknown(deployment, facts, parser, "reasoning_parser", known)


def _table(facts: Facts) -> EngineTable | None:
    return facts.engine.table if facts.engine else None


def _unknown(deployment: Deployment, facts: Facts, parser: str, key: str, known: tuple[str, ...]) -> Iterator[Finding]:
    """A parser that neither the engine nor the image has; nothing where the engine's are not known."""
    if not known or parser in known or parser in deployment.engine.provides.parsers:
        return
    from difflib import get_close_matches

    near = get_close_matches(parser, known)
    declare = f"engine.provides: {{parsers: [{parser}]}} where the image brings it"
    yield Finding(
        GATE,
        "reject",
        f"vLLM {deployment.engine.vllm} has no {key} {parser!r}",
        why="the engine looks for it when it starts to serve, and stops",
        fix=_suggestion(facts, f"did you mean {near[0]}? Or {declare}" if near else declare),
    )


def _suggestion(facts: Facts, otherwise: str) -> str:
    """What is usual for the model, where that is known."""
    usual = usual_parsers(facts.shape.model_type) if facts.shape else None
    if facts.shape is None or usual is None:
        return otherwise
    return f"usual for {facts.shape.model_type}: serve: {{tool_call_parser: {usual[0]}, reasoning_parser: {usual[1]}}}"


def _pairs(deployment: Deployment) -> Iterator[Finding]:
    if switched_on(deployment, "--enable-log-outputs") and not switched_on(deployment, "--enable-log-requests"):
        text, why = "enable_log_outputs without enable_log_requests", "the engine stops on its command line"
        yield Finding(GATE, "reject", text, why=why, fix="write serve: {enable_log_requests: true}")
    if switched_on(deployment, "--enable-per-request-metrics") and switched_on(deployment, "--disable-log-stats"):
        text, why = "enable_per_request_metrics with disable_log_stats", "the engine stops on its command line"
        yield Finding(GATE, "reject", text, why=why, fix="remove serve.disable_log_stats")


def _late(deployment: Deployment) -> Iterator[Finding]:
    """What the server finds only after it has loaded the model."""
    if value_of(deployment, "--lora-modules") is not None and not switched_on(deployment, "--enable-lora"):
        text, why = "lora_modules without enable_lora", "the server stops with 'LoRA is not enabled', after the weights"
        yield Finding(GATE, "reject", text, why=why, fix="write serve: {enable_lora: true}")
    if value_of(deployment, "--ssl-keyfile") is not None and value_of(deployment, "--ssl-certfile") is None:
        text, why = "ssl_keyfile without ssl_certfile", "the server stops when it opens its port, after the weights"
        yield Finding(GATE, "reject", text, why=why, fix="name the certificate too: serve: {ssl_certfile: FILE}")
