"""What the degeneration probe asks: bounded questions, agents' transcripts, and long texts.

A bounded prompt's right answer is at most a few sentences, so an answer that does not end is a fault. `expect` stands
only where every usable model knows the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.errors import UsageError
from shardwright.probes.degen.outcomes import Task

_OURS = ("LATIN", "CJK", "IDEOGRAPHIC")


@dataclass(frozen=True)
class Prompt:
    """A prompt with a name that stays the same in records. `turns` holds the messages of a chat as JSON text."""

    id: str
    text: str
    task: Task = "short"
    expect: tuple[str, ...] = ()
    """One of these must stand in the answer; nothing is demanded where there are none."""
    scripts: tuple[str, ...] = ()
    """Scripts in which an answer may be written; any where there are none."""
    turns: str = ""

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """The chat, where it is more than the one question."""
        return tuple(json.loads(self.turns)) if self.turns else ()


IDENTITY = Prompt("p5_identity", "Who are you?", scripts=_OURS)
"""The prompt on which a stale index buffer was first seen: right at first, then without end."""

ROTATION = (
    Prompt(
        "p1_fact",
        "What is the capital of France? Answer in one sentence.",
        expect=("Paris", "巴黎"),
        scripts=_OURS,
    ),
    Prompt("p2_identity_zh", "你是谁？请用一两句话回答。", scripts=_OURS),
    Prompt("p3_sum", "What is 17 plus 25? Reply with the number only.", expect=("42",), scripts=_OURS),
    Prompt("p4_explain_zh", "用一句话说明天空为什么是蓝色的。", scripts=_OURS),
    IDENTITY,
)
"""What is asked in turn where a layout names no prompts of its own."""

LONG = (
    Prompt(
        "l1_report",
        "Write a detailed report on how a city of one million people could renew its public transport. Use 12 sections "
        "with headings, at least 400 words each: history, present state, buses, trams, trains, bicycles, tickets, "
        "staff, energy, cost, risks, and a plan by year.",
        task="long",
        scripts=_OURS,
    ),
    Prompt(
        "l2_story",
        "Write a story of at least 4,000 words about a lighthouse keeper who finds an old logbook. Use 10 chapters and "
        "let each chapter bring something new.",
        task="long",
        scripts=_OURS,
    ),
    Prompt(
        "l3_report_zh",
        "请写一篇不少于五千字的详细报告，介绍一座小型图书馆从设计、建造到开放第一年的全过程，分为十二节，每节都要有标题和具体内容。",
        task="long",
        scripts=_OURS,
    ),
    Prompt(
        "l4_guide",
        "Write a complete guide in detail for someone who keeps bees for the first time. Use 12 chapters, one for each "
        "month of the year, with at least 350 words each.",
        task="long",
        scripts=_OURS,
    ),
)
"""Texts of more than 4,000 tokens; some faults loop only there."""


def _agent(name: str, expect: str, *turns: tuple[str, str]) -> Prompt:
    """A transcript: ("user", text), ("assistant", text), ("call", "tool {arguments}") and ("tool", result)."""
    messages: list[dict[str, Any]] = []
    calls = 0
    for role, text in turns:
        if role == "call":
            tool, _, arguments = text.partition(" ")
            calls += 1
            function = {"name": tool, "arguments": arguments}
            call = {"id": f"call_{calls:08d}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif role == "tool":
            messages.append({"role": "tool", "tool_call_id": f"call_{calls:08d}", "content": text})
        else:
            messages.append({"role": role, "content": text})
    last = next(text for role, text in reversed(turns) if role == "user")
    turns_text = json.dumps(messages, ensure_ascii=False)
    return Prompt(name, last, task="agent", expect=(expect,), scripts=_OURS, turns=turns_text)


_SYSTEM = "You help with a small software project. Use what the tools returned. Answer in one or two sentences."

AGENT = (
    _agent(
        "a1_failing_test",
        "7421",
        ("system", _SYSTEM),
        ("user", "Which files are in the project?"),
        ("call", 'list_files {"path": "."}'),
        ("tool", "README.md\nqueue.py\ntest_queue.py"),
        ("assistant", "The project holds README.md, queue.py and test_queue.py."),
        ("user", "Run the tests and tell me the number of the ticket that the failing one names."),
        ("call", 'run_tests {"file": "test_queue.py"}'),
        ("tool", "3 passed, 1 failed: test_drain_order, known as ticket 7421"),
    ),
    _agent(
        "a2_port",
        "8137",
        ("system", _SYSTEM),
        ("user", "Find out on which port the service listens."),
        ("call", 'read_file {"path": "service.yaml"}'),
        ("tool", "name: parcels\nworkers: 4\nconfig: ports.yaml"),
        ("call", 'read_file {"path": "ports.yaml"}'),
        ("tool", "parcels: 8137"),
    ),
    _agent(
        "a3_order_zh",
        "5264",
        ("system", "你是一个订单助手。请根据工具返回的内容，用一句话回答。"),
        ("user", "我想查一下我的订单。"),
        ("assistant", "好的，请告诉我您的姓名。"),
        ("user", "我叫李雷，请告诉我订单号。"),
        ("call", 'find_order {"name": "李雷"}'),
        ("tool", "姓名 李雷 订单号 5264 已发货"),
    ),
    _agent(
        "a4_weather",
        "17",
        ("system", "You plan walks. Use what the tools returned. Answer in one sentence."),
        ("user", "Good morning!"),
        ("assistant", "Good morning! Where would you like to walk today?"),
        ("user", "Along the river in Bern. How many degrees is it there now?"),
        ("call", 'get_weather {"city": "Bern"}'),
        ("tool", "Bern: 17 degrees, dry, light wind"),
    ),
)
"""Fixed transcripts of several turns; some faults show only there."""


def own_prompts(texts: Sequence[str]) -> tuple[Prompt, ...]:
    """Prompts from a layout or the command line, named by their place. Raises UsageError for an empty one."""
    for text in texts:
        if not text.strip():
            raise UsageError("a prompt is empty", fix="give it a text, or leave it out to use the built-in prompts")
    return tuple(Prompt(f"p{number}", text) for number, text in enumerate(texts, start=1))


def as_plain_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """A transcript as one text, for servers whose chat template knows no tools."""
    lines = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            function = call["function"]
            lines.append(f"(called {function['name']} with {function['arguments']})")
        if message["role"] == "tool":
            lines.append(f"(it returned: {message['content']})")
        elif message["content"]:
            lines.append(f"{message['role']}: {message['content']}")
    return "\n".join(lines)
