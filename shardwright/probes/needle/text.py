"""Haystacks, needles and questions, made from a seed: no book that a model may know, and no sentence twice in a row.

The default pools give about 10^8 different sentences, so that not even 500,000 tokens repeat themselves. Repetition
would give a sparse indexer equal keys and a draft model an easy time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

WordingName = Literal["access-code", "magic-number"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NOUNS = _words(
    "cat dog river stone lamp garden bridge market teacher window forest engine paper winter coffee mirror village "
    "captain doctor candle ladder basket letter island valley harbor button pencil planet summer orchard rabbit tiger "
    "wagon castle meadow violin kitchen thunder blanket compass lantern pepper saddle anchor marble feather copper "
    "farmer baker sailor painter tailor miller tower temple station library carpet curtain hammer needle bottle kettle "
    "pillow statue fountain tunnel canal desert glacier volcano comet rocket turtle falcon donkey squirrel beetle "
    "spider walnut cherry lemon tomato onion garlic butter biscuit sandwich"
)
_VERBS = _words(
    "sees likes finds moves paints keeps follows carries watches repairs borrows forgets cleans measures "
    "buries visits admires avoids describes remembers lifts hides sells polishes crosses explores weighs returns"
)
_ADJECTIVES = _words(
    "old red quiet small bright heavy strange early wooden gentle broken famous narrow golden lazy curious "
    "green tall sleepy frozen hollow cheerful crooked dusty empty fragile hungry modern patient proud rusty silent "
    "tiny velvet warm yellow young clever distant honest"
)
_STONES = _words(
    "amber birch cobalt delta ember falcon garnet hazel indigo jasper karma lotus maple nova onyx pearl quartz raven "
    "sable topaz umber velvet willow xenon yarrow zephyr atlas bison cedar dune echo fjord glacier heron iris juniper "
    "kelp lyra mango nectar olive panda quill robin saffron tulip ursa viola walnut yucca"
)
_PADS = tuple(noun for noun in _NOUNS[:48] if len(noun) <= 6)


@dataclass(frozen=True)
class Wording:
    """How facts and questions are put. `fact` holds {key} and {code}, `question` holds {key}."""

    fact: str
    question: str
    separator: str
    digits: int
    keys: tuple[str, ...]
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    verbs: tuple[str, ...]


WORDINGS: Mapping[WordingName, Wording] = {
    "access-code": Wording(
        fact="The access code for {key} is {code}.",
        question="What is the access code for {key}? Reply with the number only.",
        separator="\n\n",
        digits=7,
        keys=tuple(f"{adjective}-{noun}" for adjective in _ADJECTIVES for noun in _NOUNS),
        adjectives=_ADJECTIVES,
        nouns=_NOUNS,
        verbs=_VERBS,
    ),
    "magic-number": Wording(
        fact="The magic number of {key} is {code}.",
        question="What is the magic number of {key}?",
        separator="",
        digits=5,
        keys=_STONES,
        adjectives=_ADJECTIVES[:16],
        nouns=_NOUNS[:48],
        verbs=_VERBS[:14],
    ),
}
"""`magic-number` is what the small model of the embedded demo was taught; it knows no other words."""


@dataclass(frozen=True)
class Needle:
    """One question with its right answer, and the decoys: other keys with their codes, in the same text."""

    key: str
    code: str
    decoys: tuple[tuple[str, str], ...]


def draw_needle(wording: Wording, seed: str, decoys: int) -> Needle:
    """Keys and codes from a seed. Any two codes differ in at least four digits, so that a near miss has one origin."""
    draw = random.Random(f"needle {seed}")
    keys = draw.sample(wording.keys, decoys + 1)
    codes: list[str] = []
    while len(codes) < len(keys):
        code = str(draw.randrange(10 ** (wording.digits - 1), 10**wording.digits))
        if all(sum(a != b for a, b in zip(code, other, strict=True)) >= 4 for other in codes):
            codes.append(code)
    return Needle(keys[0], codes[0], tuple(zip(keys[1:], codes[1:], strict=True)))


def sentences(wording: Wording, seed: str) -> Iterator[str]:
    """Sentences without end, each with a leading blank: "The old cat sees the red lamp."."""
    draw = random.Random(f"haystack {seed}")
    adjectives, nouns, verbs = wording.adjectives, wording.nouns, wording.verbs
    while True:
        yield (
            f" The {draw.choice(adjectives)} {draw.choice(nouns)} {draw.choice(verbs)}"
            f" the {draw.choice(adjectives)} {draw.choice(nouns)}."
        )


def pad_words(seed: str, count: int) -> str:
    """Short nouns, of one token each in usual tokenizers, each with a leading blank; a longer row begins the same."""
    draw = random.Random(f"pad {seed}")
    return "".join(f" {draw.choice(_PADS)}" for _ in range(count))


def place_facts(haystack: list[str], wording: Wording, needle: Needle, depth_percent: float, seed: str) -> list[str]:
    """`haystack` with the needle after `depth_percent` of its sentences and the decoys anywhere."""
    draw = random.Random(f"decoys {seed}")
    placed = [(depth_percent / 100 * len(haystack), f" {wording.fact.format(key=needle.key, code=needle.code)}")]
    for key, code in needle.decoys:
        placed.append((draw.random() * len(haystack), f" {wording.fact.format(key=key, code=code)}"))
    text: list[str] = []
    rest = 0
    for place, fact in sorted(placed):
        cut = round(place)
        text += [*haystack[rest:cut], fact]
        rest = max(rest, cut)
    return text + haystack[rest:]


def answer_to(prompt: str) -> str | None:
    """The right answer to a prompt of this probe, in either wording; None where it is no such prompt."""
    for fact, question in _PATTERNS:
        asked = question.findall(prompt)
        if asked:
            codes = dict(fact.findall(prompt))
            return codes.get(asked[-1])
    return None


def _pattern(template: str) -> re.Pattern[str]:
    escaped = re.escape(template).replace(r"\{key\}", r"([a-z][a-z-]*)").replace(r"\{code\}", r"(\d+)")
    return re.compile(escaped)


_PATTERNS = [(_pattern(wording.fact), _pattern(wording.question)) for wording in WORDINGS.values()]
