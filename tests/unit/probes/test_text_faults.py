from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from shardwright.probes.degen.outcomes import OutcomeClass, judge
from shardwright.probes.degen.text_faults import doubled_words, foreign_letters, garbage, markup, near_loop


@pytest.mark.parametrize(
    "text",
    [
        "Hello!! How can can I helpHello How I",
        "The The capital is Paris.",
        "I am a a language model.",
        "Sure sure here here is is the answer answer.",
    ],
)
def test_a_draft_taken_twice_shows_in_doubled_words(text: str) -> None:
    assert doubled_words(text)
    assert judge(text, "", "stop", None).outcome == OutcomeClass.GARBAGE


@pytest.mark.parametrize(
    "text",
    [
        "He had had enough, and I know that that is so.",
        "Bye bye! That was very, very good. No no, thank you.",
        "What it is is a matter of taste.",
        "Tora! Tora! Tora!",
        "the end\nthe start",
        "1 1 1 1 2 2 2 2",
        "看看，好好学习，天天向上。",
        "",
    ],
)
def test_doubling_that_language_knows_is_none(text: str) -> None:
    assert doubled_words(text) == ""


def library_texts() -> list[str]:
    library = Path(os.__file__).parent
    files = [*sorted(library.glob("*.py")), *sorted(library.glob("*/*.txt"))]
    texts = [file.read_text(encoding="utf-8", errors="ignore")[:30_000] for file in files]
    return [text for text in texts if len(text) > 1500]


def test_natural_documents_say_nothing_twice_whole_or_in_pieces_of_an_answers_length() -> None:
    texts = library_texts()
    assert len(texts) >= 100
    pieces = [text[at : at + 400] for text in texts for at in range(0, len(text), 400)]
    assert [text for text in texts if doubled_words(text)] == []
    flagged = [piece for piece in pieces if doubled_words(piece)]
    assert len(flagged) <= len(pieces) / 2000, flagged


def test_natural_documents_are_no_near_loops() -> None:
    texts = [text for text in library_texts() if "test" not in text[:200]]
    assert sum(bool(near_loop(text)) for text in texts) <= len(texts) / 100


def test_phrases_that_come_again_with_small_changes_are_a_near_loop() -> None:
    chance = random.Random(1)
    few = ["the old bridge was measured before sunrise", "a night train carried seven boxes", "we counted every lamp"]
    text = "".join(f"{chance.choice(few)}{chance.choice(['.', ',', ' and'])} " for _ in range(150))
    assert near_loop(text)
    assert judge(text, "", "length", None).outcome == OutcomeClass.LOOP_NEAR
    assert judge(text, "", "length", None, task="long").outcome == OutcomeClass.LOOP_NEAR
    # One that ended by itself is not judged by its style.
    assert judge(text, "", "stop", None).outcome == OutcomeClass.OK
    assert near_loop("") == near_loop("a b") == ""


def test_a_table_at_its_limit_is_a_runaway_and_no_near_loop() -> None:
    words = [f"word{chance}" for chance in random.Random(2).sample(range(10_000), 400)]
    assert judge(" ".join(words), "", "length", None).outcome == OutcomeClass.RUNAWAY


def test_letters_of_scripts_that_nobody_asked_for() -> None:
    latin = ("LATIN", "CJK")
    salad = "The капитал is พารีส in 프랑스 и так"
    assert "cyrillic" in foreign_letters(salad, latin)
    assert judge(salad, "", "stop", None, scripts=latin).outcome == OutcomeClass.GARBAGE
    assert foreign_letters(salad, ()) == ""
    for plain in ("Café in 巴黎, naïve Ægir.", "π is 3.14 and Δ a change", "ＡＢＣ full width", "12 + 30 = 42 👋🏽"):
        assert foreign_letters(plain, latin) == ""
    # A translation that was asked for is no garbage where the prompt names no scripts.
    assert judge("Привет, мир!", "", "stop", None).outcome == OutcomeClass.OK


def test_an_answer_without_what_it_must_hold_is_wrong() -> None:
    def outcome(text: str, *expect: str) -> OutcomeClass:
        return judge(text, "", "stop", None, expect=expect).outcome

    assert outcome("It is Lyon.", "Paris", "巴黎") == OutcomeClass.WRONG
    assert outcome("It is PARIS.", "Paris", "巴黎") == outcome("是巴黎。", "Paris", "巴黎") == OutcomeClass.OK
    assert outcome("It is Lyon.") == OutcomeClass.OK
    # An answer that only the reasoning holds was not given.
    assert judge("It is Lyon.", "Paris", "stop", None, expect=("Paris",)).outcome == OutcomeClass.WRONG


@pytest.mark.parametrize("mark", ["<tool_call>get_weather", "<|im_start|>user", "[TOOL_CALLS]", "<|observation|>"])
def test_marks_that_a_parser_should_have_taken_out(mark: str) -> None:
    assert markup(f"Let me see. {mark}")
    assert judge(f"Let me see. {mark}", "", "stop", None).outcome == OutcomeClass.WRONG
    assert markup("Use a <b>tool</b> | call it [TOOLS]") == ""


def test_garbage_names_what_it_saw() -> None:
    assert "U+FFFD" in garbage("a\ufffd")
    assert "'!' makes up 50 of its last 50" in garbage("!" * 50)
    assert garbage("ordinary text with an é, a tab\tand 中文") == ""
