"""Bounded prompts: the right answer is at most a few sentences, so an answer that does not end is a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.errors import UsageError


@dataclass(frozen=True)
class Prompt:
    """A prompt with a name that stays the same in records."""

    id: str
    text: str


IDENTITY = Prompt("p5_identity", "Who are you?")
"""The prompt on which a stale index buffer was first seen: right at first, then without end."""

ROTATION = (
    Prompt("p1_fact", "What is the capital of France? Answer in one sentence."),
    Prompt("p2_identity_zh", "你是谁？请用一两句话回答。"),
    Prompt("p3_sum", "What is 17 plus 25? Reply with the number only."),
    Prompt("p4_explain_zh", "用一句话说明天空为什么是蓝色的。"),
    IDENTITY,
)
"""What is asked in turn where a layout names no prompts of its own."""


def own_prompts(texts: Sequence[str]) -> tuple[Prompt, ...]:
    """Prompts from a layout or the command line, named by their place. Raises UsageError for an empty one."""
    for text in texts:
        if not text.strip():
            raise UsageError("a prompt is empty", fix="give it a text, or leave it out to use the built-in prompts")
    return tuple(Prompt(f"p{number}", text) for number, text in enumerate(texts, start=1))
