"""Checks that need a capable model: small facts, sums, order, form, copying, memory over six turns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from shardwright.probes.degen.text_faults import garbage
from shardwright.probes.quality.ask import Asker, Exchange, user
from shardwright.probes.quality.check import Category, Check
from shardwright.probes.quality.prompts import (
    FACT,
    FACT_ZH,
    JSON_ANSWER,
    JSON_FREE,
    LINES,
    MEMORY,
    MEMORY_FIRST,
    MEMORY_LAST,
    PRODUCT,
    REVERSE,
    SORT,
    SORTED,
    SUM,
    UNICODE,
    UNICODE_ECHO,
    echo_ids,
    echo_prompt,
)
from shardwright.probes.quality.views import (
    Judgement,
    View,
    difference,
    failed,
    leaked,
    over_budget,
    parsed,
    passed,
    quote,
    view,
)

_LINES_WANTED = 7


def judge_answer(answer: View, fault_in: Callable[[str], str]) -> Judgement:
    """Judge the content of one answer. Without content it says whether the budget or the model is to blame.

    An answer that was cut off inside its reasoning is undecided; reasoning alone that ended by itself is a fault.
    """
    if not answer.content.strip():
        if answer.finish == "length":
            return over_budget("cut off inside the reasoning; allow more tokens, or turn thinking off")
        return failed("reasoning but no answer" if answer.reasoning.strip() else "the answer is empty")
    if garbage(answer.content):
        return failed(garbage(answer.content))
    fault = leaked(answer.content) or fault_in(answer.content.strip())
    if fault and answer.finish == "length":
        return over_budget()
    return failed(fault) if fault else passed(quote(answer.content))


def wrong_ids(ids: Sequence[str], content: str) -> list[str]:
    """The ids that do not come back to the letter, each with the nearest line that did."""
    from difflib import get_close_matches

    lines = [line.strip().strip("`").strip() for line in content.splitlines()]
    wrong = [wanted for wanted in ids if wanted not in lines]
    return [f"{wanted} came back as {(get_close_matches(wanted, lines, 1) or ['nothing'])[0]}" for wanted in wrong]


def echo_check(name: str, says_no: str) -> Check:
    """The copy check under this name; which ids are asked for, the trial's number decides."""
    return Check(name, "copy", "model", says_no, lambda asker: ask_echo(asker, 0), judge_echo)


def ask_echo(asker: Asker, trial: int) -> None:
    """Ask for the ids of this trial."""
    asker.chat(echo_prompt(echo_ids(trial)))


def judge_echo(exchanges: Sequence[Exchange]) -> Judgement:
    """Every id must come back to the letter."""
    ids = exchanges[0]["request"]["messages"][0]["content"].splitlines()[1:]

    def fault(content: str) -> str:
        wrong = wrong_ids(ids, content)
        return f"{len(wrong)} of {len(ids)} ids are wrong: {wrong[0]}" if wrong else ""

    return judge_answer(view(exchanges[0]), fault)


def _number(wanted: int) -> Callable[[str], str]:
    def fault(content: str) -> str:
        numbers = [int(text.replace(",", "")) for text in re.findall(r"\d[\d,]*", content)]
        return "" if numbers[-1:] == [wanted] else f"wanted {wanted}, got {quote(content)}"

    return fault


def _holds(wanted: str) -> Callable[[str], str]:
    def fault(content: str) -> str:
        return "" if wanted.lower() in content.lower() else f"wanted {wanted!r}, got {quote(content)}"

    return fault


def _sorted_fault(content: str) -> str:
    numbers = tuple(map(int, re.findall(r"\d+", content)))
    return "" if numbers == SORTED else f"wanted {', '.join(map(str, SORTED))}, got {quote(content)}"


def _lines_fault(content: str) -> str:
    lines = [line for line in content.splitlines() if line.strip()]
    return "" if len(lines) == _LINES_WANTED else f"wanted {_LINES_WANTED} lines, got {len(lines)}"


def _json_fault(content: str) -> str:
    try:
        value = parsed(content)
    except ValueError:
        return f"not JSON: {quote(content)}"
    return "" if value == dict(JSON_ANSWER) else f"wanted {json.dumps(JSON_ANSWER)}, got {quote(content)}"


def _unicode_fault(content: str) -> str:
    return "" if content == UNICODE else difference(UNICODE, content)


def _memory_fault(content: str) -> str:
    if MEMORY_LAST in content and MEMORY_FIRST not in content:
        return ""
    return f"wanted {MEMORY_LAST!r}, got {quote(content)}"


def _ask_memory(asker: Asker) -> None:
    messages = []
    for question, _ in MEMORY:
        messages += user(question)
        answer = view(asker.chat(messages))
        messages.append({"role": "assistant", "content": answer.content})


def _judge_memory(exchanges: Sequence[Exchange]) -> Judgement:
    return judge_answer(view(exchanges[-1]), _memory_fault)


def _single(name: str, category: Category, prompt: str, fault: Callable[[str], str], says_no: str) -> Check:
    def ask(asker: Asker) -> None:
        asker.chat(prompt)

    def judge(exchanges: Sequence[Exchange]) -> Judgement:
        return judge_answer(view(exchanges[0]), fault)

    return Check(name, category, "model", says_no, ask, judge)


CHECKS = (
    _single("fact", "knowledge", FACT, _holds("Paris"), "the capital of France is not Paris"),
    _single("fact-zh", "knowledge", FACT_ZH, _holds("巴黎"), "the same in Chinese"),
    _single("product", "knowledge", PRODUCT, _number(391), "17 times 23 is not 391"),
    _single("sum", "knowledge", SUM, _number(270), "a chain of three additions is wrong"),
    _single("reverse", "knowledge", REVERSE, _holds("tenalp"), "a word of six letters is not reversed"),
    _single("sort", "knowledge", SORT, _sorted_fault, "eight numbers are not sorted"),
    _single("lines", "knowledge", LINES, _lines_fault, "a list of seven lines has another number of them"),
    _single("json-free", "knowledge", JSON_FREE, _json_fault, "JSON without any help is not what was asked for"),
    _single("unicode-echo", "copy", UNICODE_ECHO, _unicode_fault, "a text of many scripts does not come back exactly"),
    Check(
        "memory",
        "knowledge",
        "model",
        "a code that was replaced in the third turn is not remembered in the sixth",
        _ask_memory,
        _judge_memory,
    ),
)
ECHO_ALONE = echo_check("echo-c1", "one of eight random ids does not come back to the letter")
ECHO_BESIDE = echo_check("echo-c8", "the same, with eight requests at a time")
