"""Record what a deployment thinks of fixed prompts, so that another one can be compared with it token by token.

Both rarely fit on one host at a time: record A, record B, compare the files (`parity_report`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from shardwright.errors import DeployError, ExitCode
from shardwright.probes.journal import Journal, Record
from shardwright.probes.parity.plan import LOADED, ROUNDS, ParityPlan, Round
from shardwright.probes.parity.report import judge_trial, report_from
from shardwright.probes.pool import Progress, TrialRun
from shardwright.probes.report import ProbeReport
from shardwright.probes.score_text import prompt_ids
from shardwright.probes.scores import ask_score, tells_of_nan
from shardwright.probes.server import Server
from shardwright.probes.stored import write_result
from shardwright.probes.wire import TransportError


def run_parity(
    server: Server,
    plan: ParityPlan,
    journal: Journal,
    *,
    concurrency: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
) -> ProbeReport:
    """Record every prompt twice: one at a time, then eight (or `concurrency`) at a time.

    The report says whether the recording is whole and sound, and how far the server is from itself. Raises
    TransportError, and DeployError where the server gives no prompt logprobs or has no tokenizer (exit 3).
    """
    if not server.capabilities.prompt_logprobs:
        _find_out_why(server, plan)
    plan_id = plan.id(server)
    prompts = [prompt_ids(server, number, tokens, plan.seed) for number, tokens in enumerate(plan.lengths)]
    planned = [key for how in ROUNDS for key in plan.keys(how)]
    header: Record = {
        "server": server.record(),
        "request": asdict(plan),
        "method": plan.method(),
        "prompts_sha256": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
        "planned": planned,
    }
    records: list[Record] = [*journal.records, {"kind": "plan", "probe": "parity", "plan": plan_id, **header}]

    def record(how: Round, at_a_time: int) -> bool:
        """Ask a round; False where the run ended early."""
        keys = plan.keys(how)
        run = TrialRun(
            journal, "parity", plan_id, keys, is_failure=lambda r: r["class"] != "OK", on_progress=on_progress
        )
        run.work(lambda key: _score(server, plan, prompts[keys.index(key)], how), at_a_time, header=header)
        records.extend([*run.records.values(), *run.errors])
        return len(run.records) + len(run.errors) == len(keys)

    if record("alone", 1):
        record("loaded", max(concurrency, LOADED))
    report = report_from(records, plan_id, str(journal.path))
    write_result(journal, report, len(planned))
    return report


def _score(server: Server, plan: ParityPlan, ids: Sequence[int], how: Round) -> Record:
    record: Record = {"round": how, "prompt_ids": list(ids)}
    try:
        record |= ask_score(server, ids, top=plan.top, answer_tokens=plan.answer_tokens, prompt_logprobs=True).fields()
    except TransportError as error:
        if not tells_of_nan(error):
            raise
        record |= {"error": {"kind": error.kind, "detail": error.detail, "nan": True}}
    judged = judge_trial(record)
    return record | {"class": judged.outcome, "detail": judged.detail}


def _find_out_why(server: Server, plan: ParityPlan) -> None:
    """Let a server pass that fails on its own broken numbers; raise DeployError for one that gives none."""
    try:
        ask_score(server, prompt_ids(server, 0, 2, plan.seed), top=1, answer_tokens=1, prompt_logprobs=True)
    except TransportError as error:
        if tells_of_nan(error):
            return
        why = error.detail
    else:
        return
    raise DeployError(
        f"{server.endpoint.base_url} gives no prompt logprobs",
        why=f"parity scores fixed prompts; the server says: {why}",
        fix="ask the vLLM server itself, or use deploy repeat",
        code=ExitCode.INCONCLUSIVE,
    )
