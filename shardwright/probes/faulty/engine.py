"""The faulty server without its sockets: prompts to answers, with a prefix cache, counters and one behaviour."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from shardwright.probes.faulty.asked import Asked, RefusedError
from shardwright.probes.faulty.behaviour import HEALTHY, Behaviour, Situation, Sizes
from shardwright.probes.faulty.brain import answer
from shardwright.probes.faulty.generated import Generated, Scores, cut
from shardwright.probes.faulty.metrics import Metrics
from shardwright.probes.faulty.prose import prose
from shardwright.probes.faulty.script import Script
from shardwright.probes.faulty.tokenizer import Tokenizer, pieces

BLOCK_TOKENS = 16
DRAFT_TOKENS = 3
_FEWEST_LEFT = 1


@dataclass(frozen=True)
class Job:
    """One request in the engine: its prompt as ids, what the cache held of it, and its place among the others."""

    asked: Asked
    prompt_ids: tuple[int, ...]
    situation: Situation


class Engine:
    """Answers requests. `speculative` adds drafts of three tokens, several tokens to a step, and their counters."""

    def __init__(
        self,
        model: str,
        started_at: str,
        *,
        behaviour: Behaviour = HEALTHY,
        seed: int = 1,
        sizes: Sizes | None = None,
        speculative: bool = False,
    ) -> None:
        self.tokenizer = Tokenizer()
        self.metrics = Metrics(model, started_at)
        self.behaviour = behaviour
        self.sizes = sizes or Sizes()
        self.speculative = speculative
        self._seed = seed
        self._blocks: set[int] = set()
        self._number = 0
        self._lock = threading.Lock()

    def begin(self, asked: Asked) -> Job:
        """Take a request in. Raises RefusedError where it cannot be served; after it `end` must be called."""
        ids = self.prompt_ids(asked)
        limit = asked.max_tokens
        if limit is not None and limit < 1:
            raise RefusedError(400, f"max_tokens must be at least 1, got {limit}.")
        if len(ids) + (limit if limit is not None else _FEWEST_LEFT) > self.sizes.max_model_len:
            raise RefusedError(
                400,
                f"This model's maximum context length is {self.sizes.max_model_len} tokens. However, you requested "
                f"{limit or 1} output tokens and your prompt contains {len(ids)} input tokens.",
            )
        with self._lock:
            number = self._number
            self._number += 1
            cached = self._look_up(asked, ids)
        if self.behaviour.resets_counters_at and number and number % self.behaviour.resets_counters_at == 0:
            self.metrics.reset()
        running = self.metrics.enter()
        chance = Random(f"{self._seed} {number} {asked.seed}")
        situation = Situation(asked, len(ids), cached, running, number, chance, self.sizes)
        refusal = self.behaviour.refuses(situation) if self.behaviour.refuses else None
        if refusal is not None:
            self.metrics.leave()
            raise refusal
        self.metrics.add(
            prompt_tokens_total=len(ids), prefix_cache_queries_total=len(ids), prefix_cache_hits_total=cached
        )
        return Job(asked, tuple(ids), situation)

    def end(self, job: Job, finish: str | None) -> None:
        """Let a request go; `finish` None means that its client left."""
        if finish is None and self.behaviour.keeps_aborted:
            return
        self.metrics.leave()
        reason = {"length": "length", None: "abort"}.get(finish, "stop")
        self.metrics.add_labelled("request_success_total", f'finished_reason="{reason}"')

    def prompt_ids(self, asked: Asked) -> list[int]:
        """The prompt as ids, after the chat template."""
        if asked.prompt_ids:
            return list(asked.prompt_ids)
        if not asked.messages:
            return self.tokenizer.encode(asked.prompt)
        tools_text = str(asked.body.get("tools")) if asked.body.get("tools") else ""
        return self.tokenizer.encode_chat(asked.messages, tools_text)

    def choices(self, job: Job) -> list[Generated]:
        """The finished choices of a job, `n` of them."""
        asked = self._with_text(job)
        room = self.sizes.max_model_len - len(job.prompt_ids)
        made = []
        for place in range(int(asked.body.get("n") or 1)):
            one = asked if place == 0 else replace(asked, body={**asked.body, "seed": asked.seed + place})
            script = answer(one)
            if self.behaviour.script is not None:
                script = self.behaviour.script(script, replace(job.situation, asked=one))
            generated = cut(_long_enough(script, one, room), one, room)
            if self.behaviour.generated is not None:
                generated = self.behaviour.generated(generated, job.situation)
            made.append(generated)
        return made

    def steps(self, job: Job, parts: Sequence[str]) -> Iterator[Sequence[str]]:
        """The tokens in groups as the engine makes them, counted as they are made."""
        if not self.speculative:
            for part in parts:
                self.metrics.add(generation_tokens_total=1)
                yield (part,)
            return
        rates = self.acceptance(job, "".join(parts))
        place = 0
        while place < len(parts):
            accepted = 0
            while accepted < DRAFT_TOKENS and job.situation.chance.random() < rates[accepted]:
                accepted += 1
            group = parts[place : place + 1 + accepted]
            self._count_draft(accepted)
            self.metrics.add(generation_tokens_total=len(group))
            yield group
            place += len(group)

    def acceptance(self, job: Job, text: str) -> tuple[float, ...]:
        """Chance of each draft place, given the ones before it; what is copied is foreseen nearly always."""
        if self.behaviour.acceptance is not None:
            return self.behaviour.acceptance
        asked = self._with_text(job)
        if len(text) > 20 and text.strip()[:200] in asked.everything:
            return (0.98, 0.97, 0.96)
        if "{" in text or "def " in text or "return" in text:
            return (0.85, 0.8, 0.75)
        return (0.7, 0.6, 0.5)

    def scores(self, job: Job, position: int) -> Scores:
        """The distribution at one position of prompt or answer."""
        return self.behaviour.scores(job.situation, position) if self.behaviour.scores else Scores(jitter=0.001)

    def _with_text(self, job: Job) -> Asked:
        if job.asked.prompt_ids:
            return replace(job.asked, prompt=self.tokenizer.decode(job.asked.prompt_ids))
        return job.asked

    def _count_draft(self, accepted: int) -> None:
        self.metrics.add(
            spec_decode_num_drafts_total=1,
            spec_decode_num_draft_tokens_total=DRAFT_TOKENS,
            spec_decode_num_accepted_tokens_total=accepted,
        )
        for place in range(DRAFT_TOKENS):
            name = "spec_decode_num_accepted_tokens_per_pos_total"
            self.metrics.add_labelled(name, f'position="{place}"', int(place < accepted))

    def _look_up(self, asked: Asked, ids: Sequence[int]) -> int:
        salt = "" if self.behaviour.ignores_salt else asked.body.get("cache_salt") or ""
        chain = hash(salt)
        cached = 0
        unbroken = asked.body.get("prompt_logprobs") is None
        for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            chain = hash((chain, tuple(ids[start : start + BLOCK_TOKENS])))
            if chain in self._blocks:
                cached += BLOCK_TOKENS if unbroken else 0
            else:
                unbroken = False
                self._blocks.add(chain)
        return min(cached, (len(ids) - 1) // BLOCK_TOKENS * BLOCK_TOKENS)


def _long_enough(script: Script, asked: Asked, room: int) -> Script:
    """Go on past the natural end where the request forbids to end."""
    least = int(asked.body.get("min_tokens") or 0)
    if asked.body.get("ignore_eos"):
        least = room if asked.max_tokens is None else min(room, asked.max_tokens)
    missing = least - len(pieces(script.reasoning)) - len(pieces(script.text))
    if missing <= 0 or script.calls:
        return script
    return replace(script, text=f"{script.text} {prose(asked.question, missing)}")
