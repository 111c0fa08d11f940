"""A report needs the plan of its trials: without it, or from a file that was cut off, none says more than it knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwright.campaign.evidence_verify import verify_bundle
from shardwright.campaign.probe_table import PROBES
from shardwright.errors import ExitCode
from shardwright.probes.stored import NoPlanError, read_records
from tests.report_sample import write_run
from tests.unit.helpers import torn_in_last_trial

STORED = Path(__file__).resolve().parents[2] / "data" / "run-up"
TRIAL = {"kind": "trial", "plan": "p", "trial": "one", "class": "PASS", "detail": ""}


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("records", [[], [TRIAL], [{"kind": "plan", "plan": "other"}, TRIAL]])
def test_no_probe_reports_trials_without_their_plan(probe: str, records: list[dict[str, Any]]) -> None:
    trials = [record | {"probe": probe} for record in records]
    with pytest.raises(NoPlanError, match=r"no plan of .* is on file with the id p") as caught:
        PROBES[probe].recompute(trials, "p")
    assert caught.value.code == ExitCode.INCONCLUSIVE


@pytest.mark.parametrize("probe", PROBES)
def test_a_plan_that_was_cut_off_in_its_line_is_none(probe: str, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps({"kind": "plan", "probe": probe, "plan": "p", "trials": ["one"]})[:-3])
    with pytest.raises(NoPlanError):
        PROBES[probe].recompute(read_records(file), "p")


@pytest.mark.parametrize("probe", ["smoke", "needle"])
def test_a_trial_that_was_cut_off_in_its_line_does_not_count(probe: str, tmp_path: Path) -> None:
    text = (STORED / "trials" / f"{probe}.jsonl").read_text()
    lines, file = text.splitlines(), tmp_path / "t.jsonl"
    file.write_text(torn_in_last_trial(text))
    plan = json.loads(lines[0])["plan"]
    whole = PROBES[probe].recompute([json.loads(line) for line in lines], plan)
    assert PROBES[probe].recompute(read_records(file), plan).trials == whole.trials - 1


def test_evidence_without_a_plan_is_damaged_evidence(cli: Callable[..., Any], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "42,36", "up")
    file = run / "trials" / "speed.jsonl"
    kept = [line for line in file.read_text().splitlines(keepends=True) if json.loads(line)["kind"] != "plan"]
    file.write_text("".join(kept))
    assert any("speed: its trials cannot be judged again (NoPlanError" in line for line in verify_bundle(run))
    told = cli("report", str(run))
    assert (told.code, "Traceback" in told.err) == (1, False)
    assert "no plan of speed is on file" in told.err and f"deploy evidence verify {run}" in told.err
