"""A small reversible tokenizer: pieces of text, ids from a checksum, three extra tokens around each chat message."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

VOCABULARY = 2**31 - 1
"""So many that pieces hardly ever meet: what was asked before must not change the ids of a prompt."""
_PIECE = re.compile(r"\s?\w{1,6}|\s?[^\w\s]|\s")
_OPEN, _ROLE_END, _CLOSE = "<|open|>", "<|text|>", "<|close|>"


def pieces(text: str) -> list[str]:
    """The pieces of `text`; joined they give it back."""
    return _PIECE.findall(text)


class Tokenizer:
    """Ids are a checksum, so two servers agree; of two pieces that meet, the later one is a whole vocabulary higher."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: dict[int, str] = {}
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        return self.ids(pieces(text))

    def ids(self, parts: Iterable[str]) -> list[int]:
        """One id per piece."""
        known = self._ids
        return [known[part] if part in known else self._add(part) for part in parts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids that this tokenizer gave out; others are shown by number."""
        return "".join(self._pieces.get(token, f" #{token}") for token in ids)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools_text: str = "", *, ask: bool = True
    ) -> list[int]:
        """Ids after the chat template: open, role and close around each text; `ask` opens the answer."""
        parts: list[str] = []
        if tools_text:
            parts += [_OPEN, _ROLE_END, *pieces(tools_text), _CLOSE]
        for message in messages:
            parts += [_OPEN, _ROLE_END, *pieces(message_text(message)), _CLOSE]
        if ask:
            parts += [_OPEN, _ROLE_END]
        return self.ids(parts)

    def _add(self, part: str) -> int:
        with self._lock:
            token = self._ids.get(part)
            if token is None:
                token = zlib.crc32(part.encode("utf-8", "surrogatepass")) % VOCABULARY
                while token in self._pieces:
                    token += VOCABULARY
                self._pieces[token] = part
                self._ids[part] = token
            return token


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a chat message with its role, its parts joined and its calls written out."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    calls = "".join(
        f" {call.get('function', {}).get('name', '')} {call.get('function', {}).get('arguments', '')}"
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict)
    )
    return f"{message.get('role', '')}: {content or ''}{calls}"
