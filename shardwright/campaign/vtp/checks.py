"""Run the checks that lie beside the patch in an engine's interpreter, and judge what they found."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from shardwright.errors import DeployError, ExitCode
from shardwright.plan.virtual_tp import VirtualPlan

SCRIPTS = {
    "loader-bytes": ("loader_bytes.py", ()),
    "attention-padding": ("numerics.py", ("attention",)),
    "moe-numerics": ("numerics.py", ("moe",)),
}
MODULE = "virtual_tp.pyfrag"
_TIMEOUT_S = 1800
_ALLOWED_RATIO = 1.5
_WRONG_BY_AT_LEAST = 0.2
_EXACT = 1e-5


def plan_document(plan: VirtualPlan) -> dict[str, Any]:
    """What the checks need of a plan, in plain data."""
    return {
        "sizes": asdict(plan.sizes),
        "entry": plan.sidecar_entry(),
        "kernel": plan.axes["routed_intermediate"].kernel_local,
        "kernel_heads": plan.axes["attention_heads"].kernel_local,
    }


def run_check(
    name: str,
    plan: VirtualPlan,
    python: str | None,
    patch: Path,
    slicings: Sequence[str] = ("padded", "stock", "blind"),
) -> dict[str, Any]:
    """One check as a process of `python` (this one by default); its findings as they are.

    DeployError (exit 4) when the check itself could not run, which says nothing about the padding.
    """
    script, words = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "plan.json"
        document.write_text(json.dumps(plan_document(plan)), encoding="utf-8")
        # The scripts import each other, and no bytecode belongs beside a patch.
        command = [python or sys.executable, "-B", str(patch / "checks" / script), *words]
        command += ["--fragment", str(patch / MODULE), "--plan", str(document)]
        command += ["--slicings", *slicings] if name == "loader-bytes" else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
            found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
        except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
            raise _not_run(name, str(error)) from None
    if not isinstance(found, dict):
        raise _not_run(name, (done.stderr.strip().splitlines() or ["no output"])[-1])
    return found


def judge(name: str, plan: VirtualPlan, found: Mapping[str, Any]) -> list[str]:
    """What speaks against a check's findings; empty where it passed. A control that was not caught speaks against."""
    return {"loader-bytes": _judge_loader, "attention-padding": _judge_attention, "moe-numerics": _judge_moe}[name](
        plan, found
    )


def _judge_loader(plan: VirtualPlan, found: Mapping[str, Any]) -> list[str]:
    faults = [text for text in found["padded"]["audit"] if text]
    cuts = found["padded"]["cuts"]
    for shard in plan.shards:
        if shard.tensor not in cuts:
            continue
        wanted = [(rank.start, rank.stop - rank.start, rank.zero_tail) for rank in shard.ranks]
        got = [(cut["start"], cut["units"], cut["zero_tail"]) for cut in cuts[shard.tensor]]
        for rank, (want, have) in enumerate(zip(wanted, got, strict=True)):
            # An idle rank holds no unit, so its start cannot be seen.
            if want != have and (want[1] or have[1]):
                faults.append(f"{shard.tensor} on rank {rank}: cut at {have}, planned {want}")
    conversion = found["padded"]["conversion"]
    if not conversion["values_kept"]:
        faults.append("the conversion for the kernel lost values")
    padded = plan.axes["routed_intermediate"].virtual != plan.axes["routed_intermediate"].original
    for control in ("stock", "blind"):
        if padded and not any(found[control]["audit"]):
            faults.append(f"the control {control} was not found wrong")
    return faults


def _judge_attention(plan: VirtualPlan, found: Mapping[str, Any]) -> list[str]:
    faults = []
    for phase, row in found.items():
        if row["split"] > _ALLOWED_RATIO * row["single"] or not row["finite"]:
            faults.append(f"{phase}: error {row['split']:.2e} against {row['single']:.2e} of a single rank")
        if not (row["virtual_groups_zero"] and row["contribution_zero"]):
            faults.append(f"{phase}: virtual heads contribute to the output")
        if not row["virtual_heads_nonzero"]:
            faults.append(f"{phase}: virtual heads are zero, so their weight in the output was not tried")
    return faults


def _judge_moe(plan: VirtualPlan, found: Mapping[str, Any]) -> list[str]:
    faults = list(found["audit"]["padded"])
    padded = plan.axes["routed_intermediate"].virtual != plan.axes["routed_intermediate"].original
    for row in found["rows"]:
        if not row["padded_finite"] or row["padded"] > _EXACT:
            faults.append(f"{row['tokens']} tokens: relative error {row['padded']:.2e}")
        for control in ("stock", "blind"):
            if padded and row[control] < _WRONG_BY_AT_LEAST:
                faults.append(f"{row['tokens']} tokens: the control {control} was not found wrong")
    return faults


def _not_run(name: str, why: str) -> DeployError:
    return DeployError(
        f"the check {name} could not run: {why[:300]}",
        why="nothing was learned about the padding",
        fix="use the interpreter of a vLLM that the patch covers: --python PATH",
        code=ExitCode.HARNESS,
    )
