"""What each model or engine fault does to an answer. Functions of one answer and its situation."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from shardwright.probes.faulty.asked import RefusedError
from shardwright.probes.faulty.behaviour import Event, Situation
from shardwright.probes.faulty.generated import Generated, Scores
from shardwright.probes.faulty.prose import prose, salad, sentence
from shardwright.probes.faulty.script import Script
from shardwright.probes.needle.text import answer_to as needle_answer

Change = Callable[[Script, Situation], Script]
_CODE = re.compile(r"(?:access code for|magic number of) (\S+) is (\d+)")
_LOOP = " and that is all there is to it,"
_LONG_WORDS = 400
_ENDLESS_WORDS = 3000


def asks_for_code(situation: Situation) -> bool:
    """Whether this is a needle question."""
    return needle_answer(situation.asked.everything) is not None


def sometimes(rate: float, change: Change) -> Change:
    """`change` in that share of the answers."""
    return lambda script, s: change(script, s) if s.chance.random() < rate else script


def when(condition: Callable[[Situation], bool], change: Change) -> Change:
    """`change` where the condition holds."""
    return lambda script, s: change(script, s) if condition(s) else script


def loop(script: Script, _: Situation) -> Script:
    """Right at first, then the same words without end."""
    return replace(script, text=f"{script.text}{_LOOP * (_ENDLESS_WORDS // 4)}", calls=())


def near_loop(script: Script, s: Situation) -> Script:
    """The same few sentences without end, each time a little different, so that no exact period shows."""
    few = [sentence(s.chance) for _ in range(3)]
    words = [few[s.chance.randrange(3)].replace(" the ", f" the {s.chance.randrange(100)} ") for _ in range(400)]
    return replace(script, text=f"{script.text} {' '.join(words)}", calls=())


def run_on(script: Script, s: Situation) -> Script:
    """Right at first, then other text without end."""
    return replace(script, text=f"{script.text} {prose(f'{s.asked.seed} on', _ENDLESS_WORDS)}", calls=())


def one_character(script: Script, _: Situation) -> Script:
    """What NaN in the logits looks like: token 0 without end."""
    return replace(script, text="!" * 4 * _ENDLESS_WORDS, calls=())


def marks(script: Script, _: Situation) -> Script:
    """The same, but it ends."""
    return replace(script, text="!" * 240, calls=())


def broken_bytes(script: Script, s: Situation) -> Script:
    text = "".join("\ufffd" if s.chance.random() < 0.2 else char for char in script.text)
    return replace(script, text=f"\ufffd{text}")


def word_salad(script: Script, s: Situation) -> Script:
    """As many words as before, in no order."""
    return replace(script, text=salad(f"{s.asked.seed} {s.number}", max(12, script.text.count(" ") + 1)), calls=())


def endless_salad(script: Script, s: Situation) -> Script:
    return replace(script, text=salad(f"{s.asked.seed} {s.number}", _ENDLESS_WORDS), calls=())


def same_word(script: Script, _: Situation) -> Script:
    return replace(script, text="for" + " for" * 400, calls=())


def doubled_words(script: Script, _: Situation) -> Script:
    """Every second word twice and marks doubled: columns cut off at a pipeline boundary."""
    words = re.findall(r"\S+\s*", script.text)
    text = "".join(word + (word if place % 2 else "") for place, word in enumerate(words))
    return replace(script, text=re.sub(r"([.!?])", r"\1\1", text))


def loop_when_long(script: Script, s: Situation) -> Script:
    """Loops only after some hundred words, so that no short answer shows it."""
    words = re.findall(r"\S+\s*", script.text)
    if len(words) <= _LONG_WORDS or s.chance.random() > 0.55:
        return script
    return loop(replace(script, text="".join(words[:_LONG_WORDS])), s)


def no_code(script: Script, s: Situation) -> Script:
    """The needle is not found."""
    return replace(script, text="There is no such code in the text.") if asks_for_code(s) else script


def other_code(script: Script, s: Situation) -> Script:
    """Another needle is found."""
    others = [code for _, code in _CODE.findall(s.asked.everything) if code not in script.text]
    if not asks_for_code(s) or not others:
        return script
    return replace(script, text=others[0])


def invented_code(script: Script, s: Situation) -> Script:
    """A fluent answer that stands nowhere in the text."""
    return replace(script, text=str(s.chance.randrange(1_000_000, 10_000_000))) if asks_for_code(s) else script


def last_digit(script: Script, s: Situation) -> Script:
    """The last digit is off by one."""
    if not asks_for_code(s) or not script.text[-1:].isdigit():
        return script
    return replace(script, text=f"{script.text[:-1]}{(int(script.text[-1]) + 1) % 10}")


def drop_characters(script: Script, s: Situation) -> Script:
    """One character in a copied id is lost, more often the more requests run."""
    lines = script.text.split("\n")
    if len(lines) < 2:
        return script
    rate = min(0.5, 0.02 * s.running)
    cut = [line[: len(line) // 2] + line[len(line) // 2 + 1 :] if s.chance.random() < rate else line for line in lines]
    return replace(script, text="\n".join(cut))


def wrong_numbers(script: Script, s: Situation) -> Script:
    """Numbers are wrong, and what holds none does not end."""
    if not re.search(r"\d", script.text):
        return run_on(script, s)
    return replace(script, text=re.sub(r"\d", lambda digit: str((int(digit.group()) + 3) % 10), script.text))


def other_way(script: Script, s: Situation) -> Script:
    """The same request, another answer."""
    return replace(script, text=f"{sentence(s.chance)} {script.text}")


def all_reasoning(script: Script, _: Situation) -> Script:
    return replace(script, text="", reasoning=f"{script.reasoning} {script.text}".strip())


def thoughts_in_text(script: Script, _: Situation) -> Script:
    thought = script.reasoning or "Let me see."
    return replace(script, reasoning="", text=f"<think>{thought}</think>{script.text}")


def markup_in_text(script: Script, _: Situation) -> Script:
    """The tool parser leaves the call in the text."""
    if not script.calls:
        return script
    return Script("".join(f"<tool_call>{c.name}{c.arguments}</tool_call>" for c in script.calls), script.reasoning)


def no_calls(script: Script, _: Situation) -> Script:
    """The call is lost and nothing takes its place."""
    return replace(script, calls=()) if script.calls else script


def hide_length(generated: Generated, _: Situation) -> Generated:
    """A call that was cut off at max_tokens is reported as complete."""
    return replace(generated, finish="tool_calls") if generated.calls else generated


def no_finish(generated: Generated, _: Situation) -> Generated:
    return replace(generated, finish=None)


def past_index(s: Situation) -> bool:
    """Longer than the sparse index keeps."""
    return s.prompt_tokens > s.sizes.index_topk


def past_deep(s: Situation) -> bool:
    return s.prompt_tokens > s.sizes.deep


def unstable_past_index(s: Situation, position: int) -> Scores:
    """Beyond index_topk the buffer holds what an earlier request left there."""
    return Scores(skew=s.number + 1) if position >= s.sizes.index_topk else Scores(jitter=0.001)


def another_model(_: Situation, __: int) -> Scores:
    return Scores(skew=1)


def lose_last_brace(events: list[Event], _: Situation) -> list[Event]:
    """The last piece of streamed tool arguments never comes."""
    for event in reversed(events):
        for choice in event.get("choices") or ():
            calls = (choice.get("delta") or {}).get("tool_calls")
            if calls:
                calls[0]["function"]["arguments"] = calls[0]["function"]["arguments"][:-1]
                return events
    return events


def split_characters(events: list[Event], _: Situation) -> list[Event]:
    """Characters of several bytes are streamed before they are whole."""
    for event in events:
        for choice in event.get("choices") or ():
            part = choice.get("delta") if isinstance(choice.get("delta"), dict) else choice
            for name in ("content", "text"):
                text = part.get(name)
                if isinstance(text, str) and not text.isascii():
                    part[name] = "".join(char if char.isascii() else "\ufffd\ufffd" for char in text)
    return events


def wrong_usage(event: Event) -> Event:
    """One token more than were made."""
    if event.get("usage"):
        event["usage"] = {**event["usage"], "completion_tokens": event["usage"]["completion_tokens"] + 1}
    return event


def refuse(
    status: int, message: str, condition: Callable[[Situation], bool]
) -> Callable[[Situation], RefusedError | None]:
    """Refuse the requests that meet the condition."""
    return lambda s: RefusedError(status, message) if condition(s) else None


def brings_tool_result(s: Situation) -> bool:
    """The second turn of a tool round trip over the Responses interface."""
    return s.asked.api == "responses" and any(message.get("role") == "tool" for message in s.asked.messages)
