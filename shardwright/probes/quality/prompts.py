"""What the quality probe asks, and what a server that works answers. Nothing here is drawn at random.

`answer_to` and `calls_for` are the right answers; the bundled faulty server answers with them where it is healthy.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

COUNT = "Count from 1 to 40, separated by commas. Write nothing else."
"""Long, plain and the same at every temperature: what the checks of the engine cut, stream and compare."""

FACT = "What is the capital of France? Reply with the name only."
FACT_ZH = "法国的首都是哪座城市？只回答城市名。"
PRODUCT = "What is 17 times 23? Reply with the number only."
SUM = "Compute 48 + 76 + 59 + 87. Reply with the number only."
REVERSE = 'Write the word "planet" backwards. Reply with the reversed word only.'
SORT = "Sort these numbers from smallest to largest: 83, 12, 47, 5, 91, 36, 68, 24. Reply with the list only."
SORTED = (5, 12, 24, 36, 47, 68, 83, 91)
LINES = "List exactly 7 fruits, one per line, no numbers, no other text."
JSON_FREE = (
    'Reply with one JSON object and nothing else: "name" is the string Ada, "age" is the number 36, '
    '"langs" is the list of the two strings en and fr.'
)
JSON_ANSWER: Mapping[str, Any] = {"name": "Ada", "age": 36, "langs": ["en", "fr"]}

JSON_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "sunny": {"type": "boolean"},
        "level": {"type": "string", "enum": ["low", "middle", "high"]},
    },
    "required": ["unit", "sunny", "level"],
    "additionalProperties": False,
}
"""Every value is one of a few, so that any model that is held to it ends within a few tokens."""
JSON_SCHEMA_PROMPT = "Describe a warm day as JSON with the keys unit, sunny and level."
JSON_SCHEMA_ANSWER: Mapping[str, Any] = {"unit": "celsius", "sunny": True, "level": "high"}

UNICODE = "👩‍👩‍👧‍👦 e\u0301 naïve 中文字符 שלום مرحبا 𝔘𝔫𝔦 🇫🇷 ½"
"""A joined family, a combining mark, ideographs, right-to-left, the astral plane, a flag."""
UNICODE_ECHO = f"Repeat this text exactly, nothing else:\n{UNICODE}"

MEMORY_FIRST, MEMORY_LAST = "MK-4821", "TR-9037"
MEMORY: tuple[tuple[str, str], ...] = (
    (f"Remember: the code is {MEMORY_FIRST} for now. Reply with OK only.", "OK"),
    ("What is 6 plus 7? Reply with the number only.", "13"),
    (f"Forget it: the code is {MEMORY_LAST} from now on. Reply with OK only.", "OK"),
    ("What is the capital of Japan? Reply with the name only.", "Tokyo"),
    ("What color is a clear sky at noon? Reply with one word.", "Blue"),
    ("What is the code now? Reply with the code only.", MEMORY_LAST),
)
"""Six turns; the code of the first is replaced in the third and asked for in the last."""

REASONING = "Anna has 3 boxes with 4 pens each and gives 5 pens away. How many pens are left? End with the number."

ECHO_HEAD = "Repeat these ids exactly, one per line, nothing else:"
ECHO_ID_CHARS = 25
ECHO_IDS = 8
_ECHO_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnpqrstuvwxyz23456789"

WEATHER = "What is the weather in Paris right now, in celsius? Use the tool."
WEATHER_TWICE = "What is the weather in Paris and in Tokyo right now, in celsius? Call the tool once for each city."
TIME = "What is the current time? Use the tool."
BOOKING = (
    "Book a table in the garden for 4 guests, with 2 soups and 3 salads. The wishes are vegan and quiet. Use the tool."
)
TOOL_RESULT = '{"temperature": 31.4, "sky": "clear"}'
TOOL_VALUE = "31.4"


def _tool(name: str, description: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER_TOOL = _tool(
    "get_weather",
    "The weather in a city right now.",
    {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
)
TIME_TOOL = _tool("get_current_time", "The time now. Takes nothing.", {})
BOOKING_TOOL = _tool(
    "book_table",
    "Book a table in a restaurant.",
    {
        "guests": {"type": "integer", "enum": [1, 2, 3, 4, 5, 6]},
        "area": {"type": "string", "enum": ["garden", "hall"]},
        "dishes": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "enum": ["soup", "salad"]},
                    "count": {"type": "integer", "enum": [1, 2, 3, 4]},
                },
                "required": ["name", "count"],
                "additionalProperties": False,
            },
        },
        "wishes": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {"type": "string", "enum": ["vegan", "quiet"]},
        },
    },
)
TOOLS = (WEATHER_TOOL, TIME_TOOL, BOOKING_TOOL)

_PARIS = {"city": "Paris", "unit": "celsius"}
_CALLS: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    WEATHER: (("get_weather", _PARIS),),
    WEATHER_TWICE: (("get_weather", _PARIS), ("get_weather", {"city": "Tokyo", "unit": "celsius"})),
    TIME: (("get_current_time", {}),),
    BOOKING: (
        (
            "book_table",
            {
                "guests": 4,
                "area": "garden",
                "dishes": [{"name": "soup", "count": 2}, {"name": "salad", "count": 3}],
                "wishes": ["vegan", "quiet"],
            },
        ),
    ),
}

_ANSWERS: Mapping[str, str] = {
    COUNT: ", ".join(map(str, range(1, 41))),
    FACT: "Paris",
    FACT_ZH: "巴黎",
    PRODUCT: "391",
    SUM: "270",
    REVERSE: "tenalp",
    SORT: ", ".join(map(str, SORTED)),
    LINES: "apple\npear\nplum\ncherry\nbanana\nmango\ngrape",
    JSON_FREE: json.dumps(JSON_ANSWER),
    JSON_SCHEMA_PROMPT: json.dumps(JSON_SCHEMA_ANSWER),
    UNICODE_ECHO: UNICODE,
    REASONING: "7",
    **dict(MEMORY),
}


def echo_ids(trial: int) -> tuple[str, ...]:
    """The ids of one echo trial: eight of 25 letters and digits, drawn from the trial's own number."""
    source = random.Random(trial)
    return tuple("".join(source.choices(_ECHO_ALPHABET, k=ECHO_ID_CHARS)) for _ in range(ECHO_IDS))


def echo_prompt(ids: tuple[str, ...]) -> str:
    """The prompt that asks for these ids back."""
    return "\n".join((ECHO_HEAD, *ids))


def answer_to(prompt: str) -> str | None:
    """The right answer to a prompt of this probe, as one text; None for any other prompt and for calls of tools."""
    if prompt.startswith(ECHO_HEAD):
        return prompt.removeprefix(ECHO_HEAD).strip()
    return _ANSWERS.get(prompt)


def calls_for(prompt: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Names and arguments of the tools that the right answer calls, in order; empty where it calls none."""
    return _CALLS.get(prompt, ())


def answer_after_tool(content: str) -> str:
    """The right answer once a tool has said `content`: it repeats every value."""
    return f"The tool says {content}"
