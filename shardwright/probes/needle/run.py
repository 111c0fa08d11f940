"""Needle in a haystack: can the server find one fact in a text of an exact length, cold and from its cache.

Every text is made for its cell, so that no two share a prefix, and depends on nothing but the cell and the tokenizer:
two servers of one model are asked the same.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from typing import Any

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.client import GREEDY, Request, stream
from shardwright.probes.journal import Journal, Record
from shardwright.probes.metrics import PREFIX_HITS, delta, read_metrics
from shardwright.probes.needle.judge import NeedleClass, judge_trial
from shardwright.probes.needle.plan import Cell, NeedlePlan, Trial
from shardwright.probes.needle.report import report_from
from shardwright.probes.needle.size import fit_prompt
from shardwright.probes.needle.text import WORDINGS, Needle, draw_needle, pad_words, place_facts, sentences
from shardwright.probes.pool import Progress, TrialRun
from shardwright.probes.report import ProbeReport
from shardwright.probes.server import Server
from shardwright.probes.stored import write_result
from shardwright.probes.tokens import count_tokens, no_tokenizer
from shardwright.probes.wire import Endpoint, TransportError, get

REASKS = 2
_DECOYS, _FEW_DECOYS, _SHORT_TOKENS = 4, 1, 400
_SPARE_TOKENS = 8
_SLOWER = 3
_MOST_STALLS = 3
"""Each costs minutes of waiting, and one more would say nothing new."""
_THINKING_FIELDS = ("enable_thinking", "thinking")
"""Names that chat templates give the switch; a template passes over the one it does not know."""


@dataclass(frozen=True)
class Haystack:
    """The finished text of one cell."""

    text: str
    needle: Needle
    tokenize_calls: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def run_needle(
    server: Server,
    plan: NeedlePlan,
    journal: Journal,
    *,
    concurrency: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> ProbeReport:
    """Ask what is not on file yet, one at a time, then the concurrent cells; `concurrency` raises that pass only.

    Raises TransportError where the server cannot be reached, and DeployError where it has no tokenizer (exit 3), where
    no prompt of a wanted length can be made (exit 4), or where the file cannot be written.
    """
    if not server.capabilities.tokenize:
        raise no_tokenizer(server.endpoint)
    plan_id = plan.id(server)
    asker = _Asker(server, plan)
    dropped = asker.too_short()
    one_by_one = {trial.key: trial for trial in plan.trials() if trial.cell.length not in dropped}
    together = {trial.key: trial for trial in plan.concurrent_trials() if trial.cell.length not in dropped}
    if not one_by_one:
        raise DeployError(
            f"no length is long enough: the question alone needs {asker.floor_tokens} tokens",
            fix=f"ask for a length of at least {asker.floor_tokens + _SPARE_TOKENS}",
            code=ExitCode.USAGE,
        )
    planned = [*one_by_one, *together]
    header = {
        "server": server.record(),
        "request": asdict(plan),
        "planned": planned,
        "dropped": dropped,
        "index_topk": plan.edges.index_topk,
    }

    records: list[Record] = [*journal.records, {"kind": "plan", "plan": plan_id, **header}]

    def work(trials: Mapping[str, Trial], at_a_time: int) -> bool:
        """Ask; False where the run ended early."""
        run = TrialRun(journal, "needle", plan_id, list(trials), is_failure=_is_lost, on_progress=on_progress)
        run.work(
            lambda key: asker.ask(trials[key]), at_a_time, header=header, enough=lambda: _stalls(run) >= _MOST_STALLS
        )
        records.extend([*run.records.values(), *run.errors])
        return len(run.records) + len(run.errors) == len(trials)

    if work(one_by_one, 1) and together:
        work(together, max(concurrency, len(together)))
    report = report_from(records, plan_id, str(journal.path))
    write_result(journal, report, len(planned))
    return report


def build_text(plan: NeedlePlan, cell: Cell, needle: Needle, sentence_count: int, pads: int) -> str:
    """The user's whole message (chat) or prompt (completions)."""
    wording = WORDINGS[plan.wording]
    seed = _seed(cell)
    haystack = list(islice(sentences(wording, seed), sentence_count))
    body = pad_words(seed, pads) + "".join(place_facts(haystack, wording, needle, cell.depth, seed))
    question = wording.question.format(key=needle.key)
    if plan.api == "completions":
        return f"{body}\n\nQuestion: {question}\nAnswer:"
    return f"{body}{wording.separator}{question}"


class _Asker:
    """Makes prompts and asks them; for one thread, but for the concurrent pass, which shares nothing but salts."""

    def __init__(self, server: Server, plan: NeedlePlan) -> None:
        self._server = server
        self._plan = plan
        self._capabilities = server.capabilities
        self._nonce = secrets.token_hex(6)
        self._last: tuple[Cell, Haystack, str] | None = None
        self._prefill_tokens_per_s: float | None = None
        self._salts = count()
        self._salt_seen = False
        self.floor_tokens = 0

    def too_short(self) -> list[int]:
        """Lengths that the question with its template does not fit into."""
        cells = (*self._plan.cells, *self._plan.thinking_cells, *self._plan.concurrent_cells)
        shortest = min(cells, key=lambda cell: cell.length)
        self.floor_tokens = self._count(build_text(self._plan, shortest, self._draw(shortest), 0, 0), thinking=False)
        return sorted({cell.length for cell in cells if cell.length < self.floor_tokens + _SPARE_TOKENS})

    def ask(self, trial: Trial) -> Record:
        """One trial with its re-asks, as the fields of a record. Raises TransportError where no answer came."""
        haystack, salt = self._prepared(trial)
        record: Record = {
            "target_tokens": trial.cell.length,
            "depth_percent": trial.cell.depth,
            "seed": trial.cell.seed,
            "pass": trial.how,
            "key": haystack.needle.key,
            "expected": haystack.needle.code,
            "decoys": [code for _, code in haystack.needle.decoys],
            "prompt_sha256": haystack.sha256,
            "tokenize_calls": haystack.tokenize_calls,
            "max_tokens": self._plan.max_tokens(trial),
        }
        record |= self._answer(trial, haystack, salt)
        outcome = judge_trial(record)
        record |= {"class": outcome.outcome.value, "detail": outcome.detail}
        if trial.how == "warm" and not self._salt_seen:
            self._salt_seen = True
            record["fresh_salt_hits"] = self._answer(trial, haystack, self._new_salt()).get("cache_hits")
        if outcome.outcome.lost:
            record["again"] = [self._again(trial, haystack, salt, record) for _ in range(REASKS)]
        return record

    def _again(self, trial: Trial, haystack: Haystack, salt: str, record: Record) -> Record:
        """The same question once more: is the loss reproduced?"""
        salt = salt if trial.how == "warm" else self._new_salt()
        shared = {name: record[name] for name in ("target_tokens", "expected", "decoys")}
        try:
            answer = shared | self._answer(trial, haystack, salt)
        except TransportError as error:
            answer = shared | {"error": {"kind": error.kind, "detail": error.detail}}
        outcome = judge_trial(answer)
        return answer | {"class": outcome.outcome.value, "detail": outcome.detail}

    def _prepared(self, trial: Trial) -> tuple[Haystack, str]:
        """The text, and the cache salt: that of the cold trial for a warm one, which is asked first where need be."""
        if trial.how == "concurrent":
            return self._haystack(trial), self._new_salt()
        known = self._last
        if trial.how == "warm" and known is not None and known[0] == trial.cell:
            return known[1], known[2]
        made = self._haystack(trial), self._new_salt()
        if trial.how == "warm":
            self._answer(replace(trial, how="cold"), *made)
        if trial.how in ("cold", "warm"):
            self._last = (trial.cell, *made)
        return made

    def _haystack(self, trial: Trial) -> Haystack:
        cell, thinking = trial.cell, trial.how == "thinking"
        needle = self._draw(cell)
        text, calls = fit_prompt(
            lambda sentence_count, pads: build_text(self._plan, cell, needle, sentence_count, pads),
            lambda text: self._count(text, thinking=thinking),
            cell.length,
        )
        return Haystack(text, needle, calls)

    def _draw(self, cell: Cell) -> Needle:
        return draw_needle(
            WORDINGS[self._plan.wording], _seed(cell), _FEW_DECOYS if cell.length < _SHORT_TOKENS else _DECOYS
        )

    def _count(self, text: str, *, thinking: bool) -> int:
        endpoint, model = self._server.endpoint, self._server.model
        if self._plan.api == "completions":
            return count_tokens(endpoint, model, prompt=text)
        messages = [{"role": "user", "content": text}]
        return count_tokens(endpoint, model, messages=messages, template_fields=self._template_fields(thinking))

    def _template_fields(self, thinking: bool) -> dict[str, Any]:
        if not self._capabilities.extensions or self._plan.api == "completions":
            return {}
        return {"chat_template_kwargs": dict.fromkeys(_THINKING_FIELDS, thinking)}

    def _answer(self, trial: Trial, haystack: Haystack, salt: str) -> Record:
        """Ask once. A server that took the prompt, is healthy and sends nothing has stalled."""
        fields = self._template_fields(trial.how == "thinking")
        if self._capabilities.cache_salt:
            fields["cache_salt"] = salt
        if self._plan.api == "completions":
            fields["stop"] = ["\n"]
        request = Request(
            self._server.model,
            haystack.text,
            self._plan.api,
            self._plan.max_tokens(trial),
            GREEDY,
            extensions=self._capabilities.extensions,
            fields=fields,
        )
        alone = trial.how != "concurrent" and self._capabilities.metrics
        before = read_metrics(self._server.endpoint) if alone else None
        try:
            answer = stream(self._endpoint(trial.cell.length), request, lambda _: False)
        except TransportError as error:
            if error.kind != "timeout" or not _is_healthy(self._server.endpoint):
                raise
            return {"error": {"kind": error.kind, "detail": error.detail, "stall": True}}
        hits = delta(before, read_metrics(self._server.endpoint), PREFIX_HITS) if alone else None
        if trial.how == "cold" and answer.ttft_s:
            self._prefill_tokens_per_s = trial.cell.length / answer.ttft_s
        usage = answer.usage
        return {
            "finish_reason": answer.finish_reason,
            "text": answer.text,
            "reasoning": answer.reasoning,
            "prompt_tokens": usage.prompt_tokens if usage else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "ttft_s": answer.ttft_s,
            "elapsed_s": answer.elapsed_s,
            "salted": self._capabilities.cache_salt,
            "cache_hits": hits,
        }

    def _endpoint(self, length: int) -> Endpoint:
        """With a wait for the first byte that grows with the prompt, at the speed of the one before."""
        endpoint = self._server.endpoint
        if self._prefill_tokens_per_s is None:
            return endpoint
        wait_s = max(endpoint.idle_timeout_s, _SLOWER * length / self._prefill_tokens_per_s)
        return replace(endpoint, idle_timeout_s=wait_s, total_timeout_s=max(endpoint.total_timeout_s, 2 * wait_s))

    def _new_salt(self) -> str:
        return f"needle-{self._nonce}-{next(self._salts)}"


def _stalls(run: TrialRun) -> int:
    return sum(record["class"] == NeedleClass.STALL for record in run.records.values())


def _is_lost(record: Record) -> bool:
    return NeedleClass(record["class"]).lost


def _is_healthy(endpoint: Endpoint) -> bool:
    try:
        return get(endpoint, "/health").status == 200
    except TransportError:
        return False


def _seed(cell: Cell) -> str:
    return f"{cell.length} {cell.depth} {cell.seed}"
