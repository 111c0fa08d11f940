"""Texts to score: four kinds, made from a seed, cut to an exact number of tokens of the model's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.needle.text import WORDINGS, sentences
from shardwright.probes.server import Server
from shardwright.probes.tokens import tokenize

_LINES_FOR_A_TOKEN = 0.2
_WHO = ("老师", "医生", "船长", "农夫", "画家", "邻居", "学生", "司机")
_DOES = ("喜欢", "修理", "寻找", "描写", "忘记", "搬走", "看见", "擦亮")
_HOW = ("安静的", "古老的", "红色的", "明亮的", "沉重的", "奇怪的")
_WHAT = ("河流", "花园", "窗户", "城堡", "灯塔", "森林", "火车", "钢琴", "地图", "茶杯")
_MOST_DOUBLINGS = 6


def prompt_ids(server: Server, number: int, tokens: int, seed: int) -> tuple[int, ...]:
    """The first `tokens` ids of text `number`. Raises DeployError where the server has no tokenizer, TransportError."""
    lines = max(8, round(tokens * _LINES_FOR_A_TOKEN))
    for _ in range(_MOST_DOUBLINGS):
        ids = tokenize(server.endpoint, server.model, prompt=text(number, lines, seed)).ids
        if len(ids) >= tokens:
            return ids[:tokens]
        lines *= 2
    raise DeployError(f"/tokenize makes no {tokens} tokens of {lines} lines", code=ExitCode.HARNESS)


def text(number: int, lines: int, seed: int) -> str:
    """Prose, records, code or Chinese, in turn; a longer text begins as a shorter one does."""
    kind = _KINDS[number % len(_KINDS)]
    return kind(random.Random(f"score {seed} {number}"), lines, f"{seed} {number}")


def _prose(_: random.Random, lines: int, seed: str) -> str:
    return "".join(islice(sentences(WORDINGS["access-code"], f"score {seed}"), lines)).strip()


def _records(draw: random.Random, lines: int, _: str) -> str:
    nouns = WORDINGS["access-code"].nouns
    rows = (
        f'{{"id": {place}, "item": "{draw.choice(nouns)}", "count": {draw.randrange(9999)}}}' for place in range(lines)
    )
    return "\n".join(rows)


def _code(draw: random.Random, lines: int, _: str) -> str:
    wording = WORDINGS["access-code"]
    parts = []
    for _number in range(lines // 3 + 1):
        verb, noun, other = draw.choice(wording.verbs), draw.choice(wording.nouns), draw.choice(wording.nouns)
        parts.append(f"def {verb}_{noun}({other}: int) -> int:\n    return {other} * {draw.randrange(99)} + 1\n\n")
    return "".join(parts)


def _chinese(draw: random.Random, lines: int, _: str) -> str:
    rows = (
        f"{draw.choice(_WHO)}{draw.choice(_DOES)}{draw.choice(_HOW)}{draw.choice(_WHAT)}。" for _line in range(lines)
    )
    return "".join(rows)


_KINDS: tuple[Callable[[random.Random, int, str], str], ...] = (_prose, _records, _code, _chinese)
