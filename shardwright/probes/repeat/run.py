"""The same greedy request again, with other traffic in between: does the server remember what it should not.

A buffer that nobody fills for this request still holds the rows of an earlier one. No reference run is needed to see
it: the answer depends on what was asked before. Prompts are longer than index_topk, since up to there a sparse indexer
keeps every token.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.client import GREEDY, Request, complete
from shardwright.probes.edges import Edges, topk_warning
from shardwright.probes.journal import Journal, Record
from shardwright.probes.pool import Progress, TrialRun, run_trials
from shardwright.probes.repeat.report import ASKS, judge_trial, report_from
from shardwright.probes.report import ProbeReport
from shardwright.probes.score_text import prompt_ids
from shardwright.probes.scores import ask_score, tells_of_nan
from shardwright.probes.server import Server
from shardwright.probes.stored import write_result
from shardwright.probes.wire import TransportError

_TOP = 5
_ANSWER_TOKENS = 32
_PAST_TOPK_TOKENS = 512
_TRAFFIC = 4
_TRAFFIC_TOKENS = 16
_TRAFFIC_SEED = 1_000_003
_DEFAULT_LENGTHS = (3072, 1536, 512)
"""The longest first: where nobody says what index_topk is, a quick run still reaches past the usual 2048."""


@dataclass(frozen=True)
class RepeatPlan:
    """Prompt i has `lengths[i]` tokens; it is asked, then other traffic, then three times in a row."""

    lengths: tuple[int, ...]
    traffic_lengths: tuple[int, ...]
    index_topk: int | None = None
    answer_tokens: int = _ANSWER_TOKENS
    top: int = _TOP
    seed: int = 1
    deployment: str = ""

    def keys(self) -> tuple[str, ...]:
        """Trials by name: p0, p1, …"""
        return tuple(f"p{number}" for number in range(len(self.lengths)))

    def warning(self) -> str | None:
        """Why these prompts cannot show a fault of a sparse indexer, where that is so."""
        return topk_warning("repeat", self.lengths, self.index_topk)

    def budget(self) -> str:
        """Requests and tokens, in a line."""
        asks = len(ASKS) * len(self.lengths)
        traffic = len(self.lengths) * len(self.traffic_lengths)
        tokens = len(ASKS) * sum(self.lengths) + len(self.lengths) * sum(self.traffic_lengths)
        return (
            f"repeat: {asks} requests for {len(self.lengths)} prompts, {traffic} requests of other traffic, "
            f"{tokens} prompt tokens, {asks * self.answer_tokens + traffic * _TRAFFIC_TOKENS} tokens of answers"
        )

    def method(self) -> str:
        """Names what is asked, whoever is asked: two boots are compared only where it is the same."""
        return _digest(asdict(replace(self, deployment="")) | {"sampler": GREEDY.fields()})

    def id(self, server: Server) -> str:
        """Names this plan on this boot of this server."""
        return _digest(asdict(self) | {"server": server.record()})


def quick_plan(edges: Edges, *, deployment: str = "") -> RepeatPlan:
    """Two prompts past index_topk, or two of usual lengths."""
    return _plan(edges, 2, deployment)


def full_plan(edges: Edges, *, deployment: str = "") -> RepeatPlan:
    """Eight prompts of rising lengths."""
    return _plan(edges, 8, deployment)


def run_repeat(
    server: Server,
    plan: RepeatPlan,
    journal: Journal,
    *,
    concurrency: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> ProbeReport:
    """Ask every prompt four times and judge each group. Prompts go one at a time; `concurrency` is that of the traffic.

    Raises TransportError where the server cannot be reached, DeployError (exit 3) where it has no tokenizer or gives
    no logprobs.
    """
    if not server.capabilities.logprobs:
        raise DeployError(
            f"{server.endpoint.base_url} gives no logprobs",
            why="without them a repeated answer can differ by rounding alone, and nobody could tell",
            fix="ask the vLLM server itself",
            code=ExitCode.INCONCLUSIVE,
        )
    plan_id = plan.id(server)
    keys = plan.keys()
    header: Record = {
        "server": server.record(),
        "request": asdict(plan),
        "method": plan.method(),
        "planned": list(keys),
        "prompt_logprobs": server.capabilities.prompt_logprobs,
    }
    run = TrialRun(
        journal, "repeat", plan_id, keys, is_failure=lambda r: r["class"] == "CHANGED", on_progress=on_progress
    )
    run.work(lambda key: _trial(server, plan, keys.index(key), max(concurrency, _TRAFFIC)), 1, header=header)
    kept = [*run.records.values(), *run.errors]
    records: list[Record] = [*journal.records, {"kind": "plan", "probe": "repeat", "plan": plan_id, **header}, *kept]
    report = report_from(records, plan_id, str(journal.path))
    write_result(journal, report, len(keys))
    return report


def _trial(server: Server, plan: RepeatPlan, number: int, at_a_time: int) -> Record:
    ids = prompt_ids(server, number, plan.lengths[number], plan.seed)
    nonce = secrets.token_hex(6)
    record: Record = {
        "prompt_ids_sha256": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
        "prompt_tokens": len(ids),
        "index_topk": plan.index_topk,
    }
    asks: list[Record] = []
    try:
        for name in ASKS:
            if name == "after":
                _traffic(server, plan, number, at_a_time)
            salt = f"repeat-{nonce}-{name}"
            score = ask_score(
                server,
                ids,
                top=plan.top,
                answer_tokens=plan.answer_tokens,
                prompt_logprobs=server.capabilities.prompt_logprobs,
                cache_salt=salt,
            )
            asks.append({"ask": name, **score.fields(with_top=False)})
    except TransportError as error:
        if not tells_of_nan(error):
            raise
        record["error"] = {"kind": error.kind, "detail": error.detail, "nan": True}
    record["asks"] = asks
    judged = judge_trial(record)
    return record | {"class": judged.outcome, "detail": judged.detail}


def _traffic(server: Server, plan: RepeatPlan, number: int, at_a_time: int) -> None:
    """Other prompts, shorter and longer ones, a few at a time. Raises TransportError where one fails."""

    def ask(place: int) -> Record:
        text_number = _TRAFFIC_SEED + number * len(plan.traffic_lengths) + place
        ids = prompt_ids(server, text_number, plan.traffic_lengths[place], plan.seed)
        extensions = server.capabilities.extensions
        complete(
            server.endpoint,
            Request(server.model, "", "completions", _TRAFFIC_TOKENS, GREEDY, extensions=extensions, prompt_ids=ids),
        )
        return {"class": "OK"}

    run_trials(range(len(plan.traffic_lengths)), ask, at_a_time, lambda *_: None)


def _plan(edges: Edges, count: int, deployment: str) -> RepeatPlan:
    longest = edges.longest_prompt(_ANSWER_TOKENS)
    topk = edges.index_topk
    steps: Sequence[int] = _DEFAULT_LENGTHS if topk is None else (topk + _PAST_TOPK_TOKENS, 2 * topk, 3 * topk)
    lengths = tuple(min(longest, steps[number % len(steps)]) for number in range(count))
    beyond = max(lengths)
    traffic = tuple(min(longest, tokens) for tokens in (64, beyond // 2, beyond + 256, beyond + beyond // 2))
    return RepeatPlan(lengths, traffic, index_topk=topk, deployment=deployment)


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
