"""Faults that show in a finished text without knowing the right answer. Each function gives the ground, or ""."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Collection
from itertools import pairwise

from shardwright.probes.units import split_units

_TAIL_CHARS = 200
_FEWEST_CHARS = 40
_ONE_CHAR_SHARE = 0.6
_PLAIN_CONTROLS = "\t\n\r"

# Words that text practically never doubles ("that that", "had had" and "is is" do occur, so they are not among them).
_NEVER_DOUBLED = frozenset(
    re.findall(
        r"[a-z]+",
        "a about an and are as at because but by can could does for from how i if its me my of or our please she "
        "should so the their then there they this to was we were what when where which while who will with would "
        "you your ",
    )
)
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
_BLANKS = re.compile(r"[ \t]+")
_SMALL_SHARE = 0.02
_ANY_SHARE = 0.1
_FEWEST_DOUBLED = 3

_FOREIGN_SHARE = 0.1
_FEWEST_FOREIGN = 5

_NEAR_WINDOW_CHARS = 4000
_NEAR_REP4 = 0.6
_NEAR_ZLIB = 5.0
_GRAM = 4

_MARKUP = re.compile(
    r"</?tool_calls?>|</?arg_(?:key|value)>|<\|python_tag\|>|\[TOOL_CALLS\]|<\|tool_call|<[｜|]tool"
    r"|<\|(?:im_start|im_end|user|assistant|system|observation|endoftext|eot_id|start_header_id)\|>"
)


def garbage(text: str) -> str:
    """Characters that no text holds, or one character over and over (what NaN looks like)."""
    for char in text:
        if char == "\ufffd":
            return "holds U+FFFD, the mark of broken bytes"
        if (char < " " and char not in _PLAIN_CONTROLS) or "\ud800" <= char <= "\udfff":
            return f"holds U+{ord(char):04X}, which no text holds"
    tail = text[-_TAIL_CHARS:]
    if len(tail) >= _FEWEST_CHARS:
        most, count = Counter(tail).most_common(1)[0]
        if count >= _ONE_CHAR_SHARE * len(tail):
            return f"{most!r} makes up {count} of its last {len(tail)} characters"
    return ""


def doubled_words(text: str) -> str:
    """Words said twice in a row, as where a draft's tokens are taken twice ("How can can I help").

    One doubled word of those that text never doubles is enough where it makes up 2 % of the words; of other words it
    takes three, and 10 %. Songs and laughter lie under that, or hold their words in other order.
    """
    words = list(_WORD.finditer(text))
    small = anyone = 0
    first = ""
    for one, other in pairwise(words):
        same = one.group().lower() == other.group().lower()
        if same and _BLANKS.fullmatch(text, one.end(), other.start()):
            anyone += len(one.group()) > 1
            if one.group().lower() in _NEVER_DOUBLED:
                small += 1
                first = first or f"{one.group()} {other.group()}"
    if small and small >= _SMALL_SHARE * len(words):
        return f"says a word twice: {first!r}"
    if anyone >= max(_FEWEST_DOUBLED, _ANY_SHARE * len(words)):
        return f"says {anyone} of {len(words)} words twice in a row"
    return ""


def foreign_letters(text: str, scripts: Collection[str]) -> str:
    """Letters of other scripts than these, named as Unicode names them (LATIN, CJK); nothing where none are named."""
    if not scripts:
        return ""
    counts: Counter[str] = Counter()
    letters = 0
    for char, count in Counter(text).items():
        if char.isalpha():
            letters += count
            if not char.isascii():
                counts[unicodedata.name(char, "UNNAMED").split(" ")[0].split("-")[0]] += count
    others = {name: count for name, count in counts.items() if name not in scripts and name != "FULLWIDTH"}
    total = sum(others.values())
    if total >= max(_FEWEST_FOREIGN, _FOREIGN_SHARE * letters):
        return f"{total} of its {letters} letters are {', '.join(sorted(others)).lower()}"
    return ""


def markup(text: str) -> str:
    """Marks of a tool call or of the chat template, which a parser should have taken out."""
    found = _MARKUP.search(text)
    return f"holds {found.group()!r}, which the server's parsers should have taken out" if found else ""


def near_loop(text: str) -> str:
    """The same few phrases with small changes, by its last 4,000 characters.

    Both must hold: more than 60 % of the runs of four words were there before, and it compresses more than fivefold.
    Either alone is met by code and JSON.
    """
    tail = text[-_NEAR_WINDOW_CHARS:]
    units = split_units(tail)
    grams = [tuple(units[i : i + _GRAM]) for i in range(len(units) - _GRAM + 1)]
    if not grams:
        return ""
    repeated = 1 - len(set(grams)) / len(grams)
    data = tail.encode("utf-8", "replace")
    ratio = len(data) / len(zlib.compress(data))
    if repeated > _NEAR_REP4 and ratio > _NEAR_ZLIB:
        return f"{100 * repeated:.0f} % of its last runs of four words were there before"
    return ""
