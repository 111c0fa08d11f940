"""Right answers: what a healthy model says to every question that a probe asks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random

from shardwright.probes.faulty.asked import Asked, content_text
from shardwright.probes.faulty.prose import prose
from shardwright.probes.faulty.script import Call, Script
from shardwright.probes.faulty.shapes import arguments_for, forced_json
from shardwright.probes.needle.text import answer_to as needle_answer
from shardwright.probes.quality.prompts import answer_after_tool, answer_to, calls_for

_ECHO = re.compile(r"^(?:repeat|copy)\b[^\n]*:[ \t]*\n(.+)", re.IGNORECASE | re.DOTALL)
_SUM = re.compile(r"(-?\d+(?:\s*(?:[-+*×x/]|plus|minus|times)\s*-?\d+)+)", re.IGNORECASE)
_MEMORY = re.compile(r"\b(?:code|password|word|number)\b[^.?!\n]*?\b(?:is|to)(?: now)? [\"']?([A-Z0-9][A-Z0-9-]{2,})\b")
_ASKED_MEMORY = re.compile(r"\bwhat\b[^?]*\b(?:code|password|word|number)\b", re.IGNORECASE)
_LONG = re.compile(
    r"\d+[- ](?:sections?|chapters?|pages?)|at least \d[\d,]{2,}|\b(?:report|essay|story|novel|guide|in detail)\b|"
    r"详细|报告|文章|故事|小说",
    re.IGNORECASE,
)
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_LONG_WORDS = 5200


def answer(asked: Asked) -> Script:
    """The whole right answer. Greedy requests always get the same; a seed chooses among equal ways to say it."""
    forced = forced_json(asked)
    if forced is not None:
        return _with_thought(asked, forced)
    called = _calls(asked)
    if called:
        return _with_thought(asked, "", called)
    for rule in RULES:
        text = rule(asked)
        if text is not None:
            return _with_thought(asked, text)
    return _with_thought(asked, _any_other(asked))


def _with_thought(asked: Asked, text: str, calls: tuple[Call, ...] = ()) -> Script:
    thought = "The question is clear, so a short and exact answer is enough." if asked.thinking else ""
    return Script(text, thought, calls)


def _known(asked: Asked) -> str | None:
    """What the probes' own prompts are answered with."""
    return answer_to(asked.question) or needle_answer(asked.everything)


def _echo(asked: Asked) -> str | None:
    found = _ECHO.search(asked.question.strip())
    return found.group(1).strip() if found else None


def _tool_result(asked: Asked) -> str | None:
    results = []
    for message in reversed(asked.messages):
        if message.get("role") != "tool":
            break
        results.append(content_text(message))
    return answer_after_tool(" and ".join(reversed(results))) if results else None


def _memory(asked: Asked) -> str | None:
    if asked.turns < 2 or not _ASKED_MEMORY.search(asked.question):
        return None
    codes = _MEMORY.findall("\n".join(content_text(m) for m in asked.messages if m.get("role") != "assistant"))
    return codes[-1] if codes else None


def _arithmetic(asked: Asked) -> str | None:
    found = _SUM.search(asked.question)
    return str(_value(found.group(1))) if found else None


def _value(text: str) -> int:
    """The value of a chain of whole numbers, products first."""
    for word, mark in (("plus", "+"), ("minus", "-"), ("times", "*"), ("×", "*"), ("x", "*")):
        text = re.sub(word, mark, text, flags=re.IGNORECASE)
    total = 0
    for term in re.findall(r"(?:^|[-+])\s*-?[^-+]+", text):
        sign = -1 if term.strip().startswith("-") else 1
        product = 1
        for factor in re.findall(r"\d+", term):
            product *= int(factor)
        total += sign * product
    return total


def _capital(asked: Asked) -> str | None:
    if "capital of france" not in asked.question.lower():
        return None
    if re.search(r"one word|name only|only the (?:name|city)", asked.question, re.IGNORECASE):
        return "Paris"
    return _way(asked, ("The capital of France is Paris.", "Paris is the capital of France.", "It is Paris."))


def _identity(asked: Asked) -> str | None:
    question = asked.question.lower()
    if "who are you" in question or "introduce yourself" in question:
        return _way(
            asked,
            (
                "I am a language model that answers questions.",
                "I am an assistant, a program that was trained on text to answer questions.",
                "I'm a language model. How can I help you?",
            ),
        )
    if "你是谁" in question or "介绍" in question:
        return _way(asked, ("我是一个语言模型,可以回答问题。", "我是人工智能助手,很高兴为你服务。"))
    return None


def _sky(asked: Asked) -> str | None:
    if "天空" in asked.question:
        return _way(asked, ("因为大气散射蓝光比红光更多。", "阳光中的蓝光被空气分子散射得最多,所以天空是蓝色的。"))
    return None


def _long(asked: Asked) -> str | None:
    if not _LONG.search(asked.question):
        return None
    return prose(_key(asked), _LONG_WORDS)


RULES: tuple[Callable[[Asked], str | None], ...] = (
    _tool_result,
    _known,
    _echo,
    _memory,
    _capital,
    _identity,
    _sky,
    _arithmetic,
    _long,
)
"""Each gives the answer to its kind of question, or None for another kind; the first that answers counts."""


def _any_other(asked: Asked) -> str:
    words = 2000 if asked.body.get("ignore_eos") else 14
    if _CHINESE.search(asked.question) and words < 100:
        return _way(asked, ("好的,这是一个简短的回答。", "可以,答案很简单。"))
    return prose(_key(asked), words)


def _calls(asked: Asked) -> tuple[Call, ...]:
    choice = asked.body.get("tool_choice") or "auto"
    tools = asked.tools
    if not tools:
        return ()
    if isinstance(choice, dict):
        name = choice.get("function", choice).get("name")
        chosen = [tool for tool in tools if tool.get("name") == name]
    else:
        if asked.messages and asked.messages[-1].get("role") == "tool":
            return ()
        known = calls_for(asked.question)
        if known:
            calls = [Call(name, json.dumps(arguments)) for name, arguments in known]
            return tuple(calls if asked.body.get("parallel_tool_calls", True) else calls[:1])
        chosen = [tool for tool in tools if _is_meant(str(tool.get("name", "")), asked.question)]
        if choice == "required" and not chosen:
            chosen = list(tools[:1])
    calls = [Call(str(tool["name"]), text) for tool in chosen for text in arguments_for(tool, asked.question)]
    return tuple(calls if asked.body.get("parallel_tool_calls", True) else calls[:1])


def _is_meant(name: str, question: str) -> bool:
    """Whether the question speaks of this tool: its name, or every longer word of it."""
    if name in question:
        return True
    asked_words = set(re.findall(r"[a-z]+", question.lower()))
    words = [word for word in re.findall(r"[a-z]+", name.lower()) if len(word) > 3]
    return bool(words) and all(word in asked_words for word in words)


def _way(asked: Asked, ways: tuple[str, ...]) -> str:
    return ways[0] if asked.greedy else Random(_key(asked)).choice(ways)


def _key(asked: Asked) -> str:
    return asked.question if asked.greedy else f"{asked.seed} {asked.question}"
