"""The plan of a degeneration run and the result that its trials allow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from shardwright.errors import ExitCode
from shardwright.probes.client import Api, Request, Sampler
from shardwright.probes.journal import Record
from shardwright.probes.prompts import Prompt
from shardwright.probes.server import Server

Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "FAULT"]

TEMPERATURE = 0.8
TOP_P = 0.9
CONFIDENCE = 0.95
_FIRST_SEED = 1
_EXIT_CODES: Mapping[Verdict, ExitCode] = {
    "PASS": ExitCode.OK,
    "FAIL": ExitCode.DRIFT,
    "INCONCLUSIVE": ExitCode.INCONCLUSIVE,
    "FAULT": ExitCode.HARNESS,
}


@dataclass(frozen=True)
class DegenPlan:
    """What is asked. `deployment` is the digest of what was deployed, empty where it is not known.

    Trial i asks prompt i modulo their number, with the seed of its own index: the same in every run and every arm.
    """

    prompts: tuple[Prompt, ...]
    trials: int
    api: Api
    max_tokens: int
    deployment: str = ""
    temperature: float = TEMPERATURE
    top_p: float = TOP_P

    def prompt(self, index: int) -> Prompt:
        return self.prompts[index % len(self.prompts)]

    def request(self, model: str, index: int) -> Request:
        """The request of trial `index`, counted from 0."""
        sampler = Sampler(self.temperature, self.top_p, seed=_FIRST_SEED + index)
        return Request(model, self.prompt(index).text, self.api, self.max_tokens, sampler)

    def id(self, server: Server) -> str:
        """Names this plan on this boot of this server. The number of trials is not part of it: more may be added."""
        import hashlib
        import json

        content = asdict(replace(self, trials=0)) | {
            "server": [server.endpoint.base_url, server.model, server.version, server.started_at],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Progress:
    """How far a run is. `eta_s` is None until one trial has finished in this run."""

    done: int
    planned: int
    failures: int
    errors: int
    elapsed_s: float
    eta_s: float | None
    last: Record | None


@dataclass(frozen=True)
class DegenResult:
    """The count and what it proves. `trials` are judged ones: those with an answer; `errors` had none."""

    planned: int
    trials: int
    failures: int
    errors: int
    upper_bound: float
    classes: Mapping[str, int]
    per_prompt: Mapping[str, tuple[int, int]]
    """Failures and judged trials by prompt."""
    plan: str
    file: str
    taken_up: int
    """Trials that were on file before this run."""
    elapsed_s: float
    last_error: str | None = None
    examples: tuple[Record, ...] = ()
    """The degenerate trials as they are on file."""

    @property
    def verdict(self) -> Verdict:
        """FAIL on any degenerate trial; PASS only where every planned trial has an answer."""
        if self.failures:
            return "FAIL"
        if not self.trials:
            return "FAULT"
        return "PASS" if self.trials == self.planned else "INCONCLUSIVE"

    @property
    def exit_code(self) -> ExitCode:
        return _EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Plain data. Rates are fractions; `p_value_vs_control` is null without a control arm."""
        return {
            "verdict": self.verdict,
            "trials": self.trials,
            "failures": self.failures,
            "upper_bound": self.upper_bound,
            "classes": dict(self.classes),
            "p_value_vs_control": None,
            "planned": self.planned,
            "errors": self.errors,
            "confidence": CONFIDENCE,
            "per_prompt": {name: {"failures": bad, "trials": n} for name, (bad, n) in self.per_prompt.items()},
            "plan": self.plan,
            "file": self.file,
            "taken_up": self.taken_up,
            "last_error": self.last_error,
            "elapsed_s": round(self.elapsed_s, 3),
        }
