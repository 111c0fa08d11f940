"""Read exchanges of the quality probe: what an answer says, whether it came whole or as a stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shardwright.probes.quality.ask import Exchange

Class = Literal["PASS", "FAIL", "BUDGET", "NOT_APPLICABLE", "ERROR"]

TOOL_MARKUP = re.compile(
    r"</?tool_calls?>|</?arg_(?:key|value)>|</?function[=>]|<\|python_tag\|>|\[TOOL_CALLS\]|<\|tool_call|<[｜|]tool"
)
THINK_MARKUP = re.compile(r"</?think(?:ing)?>|<\|channel\|>|[◁<]/?think[▷>]")
SPECIAL_TOKENS = re.compile(
    r"<\|(?:im_start|im_end|user|assistant|system|observation|endoftext|end|eot_id|eom_id|start_header_id)\|>"
    r"|</?s>|<eos>|<[｜|](?:begin|end)▁of▁sentence[｜|]>"
)
_LONGEST_QUOTE = 80

NOTHING_SAID = "the answers are empty, so nothing can be compared"
BLANKS = "the model fills its JSON with blanks, which JSON allows"
_ENDLESS_BLANKS = re.compile(r"\s{40}\Z")


@dataclass(frozen=True)
class Judgement:
    """How a check ended, and in a few words why. BUDGET: the answer was cut off before it could be judged."""

    outcome: Class
    detail: str


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` is text that should be JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class View:
    """One choice of an answer, the same for both ways in which it may come."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]
    finish: str | None
    usage: Mapping[str, Any]
    token_ids: tuple[int, ...]


def passed(detail: str = "") -> Judgement:
    return Judgement("PASS", detail)


def failed(detail: str) -> Judgement:
    return Judgement("FAIL", detail)


def over_budget(detail: str = "cut off at max_tokens; allow more, or turn thinking off") -> Judgement:
    return Judgement("BUDGET", detail)


def not_applicable(detail: str) -> Judgement:
    return Judgement("NOT_APPLICABLE", detail)


def view(exchange: Exchange) -> View:
    """The first choice of a chat or completion."""
    return views(exchange)[0]


def views(exchange: Exchange) -> list[View]:
    """Every choice, by index; one empty view where the server sent none."""
    if "events" in exchange:
        return [_joined(exchange["events"])]
    reply = exchange.get("reply") or {}
    choices = [choice for choice in _list(reply.get("choices")) if isinstance(choice, dict)]
    return [_whole(choice, reply) for choice in choices] or [_whole({}, reply)]


def deltas(exchange: Exchange) -> Iterator[Mapping[str, Any]]:
    """The first choice of each streamed event that has one."""
    for event in exchange.get("events") or ():
        choices = _list(event.get("choices")) if isinstance(event, dict) else []
        if choices and isinstance(choices[0], dict):
            yield choices[0]


def part(choice: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The `delta` or `message` of a choice, or nothing."""
    found = choice.get(name)
    return found if isinstance(found, dict) else {}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def quote(text: str) -> str:
    """A text for one line of a report."""
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…")


def difference(a: str, b: str) -> str:
    """Where two texts part, with a little of each."""
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"they part at character {place}: {quote(a[place:])} and {quote(b[place:])}"


def parsed(text: str) -> Any:
    """JSON, also inside a code fence. Raises ValueError."""
    inside = re.fullmatch(r"\s*```(?:json)?\s*\n(.*?)\n?```\s*", text, re.DOTALL)
    return json.loads(inside.group(1) if inside else text)


def leaked(content: str) -> str:
    """Markup that a parser should have taken out of the content, or an empty string."""
    for pattern, hint in (
        (TOOL_MARKUP, "the tool parser is missing or the wrong one (--tool-call-parser)"),
        (THINK_MARKUP, "the reasoning parser is missing or the wrong one (--reasoning-parser)"),
        (SPECIAL_TOKENS, "a special token was turned into text"),
    ):
        found = pattern.search(content)
        if found:
            return f"{found.group()!r} stands in the content: {hint}"
    return ""


def endless_blanks(text: str) -> bool:
    """Whether a text ends in blanks without end: what a weak model makes of a grammar that allows them."""
    return _ENDLESS_BLANKS.search(text) is not None


def first_fault(faults: Iterable[str]) -> str:
    """The first of these that says something."""
    return next((fault for fault in faults if fault), "")


def against_schema(value: Any, schema: Mapping[str, Any], where: str = "the value") -> str:
    """How a value breaks a JSON schema of the few kinds that this probe uses, or an empty string."""
    kind = schema.get("type")
    fits = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
    }
    if kind in fits and not fits[kind]:
        return f"{where} is {quote(json.dumps(value))}, not of type {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is {quote(json.dumps(value))}, not one of {json.dumps(schema['enum'])}"
    if isinstance(value, dict):
        return _object_against(value, schema, where)
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return f"{where} has {len(value)} items"
        items = schema.get("items", {})
        return first_fault(against_schema(item, items, f"{where}[{i}]") for i, item in enumerate(value))
    return ""


def _object_against(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> str:
    known = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{where} lacks {', '.join(missing)}"
    unknown = [name for name in value if name not in known]
    if unknown and schema.get("additionalProperties") is False:
        return f"{where} has {', '.join(unknown)}, which the schema does not know"
    return first_fault(against_schema(value[name], known[name], f"{where}.{name}") for name in value if name in known)


def _whole(choice: Mapping[str, Any], reply: Mapping[str, Any]) -> View:
    message = part(choice, "message")
    calls = []
    for call in _list(message.get("tool_calls")):
        function = part(call, "function") if isinstance(call, dict) else {}
        calls.append(Call(text_of(call.get("id")), text_of(function.get("name")), text_of(function.get("arguments"))))
    return View(
        content=text_of(message.get("content")) or text_of(choice.get("text")),
        reasoning=text_of(message.get("reasoning") or message.get("reasoning_content")),
        calls=tuple(calls),
        finish=choice.get("finish_reason"),
        usage=part(reply, "usage"),
        token_ids=tuple(_list(choice.get("token_ids"))),
    )


def _joined(events: Sequence[Any]) -> View:
    content, reasoning, finish = "", "", None
    ids: list[int] = []
    usage: Mapping[str, Any] = {}
    calls: dict[Any, dict[str, str]] = {}
    for event in events:
        if isinstance(event, dict):
            usage = part(event, "usage") or usage
    for choice in deltas({"events": events}):
        delta = part(choice, "delta")
        content += text_of(delta.get("content")) or text_of(choice.get("text"))
        reasoning += text_of(delta.get("reasoning") or delta.get("reasoning_content"))
        finish = choice.get("finish_reason") or finish
        ids += _list(choice.get("token_ids"))
        pieces = [piece for piece in _list(delta.get("tool_calls")) if isinstance(piece, dict)]
        for place, piece in enumerate(pieces):
            function = part(piece, "function")
            call = calls.setdefault(piece.get("index", place), {"id": "", "name": "", "arguments": ""})
            call["id"] = call["id"] or text_of(piece.get("id"))
            call["name"] = call["name"] or text_of(function.get("name"))
            call["arguments"] += text_of(function.get("arguments"))
    return View(content, reasoning, tuple(Call(**call) for call in calls.values()), finish, usage, tuple(ids))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
