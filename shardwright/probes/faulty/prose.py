"""Text without repetition, any length, the same for the same seed: what a healthy long answer looks like."""

from __future__ import annotations

from random import Random


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


_WHO = _phrases(
    "the harbour office|a night train|the old bridge|our survey team|the north valley|one careful reader|"
    "the city archive|a small bakery|the weather station|the second engine|every gardener|the museum guide|"
    "the river pilot|a quiet library|the repair crew|the mountain hut|the printing shop|a market trader|"
    "the school choir|the lighthouse keeper"
)
_DID = _phrases(
    "described|measured|repaired|followed|painted|questioned|collected|carried|opened|closed|compared|sorted|"
    "remembered|explained|avoided|rebuilt|counted|sketched|replaced|welcomed"
)
_WHAT = _phrases(
    "the eastern wall|seven wooden boxes|a change in the wind|the longest route|two letters from abroad|"
    "the missing page|an early harvest|the copper roof|a row of lamps|the broken clock|the tide tables|"
    "a map of the coast|several unusual stones|the winter budget|a new kind of rope|the first draft|"
    "the sound of rain|an empty room|the price of salt|the second floor"
)
_HOW = _phrases(
    "before sunrise|after a short pause|without any help|in the third week|with great care|during the festival|"
    "for the last time|under a grey sky|at the request of nobody|near the ferry|despite the noise|"
    "as the rules allowed|while others slept|once the snow had gone|by a simple method"
)


def sentence(chance: Random) -> str:
    """One sentence; there are about 120,000 different ones, and a number makes many more."""
    text = f"{chance.choice(_WHO)} {chance.choice(_DID)} {chance.choice(_WHAT)} {chance.choice(_HOW)}"
    if chance.random() < 0.3:
        text += f", {chance.randrange(2, 9000)} steps from the gate"
    return text[0].upper() + text[1:] + "."


def prose(seed: str, words: int) -> str:
    """At least `words` words in paragraphs."""
    chance = Random(seed)
    parts: list[str] = []
    count = 0
    while count < words:
        parts.append(sentence(chance))
        count += parts[-1].count(" ") + 1
        parts.append("\n\n" if chance.random() < 0.15 else " ")
    return "".join(parts).strip()


def salad(seed: str, words: int) -> str:
    """Words in no order, as a corrupted cache or a wrong slice of weights gives them."""
    chance = Random(seed)
    bag = " ".join((*_WHO, *_DID, *_WHAT, *_HOW)).split()
    return " ".join(chance.choice(bag) + chance.choice(("", "", ")", "_", "::", " 的", "//")) for _ in range(words))
