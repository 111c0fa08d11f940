"""JSON bodies and events of /v1/completions and /v1/chat/completions, as vLLM shapes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from shardwright.probes.faulty.engine import Engine, Job
from shardwright.probes.faulty.generated import Generated, call_pieces
from shardwright.probes.faulty.tokenizer import VOCABULARY

Payload = dict[str, Any]


class Payloads:
    """Builds everything that is sent for one job."""

    def __init__(self, engine: Engine, job: Job, model: str, created: int) -> None:
        self._engine = engine
        self._job = job
        self._asked = job.asked
        self._chat = job.asked.api == "chat"
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{job.situation.number:08x}",
            "created": created,
            "model": model,
        }
        self._noise = Random(job.situation.chance.random())

    def whole(self, choices: Sequence[Generated]) -> Payload:
        """The answer in one piece."""
        body: Payload = {**self._head, "object": "chat.completion" if self._chat else "text_completion"}
        body["choices"] = [self._choice(place, made) for place, made in enumerate(choices)]
        body["usage"] = self.usage(choices)
        if self._chat:
            body["prompt_logprobs"] = self._prompt_logprobs()
            if self._gives_ids:
                body["prompt_token_ids"] = list(self._job.prompt_ids)
        return body

    def events(self, choices: Sequence[Generated]) -> Iterator[Payload]:
        """The events of a streamed answer but for `[DONE]`."""
        for place, made in enumerate(choices):
            if self._chat:
                opening = self._event(place, {"delta": {"role": "assistant", "content": ""}})
                if self._gives_ids:
                    opening["prompt_token_ids"] = list(self._job.prompt_ids)
                yield opening
            yield from self._parts(place, made)
            end: Payload = {"delta": {}} if self._chat else {"text": ""}
            yield self._event(place, {**end, "finish_reason": made.finish, "stop_reason": made.stop_reason})
        if (self._asked.body.get("stream_options") or {}).get("include_usage"):
            yield {**self._named(), "choices": [], "usage": self.usage(choices)}

    def usage(self, choices: Sequence[Generated]) -> Payload:
        prompt, made = len(self._job.prompt_ids), sum(choice.tokens for choice in choices)
        cached = self._job.situation.cached_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    @property
    def _gives_ids(self) -> bool:
        return bool(self._asked.body.get("return_token_ids"))

    def _named(self) -> Payload:
        return {**self._head, "object": "chat.completion.chunk" if self._chat else "text_completion"}

    def _event(self, place: int, content: Payload) -> Payload:
        choice = {"index": place, "logprobs": None, "finish_reason": None, **content}
        return {**self._named(), "choices": [choice]}

    def _parts(self, place: int, made: Generated) -> Iterator[Payload]:
        position = 0
        for name, parts in (("reasoning", made.reasoning), ("content", made.text)):
            for group in self._engine.steps(self._job, parts):
                text = "".join(group)
                content: Payload = {"delta": {name: text}} if self._chat else {"text": text}
                yield self._event(place, content | self._extras(made, position, group))
                position += len(group)
        for number, call in enumerate(made.calls):
            named = False
            for group in self._engine.steps(self._job, call_pieces(call)):
                piece: Payload = {"index": number, "function": {"arguments": "".join(group)}}
                if not named:
                    function = {"name": call.name, "arguments": "".join(group[1:])}
                    piece = {"index": number, "id": self._call_id(number), "type": "function", "function": function}
                    named = True
                yield self._event(place, {"delta": {"tool_calls": [piece]}} | self._extras(made, position, group))
                position += len(group)

    def _extras(self, made: Generated, position: int, group: Sequence[str]) -> Payload:
        extras: Payload = {}
        if self._gives_ids:
            extras["token_ids"] = self._engine.tokenizer.ids(group)
        if self._asked.body.get("logprobs"):
            extras["logprobs"] = self._logprobs(made, position, len(group))
        return extras

    def _choice(self, place: int, made: Generated) -> Payload:
        for _ in self._engine.steps(self._job, made.all_pieces):
            pass
        choice: Payload = {
            "index": place,
            "finish_reason": made.finish,
            "stop_reason": made.stop_reason,
            "logprobs": None,
        }
        text, reasoning = "".join(made.text), "".join(made.reasoning)
        if self._chat:
            message: Payload = {"role": "assistant", "content": text or None, "reasoning": reasoning or None}
            message["tool_calls"] = [
                {
                    "id": self._call_id(number),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for number, call in enumerate(made.calls)
            ]
            choice["message"] = message
        else:
            choice["text"] = (self._asked.prompt if self._asked.body.get("echo") else "") + reasoning + text
            choice["prompt_logprobs"] = self._prompt_logprobs()
            if self._gives_ids:
                choice["prompt_token_ids"] = list(self._job.prompt_ids)
        if self._gives_ids:
            choice["token_ids"] = self._engine.tokenizer.ids(made.all_pieces)
        if self._asked.body.get("logprobs"):
            choice["logprobs"] = self._logprobs(made, 0, made.tokens)
        return choice

    def _call_id(self, number: int) -> str:
        return f"call-{self._job.situation.number:06x}-{number}"

    def _logprobs(self, made: Generated, start: int, count: int) -> Payload:
        ids = self._engine.tokenizer.ids(made.all_pieces)
        top = int(self._asked.body.get("top_logprobs") or 0) if self._chat else int(self._asked.body["logprobs"])
        rows = []
        for place in range(start, start + count):
            before = (*self._job.prompt_ids, *ids)[: len(self._job.prompt_ids) + place][-2:]
            scores = self._engine.scores(self._job, len(self._job.prompt_ids) + place)
            rows.append(scores.at(tuple(before), ids[place], top, chosen=True, noise=self._noise.gauss(0, 1)))
        if self._chat:
            return {"content": [self._chat_row(row) for row in rows]}
        return {
            "tokens": [self._shown(row[0][0]) for row in rows],
            "token_logprobs": [row[0][1] for row in rows],
            "top_logprobs": [{self._shown(token): logprob for token, logprob, _ in row[1:]} for row in rows],
            "text_offset": [0] * len(rows),
        }

    def _chat_row(self, row: list[tuple[int, float, int]]) -> Payload:
        shown = [
            {"token": self._shown(token), "logprob": logprob, "bytes": list(self._shown(token).encode())}
            for token, logprob, _ in row
        ]
        return {**shown[0], "top_logprobs": shown[1:]}

    def _shown(self, token: int) -> str:
        if self._asked.body.get("return_tokens_as_token_ids"):
            return f"token_id:{token}"
        return self._engine.tokenizer.decode([token])

    def _prompt_logprobs(self) -> list[Payload | None] | None:
        top = self._asked.body.get("prompt_logprobs")
        if top is None:
            return None
        ids = self._job.prompt_ids
        rows: list[Payload | None] = [None]
        for place in range(1, len(ids)):
            scores = self._engine.scores(self._job, place)
            found = scores.at(
                tuple(ids[max(0, place - 2) : place]), ids[place], int(top), chosen=False, noise=self._noise.gauss(0, 1)
            )
            rows.append(
                {
                    str(token): {"logprob": logprob, "rank": rank, "decoded_token": self._shown(token % VOCABULARY)}
                    for token, logprob, rank in reversed(found)
                }
            )
        return rows
