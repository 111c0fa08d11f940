"""Prompts of controlled content for the speed probe: the kind of text decides how many drafts are accepted.

Each stream of a round gets its own variant, the same in every run, so that two deployments are asked the same.
"""

from __future__ import annotations

import random

KINDS = ("narrative", "code", "copy")

_HEROES = (
    "a lighthouse keeper",
    "a train driver",
    "a map maker",
    "a bee keeper",
    "a clock repairer",
    "a river pilot",
    "a bread baker",
    "a bell founder",
    "a ship's cook",
    "a glass blower",
    "a mountain guide",
    "a bridge builder",
    "a night nurse",
    "a salt trader",
    "a letter carrier",
    "a well digger",
)
_PROGRAMS = (
    "a least-recently-used cache",
    "a binary search tree",
    "a token bucket rate limiter",
    "a priority queue on a heap",
    "a parser for arithmetic expressions",
    "a trie with prefix search",
    "a union-find structure",
    "a bloom filter",
    "a topological sort",
    "a ring buffer",
    "an interval tree",
    "a matrix class",
    "a run-length encoder",
    "a state machine",
    "a skip list",
    "a text wrapper",
)
_ROWS = 40
_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "juniper", "kelp", "lotus")


def prompt_of(kind: str, variant: int) -> str:
    """The prompt of one stream."""
    if kind == "narrative":
        hero = _HEROES[variant % len(_HEROES)]
        return f"Write a long story about {hero} in winter, number {variant + 1}. Use full paragraphs, no headings."
    if kind == "code":
        program = _PROGRAMS[variant % len(_PROGRAMS)]
        return (
            f"Write Python code, variant {variant + 1}, for {program}: complete classes and functions with type hints "
            "and docstrings, then tests for each of them. Code only."
        )
    return f"Copy this table row by row, exactly, and add nothing:\n{_table(variant)}"


def filler(words: int) -> str:
    """A text of this many words in sentences, for prompts of a given length; the same for the same number."""
    source = random.Random(7)
    parts = []
    for number in range(0, words, 8):
        parts.append(" ".join(source.choice(_WORDS) for _ in range(min(8, words - number))) + ".")
    return " ".join(parts)


def _table(variant: int) -> str:
    source = random.Random(variant)
    rows = [f"{n},{source.choice(_WORDS)},{source.randrange(1000, 9999)}" for n in range(1, _ROWS + 1)]
    return "\n".join(("number,word,value", *rows))
