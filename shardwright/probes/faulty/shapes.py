"""JSON of a given schema, filled from the words of a question: tool arguments and structured output."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from shardwright.probes.faulty.asked import Asked

_QUOTED = re.compile(r"[\"'`]([^\"'`]+)[\"'`]")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NAME = re.compile(r"(?<=[a-z,:] )[A-Z][a-z]+\b")


def arguments_for(tool: Mapping[str, Any], question: str) -> list[str]:
    """The arguments of each call of this tool: one, or one per name where its only text is asked for several."""
    schema = tool.get("parameters") or {}
    properties = schema.get("properties") or {}
    texts = [name for name, part in properties.items() if part.get("type") == "string" and "enum" not in part]
    names = _QUOTED.findall(question) or _NAME.findall(question)
    if len(texts) == 1 and len(names) > 1:
        return [json.dumps(_Filler(question, [name]).value(schema), ensure_ascii=False) for name in names]
    return [json.dumps(_Filler(question, names).value(schema), ensure_ascii=False)]


def forced_json(asked: Asked) -> str | None:
    """The text that structured output forces, or None where nothing is forced."""
    form = asked.body.get("response_format") or {}
    structured = asked.body.get("structured_outputs") or {}
    if form.get("type") == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema") or {}
    elif form.get("type") == "json_object":
        schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    elif structured.get("json"):
        schema = structured["json"]
    elif structured.get("choice"):
        options = [str(option) for option in structured["choice"]]
        return next((option for option in options if option.lower() in asked.question.lower()), options[0])
    else:
        return None
    names = _QUOTED.findall(asked.question) or _NAME.findall(asked.question)
    return json.dumps(_Filler(asked.question, names).value(schema), ensure_ascii=False)


class _Filler:
    """Takes numbers and names of the question in their order."""

    def __init__(self, question: str, names: list[str]) -> None:
        self._question = question
        self._names = list(names)
        self._numbers = _NUMBER.findall(question)

    def value(self, schema: Mapping[str, Any]) -> Any:
        if "enum" in schema:
            options = schema["enum"]
            return next((o for o in options if str(o).lower() in self._question.lower()), options[0])
        if "const" in schema:
            return schema["const"]
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            return {name: self.value(part) for name, part in (schema.get("properties") or {}).items()}
        if kind == "array":
            return self._items(schema)
        if kind in ("integer", "number"):
            text = self._numbers.pop(0) if self._numbers else "1"
            return int(float(text)) if kind == "integer" else float(text)
        if kind == "boolean":
            return True
        return self._names.pop(0) if self._names else "Paris"

    def _items(self, schema: Mapping[str, Any]) -> list[Any]:
        items = schema.get("items") or {"type": "string"}
        most = schema.get("maxItems", 10)
        many = len(self._numbers) if items.get("type") in ("integer", "number") else len(self._names)
        return [self.value(items) for _ in range(max(schema.get("minItems", 1), min(many, most)))]
