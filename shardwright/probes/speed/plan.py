"""What the speed probe measures: how many streams, which prompts, how often, and the limits that it judges by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from shardwright.layout.speed import SpeedSettings
from shardwright.probes.client import GREEDY, Api, Request, Sampler
from shardwright.probes.server import Server
from shardwright.probes.speed.prompts import KINDS, prompt_of

SAMPLERS: Mapping[str, Sampler] = {"greedy": GREEDY, "sampled": Sampler(temperature=0.8, top_p=0.9, seed=1)}
MANY = "narrative"
"""What several streams at a time are asked, each its own variant."""


@dataclass(frozen=True)
class Key:
    """One planned trial, and its name on file."""

    test: Literal["decode", "prefill", "self-check"]
    concurrency: int = 1
    prompt: str = ""
    sampler: str = "greedy"
    tokens: int = 0
    """Prompt tokens aimed at, for prefill."""
    round: int = 0

    @property
    def name(self) -> str:
        if self.test == "decode":
            return f"decode/{self.prompt}/{self.sampler}/c{self.concurrency}/r{self.round}"
        if self.test == "prefill":
            return f"prefill/n{self.tokens}/r{self.round}"
        return f"self-check/c{self.concurrency}"


@dataclass(frozen=True)
class SpeedPlan:
    """What is asked. `deployment` is the digest of what was deployed, empty where it is not known.

    `settle_share` is how near two medians in a row must be for the warm-up to end, as a fraction.
    """

    concurrencies: tuple[int, ...]
    rounds: int
    max_tokens: int
    samplers: tuple[str, ...]
    prefill_tokens: tuple[int, ...]
    prefill_rounds: int
    prompts: tuple[str, ...] = KINDS
    warm_up_least: int = 3
    warm_up_most: int = 8
    settle_share: float = 0.02
    api: Api = "chat"
    deployment: str = ""

    def trials(self, max_model_len: int | None) -> list[Key]:
        """All trials in their order. Prefill lengths that do not fit the server are left out."""
        keys = []
        for level in self.concurrencies:
            kinds = self.prompts if level == 1 else (MANY,)
            samplers = self.samplers if level == 1 else self.samplers[:1]
            keys += [
                Key("decode", level, kind, sampler, round=number)
                for sampler in samplers
                for kind in kinds
                for number in range(self.rounds)
            ]
            keys.append(Key("self-check", level))
        for tokens in self.prefill_tokens:
            if max_model_len is None or tokens < max_model_len:
                keys += [Key("prefill", tokens=tokens, round=number) for number in range(self.prefill_rounds)]
        return keys

    def requests(self, key: Key, server: Server, salt: str) -> list[Request]:
        """The streams of one decode round: a fixed number of tokens each, and a cache key of their own."""
        fixed: dict[str, Any] = {"ignore_eos": True, "min_tokens": self.max_tokens, "cache_salt": salt}
        return [
            Request(
                server.model,
                prompt_of(key.prompt, variant),
                self.api,
                self.max_tokens,
                SAMPLERS[key.sampler],
                server.capabilities.extensions,
                fields=fixed if server.capabilities.extensions else {},
            )
            for variant in range(key.concurrency)
        ]

    def spec(self) -> str:
        """Names what is measured, apart from server and deployment: only equal ones may be compared."""
        import hashlib
        import json

        names = ("max_tokens", "api", "prompts")
        content = {name: getattr(self, name) for name in names}
        content["texts"] = [prompt_of(kind, 0) for kind in self.prompts]
        content["samplers"] = {name: asdict(sampler) for name, sampler in SAMPLERS.items()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def budget(self) -> str:
        """What it costs, for the reader."""
        levels = [(1, self.rounds * len(self.prompts) * len(self.samplers))]
        levels += [(level, self.rounds) for level in self.concurrencies if level > 1]
        streams = sum(level * (rounds + self.warm_up_least) for level, rounds in levels if level in self.concurrencies)
        prefill = self.prefill_rounds * sum(self.prefill_tokens)
        return (
            f"{streams} streams of {self.max_tokens} tokens or more, {', '.join(map(str, self.concurrencies))} at a "
            f"time, warm-up included; prefill of at most {prefill} tokens"
        )

    def id(self, server: Server) -> str:
        """Names this plan on this boot of this server."""
        import hashlib
        import json

        content = {field.name: getattr(self, field.name) for field in fields(self)} | {
            "server": server.record(),
            "spec": self.spec(),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def quick(*, api: Api = "chat", deployment: str = "") -> SpeedPlan:
    """One stream and four, three rounds of 128 tokens, one prefill length."""
    return SpeedPlan((1, 4), 3, 128, ("greedy",), (2048,), 2, api=api, deployment=deployment)


def default(*, api: Api = "chat", deployment: str = "") -> SpeedPlan:
    """1, 4, 8 and 16 streams, five rounds of 256 tokens, prefill to 8k."""
    return SpeedPlan((1, 4, 8, 16), 5, 256, ("greedy",), (2048, 8192), 3, api=api, deployment=deployment)


def full(*, api: Api = "chat", deployment: str = "") -> SpeedPlan:
    """As the default, nine rounds, also at an ordinary sampler, and prefill to 128k."""
    lengths = (8192, 32_768, 131_072)
    return SpeedPlan((1, 4, 8, 16), 9, 256, ("greedy", "sampled"), lengths, 3, api=api, deployment=deployment)


def as_declared(plan: SpeedPlan, settings: SpeedSettings) -> SpeedPlan:
    """The plan with what a layout declares of its host in place of the mode's own."""
    declared: dict[str, Any] = {
        "concurrencies": settings.streams,
        "rounds": settings.rounds,
        "max_tokens": settings.max_tokens,
        "settle_share": settings.scatter,
    }
    return replace(plan, **{name: value for name, value in declared.items() if value is not None})
