"""The control arm of the degeneration probe: the same questions to another deployment, asked once and kept.

The same loop may lie in the checkpoint and not in the deployment; only a control tells them apart. And the larger the
control, the smaller the difference that shows: it pays to keep one for each model, image and set of patches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from shardwright.errors import UsageError
from shardwright.probes.degen.plan import DegenPlan
from shardwright.probes.journal import Record
from shardwright.probes.pool import finished_trials
from shardwright.probes.server import Server


def control_trials(records: Iterable[Record], plan: DegenPlan) -> list[Record]:
    """The answered trials of the last run on file that asked what `plan` asks.

    No records give none. Raises UsageError where the records are of other questions or another sampler.
    """
    records = list(records)
    if not records:
        return []
    method = plan.method()
    plans = [record["plan"] for record in records if record["kind"] == "plan" and record.get("method") == method]
    if not plans:
        raise UsageError(
            "the control is not comparable",
            why="it holds no degeneration trials with these prompts, limits and sampler",
            fix="run deploy degen with the same options against the control first",
        )
    return list(finished_trials(records, plans[-1]).values())


def control_file(folder: Path, plan: DegenPlan, fingerprint: Sequence[str]) -> Path:
    """Where the control of a fingerprint is kept. `fingerprint` names model, image and patches, or a server."""
    import hashlib
    import json

    digest = hashlib.sha256(json.dumps([plan.method(), list(fingerprint)]).encode()).hexdigest()[:16]
    return folder / "control" / f"degen-{digest}.jsonl"


def keep_control(folder: Path, plan: DegenPlan, deployment: str, records: Iterable[Record]) -> None:
    """Keep the answered trials of a run as the control of its deployment; a larger one on file stays.

    `deployment` is the digest over model, engine, patches and settings: another deployment is another control.
    """
    import json

    from shardwright.connect.atomic import write_file
    from shardwright.probes.stored import read_records

    records = list(records)
    headers = [record for record in records if record["kind"] == "plan" and record.get("method") == plan.method()]
    answered = control_trials(records, plan) if headers else []
    file = control_file(folder, plan, [deployment])
    if not answered or (file.exists() and len(control_trials(read_records(file), plan)) >= len(answered)):
        return
    lines = [json.dumps(record) for record in (headers[-1], *answered)]
    write_file(file, ("\n".join(lines) + "\n").encode("ascii"))


def server_fingerprint(server: Server) -> list[str]:
    """What is known of a server that no layout of ours started: another boot is another fingerprint."""
    return [server.endpoint.base_url, server.model, server.version or "", server.started_at or ""]
