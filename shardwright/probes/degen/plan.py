"""The plan of a degeneration run: what is asked, how often, at which concurrency, and by which rule it is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from shardwright.probes.client import Api, Request, Sampler
from shardwright.probes.degen.outcomes import Task
from shardwright.probes.degen.prompts import AGENT, LONG, ROTATION, Prompt
from shardwright.probes.server import Server
from shardwright.probes.stats import CurtailedPlan

Rule = Literal["any", "curtailed"]
"""any: one degenerate trial fails, and PASS needs every trial. curtailed: see `CurtailedPlan`."""

TEMPERATURE = 0.8
TOP_P = 0.9
CONFIDENCE = 0.95
LONG_MAX_TOKENS = 8192
BOUNDED_MAX_TOKENS = 1500
_FIRST_SEED = 1
_TASK_TRIALS = 40
_LONG_PROMPT_TOKENS = 512
_ALONE_SHARE = 5
"""Where a plan asks alone and then side by side, one trial in so many is asked alone."""


@dataclass(frozen=True)
class Phase:
    """Trials that are asked together; `concurrency` None leaves it to the caller."""

    task: Task
    keys: tuple[str, ...]
    concurrency: int | None


@dataclass(frozen=True)
class DegenPlan:
    """What is asked. `deployment` is the digest of what was deployed, empty where it is not known.

    Trial i of a task asks prompt i modulo their number, with the seed of its own index: the same in every run and
    every arm. `prompts` and `trials` are those of the short task. With `spread` the first fifth of each task is asked
    alone and the rest at that concurrency, since some faults show only side by side.
    """

    prompts: tuple[Prompt, ...]
    trials: int
    api: Api
    max_tokens: int
    deployment: str = ""
    temperature: float = TEMPERATURE
    top_p: float = TOP_P
    rule: Rule = "any"
    spread: int = 0
    agent_trials: int = 0
    long_trials: int = 0
    long_max_tokens: int = LONG_MAX_TOKENS

    @property
    def planned(self) -> int:
        """All trials."""
        return self.trials + self.agent_trials + self.long_trials

    @property
    def curtailed(self) -> CurtailedPlan:
        """The rule by counts for this number of trials."""
        return CurtailedPlan(trials=self.planned)

    def phases(self) -> list[Phase]:
        """The trials in the order in which they are asked."""
        found = []
        for task, count in self._counts().items():
            keys = tuple(f"{task}-{index:04d}" for index in range(count))
            alone = -(-count // _ALONE_SHARE) if self.spread else 0
            found += [Phase(task, keys[:alone], 1), Phase(task, keys[alone:], self.spread or None)]
        return [phase for phase in found if phase.keys]

    def prompt(self, key: str) -> Prompt:
        """The prompt of a trial."""
        task, index = _parts(key)
        prompts = {"short": self.prompts, "agent": AGENT, "long": LONG}[task]
        return prompts[index % len(prompts)]

    def request(self, model: str, key: str) -> Request:
        """The request of a trial."""
        prompt = self.prompt(key)
        sampler = Sampler(self.temperature, self.top_p, seed=_FIRST_SEED + _parts(key)[1])
        limit = self.long_max_tokens if prompt.task == "long" else self.max_tokens
        return Request(model, prompt.text, self.api, limit, sampler, messages=prompt.messages)

    def method(self) -> str:
        """Names what is asked, whoever is asked: arms of one method can be compared. Counts are not part of it."""
        content = asdict(replace(self, trials=0, agent_trials=0, long_trials=0, deployment="", rule="any", spread=0))
        return _digest(content | {"agent": [asdict(p) for p in AGENT], "long": [asdict(p) for p in LONG]})

    def id(self, server: Server) -> str:
        """Names this plan on this boot of this server. The number of trials is not part of it: more may be added."""
        who = [server.endpoint.base_url, server.model, server.version, server.started_at]
        kind = [task for task, count in self._counts().items() if count]
        return _digest({"method": self.method(), "deployment": self.deployment, "server": who, "tasks": kind})

    def budget(self) -> str:
        """What it costs, in a line."""
        parts = []
        if self.trials:
            parts.append(
                f"{self.trials} trials, {len(self.prompts)} prompts in turn by {self.api}, temperature "
                f"{self.temperature:g}, top_p {self.top_p:g}, at most {self.max_tokens} tokens each"
            )
        if self.agent_trials:
            parts.append(f"{self.agent_trials} agent transcripts, at most {self.max_tokens} tokens each")
        if self.long_trials:
            parts.append(f"{self.long_trials} long texts, at most {self.long_max_tokens} tokens each")
        side = f"; a fifth alone, the rest {self.spread} at a time" if self.spread else ""
        return "; ".join(parts) + side

    def header(self) -> Mapping[str, Any]:
        """The plan as it stands on file: what is needed to judge its trials again."""
        return {
            "method": self.method(),
            "planned": [key for phase in self.phases() for key in phase.keys],
            "rule": self.rule,
            "request": asdict(self),
        }

    def _counts(self) -> dict[Task, int]:
        return {"short": self.trials, "agent": self.agent_trials, "long": self.long_trials}


def short_plan(api: Api = "chat", deployment: str = "", prompts: tuple[Prompt, ...] = ROTATION) -> DegenPlan:
    """200 bounded questions, decided at the fourth failure: what an acceptance asks."""
    return DegenPlan(prompts, 200, api, BOUNDED_MAX_TOKENS, deployment, rule="curtailed", spread=8)


def long_plan(deployment: str = "", max_model_len: int | None = None) -> DegenPlan:
    """40 transcripts and 40 long texts, decided at the fourth failure: what a full acceptance asks beside."""
    plan = DegenPlan((), 0, "chat", BOUNDED_MAX_TOKENS, deployment, rule="curtailed", spread=8)
    return replace(plan, agent_trials=_TASK_TRIALS, long_trials=_TASK_TRIALS, long_max_tokens=long_limit(max_model_len))


def full_plan(plan: DegenPlan, max_model_len: int | None = None) -> DegenPlan:
    """All three tasks, decided at the fourth failure; `plan` gives the short one."""
    limit = long_limit(max_model_len)
    more = replace(plan, agent_trials=_TASK_TRIALS, long_trials=_TASK_TRIALS, long_max_tokens=limit)
    return replace(more, rule="curtailed", spread=8)


def long_limit(max_model_len: int | None) -> int:
    """Where a long text is cut, tokens: 8192, or what a shorter context leaves beside the question."""
    return (
        LONG_MAX_TOKENS if max_model_len is None else max(1, min(LONG_MAX_TOKENS, max_model_len - _LONG_PROMPT_TOKENS))
    )


def _parts(key: str) -> tuple[Task, int]:
    task, _, index = key.rpartition("-")
    return task, int(index)  # type: ignore[return-value]


def _digest(content: Mapping[str, Any]) -> str:
    import hashlib
    import json

    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
