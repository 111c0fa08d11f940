"""JSON bodies and events of /v1/responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwright.probes.faulty.engine import Engine, Job
from shardwright.probes.faulty.generated import Generated, call_pieces

Payload = dict[str, Any]


class ResponsePayloads:
    """Builds everything that is sent for one job of the Responses interface."""

    def __init__(self, engine: Engine, job: Job, model: str, created: int) -> None:
        self._engine = engine
        self._job = job
        self._number = job.situation.number
        self._head = {"id": f"resp_{self._number:08x}", "object": "response", "created_at": created, "model": model}

    def whole(self, made: Generated) -> Payload:
        """The answer in one piece."""
        for _ in self._engine.steps(self._job, made.all_pieces):
            pass
        return self._response(made)

    def events(self, made: Generated) -> Iterator[Payload]:
        """The events of a streamed answer, each with its `type` and number."""
        for number, event in enumerate(self._events(made)):
            yield {**event, "sequence_number": number}

    def _events(self, made: Generated) -> Iterator[Payload]:
        begun = {**self._head, "status": "in_progress", "output": []}
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for index, item in enumerate(self._items(made)):
            place = {"output_index": index, "item_id": item["id"]}
            yield {
                "type": "response.output_item.added",
                "output_index": index,
                "item": {**item, "status": "in_progress"},
            }
            if item["type"] == "function_call":
                name = "response.function_call_arguments"
                call = made.calls[index - len(self._items(made)) + len(made.calls)]
                for group in self._engine.steps(self._job, call_pieces(call)[1:]):
                    yield {"type": f"{name}.delta", **place, "delta": "".join(group)}
                yield {"type": f"{name}.done", **place, "name": call.name, "arguments": call.arguments}
            else:
                thought = item["type"] == "reasoning"
                name = "response.reasoning_text" if thought else "response.output_text"
                part = item["content"][0]
                within = {**place, "content_index": 0}
                kind = "reasoning_part" if thought else "content_part"
                yield {"type": f"response.{kind}.added", **within, "part": {**part, "text": ""}}
                for group in self._engine.steps(self._job, made.reasoning if thought else made.text):
                    yield {"type": f"{name}.delta", **within, "delta": "".join(group)}
                yield {"type": f"{name}.done", **within, "text": part["text"]}
                yield {"type": f"response.{kind}.done", **within, "part": part}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": "response.completed", "response": self._response(made)}

    def _response(self, made: Generated) -> Payload:
        prompt, count = len(self._job.prompt_ids), made.tokens
        body: Payload = {**self._head, "output": self._items(made)}
        body["status"] = "incomplete" if made.finish == "length" else "completed"
        body["incomplete_details"] = {"reason": "max_output_tokens"} if made.finish == "length" else None
        body["usage"] = {"input_tokens": prompt, "output_tokens": count, "total_tokens": prompt + count}
        return body

    def _items(self, made: Generated) -> list[Payload]:
        items: list[Payload] = []
        if made.reasoning:
            content = [{"type": "reasoning_text", "text": "".join(made.reasoning)}]
            items.append({"type": "reasoning", "id": self._id("rs"), "summary": [], "content": content})
        if made.text:
            said: Payload = {"type": "output_text", "text": "".join(made.text), "annotations": []}
            message = {"type": "message", "id": self._id("msg"), "role": "assistant", "status": "completed"}
            items.append({**message, "content": [said]})
        for number, call in enumerate(made.calls):
            items.append(
                {
                    "type": "function_call",
                    "id": self._id(f"fc{number}"),
                    "call_id": f"call-{self._number:06x}-{number}",
                    "name": call.name,
                    "arguments": call.arguments,
                    "status": "completed",
                }
            )
        return items

    def _id(self, kind: str) -> str:
        return f"{kind}_{self._number:08x}"
