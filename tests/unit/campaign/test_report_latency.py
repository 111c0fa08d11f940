"""Latency is drawn from the trials: no value is lost, no arm is taken for the other, and the words say the same."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.campaign.evidence_verify import verify_bundle
from shardwright.campaign.report.histogram import Arm, Axis, axis_over, picture, shares
from shardwright.campaign.report.latency import latency
from shardwright.campaign.report.stored import load_run
from shardwright.probes.speed.report import report_from, samples_from
from shardwright.probes.stored import read_records
from tests.report_sample import write_comparison, write_run

TIMES = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=50)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", "42,36", "up")


@pytest.fixture(scope="module")
def ab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(tmp_path_factory.mktemp("runs") / "ab")


def speed_of(folder: Path) -> dict[str, Any]:
    reports: list[dict[str, Any]] = json.loads((folder / "reports.json").read_text())
    return next(one for one in reports if one["probe"] == "speed")


def changed(folder: Path, target: Path, change: Callable[[dict[str, Any]], object], side: str = "") -> Path:
    """A copy in which every speed trial went through `change`; one for which it says False is dropped."""
    shutil.copytree(folder, target)
    file = target / side / "trials" / "speed.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    kept = [record for record in records if record["kind"] == "plan" or change(record) is not False]
    file.write_text("".join(json.dumps(record) + "\n" for record in kept))
    return target


def words(markup: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def pictures(markup: str) -> list[str]:
    return re.findall(r"<svg .*?</svg>", markup, re.DOTALL)


@given(TIMES)
def test_every_time_falls_into_one_bin_of_an_axis_that_holds_them_all(times: list[float]) -> None:
    axis = axis_over(times)
    assert axis is not None
    assert sum(shares(times, axis)) == pytest.approx(1)
    middle = sorted(times)[len(times) // 2]
    assert axis.low < max(min(times), middle / 8) <= max(times) < axis.high


@given(TIMES)
def test_an_axis_has_a_few_numbers_and_none_beside_it(times: list[float]) -> None:
    axis = axis_over(times)
    assert axis is not None
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(set(ticks))
    assert all(axis.low <= tick <= axis.high for tick in ticks)


def test_two_events_at_once_do_not_stretch_the_axis() -> None:
    axis = axis_over([0.0, 0.001, *[40.0] * 99, 80.0])
    assert axis is not None and axis.low > 4
    assert shares([0.0, 0.001, 40.0, 80.0], axis)[0] == 0.5


def test_without_a_time_there_is_no_axis() -> None:
    assert axis_over([]) is None
    assert axis_over([0.0]) is None


def test_equal_times_are_one_bar_in_the_middle() -> None:
    axis = axis_over([250.0] * 5)
    assert axis is not None
    drawn = shares([250.0] * 5, axis)
    assert max(drawn) == 1 and drawn.index(1) in (31, 32)


def test_the_second_arm_hangs_from_the_line_also_when_it_is_alone() -> None:
    arm = Arm((1.0, *[0.0] * 63), (0.1, 0.2, 0.3))
    axis = Axis(1, 100)
    both, alone = (str(picture(arms, axis, "told")) for arms in ((arm, arm), (None, arm)))
    assert 'd="M0.00 36v-35.00h1.41V36z" class="control"' in both
    assert 'd="M0.00 36v35.00h1.41V36z" class="candidate"' in both
    assert 'class="candidate"' in alone and 'class="control"' not in alone
    assert "M10.00 36v36" in alone and "M10.00 0v36" not in alone


def test_a_single_value_among_thousands_is_still_seen() -> None:
    rare = 1 / 100_000
    drawn = picture([Arm((1 - rare, rare, *[0.0] * 62), (0.1, 0.2, 0.3))], Axis(1, 100), "told")
    assert "M1.56 36v-1.50h" in drawn


def test_the_times_that_are_drawn_are_those_behind_the_reported_quantiles(run_folder: Path) -> None:
    run, report = load_run(run_folder), speed_of(run_folder)
    samples = samples_from(run.trials["speed"], report["plan"])
    for row, found in zip(report["rows"], samples, strict=True):
        for name, times in (("ttft_ms", found.ttft_ms), ("itl_ms", found.itl_ms)):
            assert len(times) == row[f"{name}_n"]
            if times:
                assert min(times) <= row[f"{name}_p50"] <= row[f"{name}_p99"] <= max(times) + 1e-4


def test_every_quantile_is_told_in_words_beside_and_within_the_picture(run_folder: Path) -> None:
    drawn = latency(load_run(run_folder))
    beside, within = words(drawn), " ".join(re.findall(r'aria-label="([^"]*)"', drawn))
    count = 0
    for row in speed_of(run_folder)["rows"]:
        for name in ("ttft_ms", "itl_ms"):
            if row[f"{name}_p50"] is not None:
                quantiles = [f"{quantile} {row[f'{name}_{quantile}']:,.1f}" for quantile in ("p50", "p95", "p99")]
                counted = f"n {row[f'{name}_n']:,}"
                assert " ".join([*quantiles, counted]) in beside
                assert ", ".join([*quantiles, counted]) in within
                count += 1
    assert len(pictures(drawn)) == count == 5


def test_both_arms_stand_in_one_picture_and_on_one_axis(ab_folder: Path) -> None:
    drawn = latency(load_run(ab_folder))
    assert len(pictures(drawn)) == 5
    for one in pictures(drawn):
        assert one.count('class="control"') == one.count('class="candidate"') == 1
        assert re.search(r"control p50 [\d.,]+, .*; candidate p50 ", one)
    for side in ("control", "candidate"):
        row = next(row for row in speed_of(ab_folder / side)["rows"] if row["concurrency"] == 8)
        assert f"prose greedy, 8 at once {side} 5 {row['tok_s']:,.1f} {row['step_ms']:.2f}" in words(drawn)


def test_what_only_the_candidate_measured_hangs_below_the_line(tmp_path: Path, ab_folder: Path) -> None:
    folder = changed(ab_folder, tmp_path / "ab", lambda record: record["concurrency"] == 1, side="control")
    file = folder / "control" / "reports.json"
    reports = json.loads(file.read_text())
    for report in reports:
        if report["probe"] == "speed":
            report["rows"] = [row for row in report["rows"] if row["concurrency"] == 1]
    file.write_text(json.dumps(reports))
    alone = [one for one in pictures(latency(load_run(folder))) if "8 at once" in one]
    assert len(alone) == 2
    for one in alone:
        assert 'class="candidate"' in one and 'class="control"' not in one
        assert 'viewBox="0 0 100 72"' in one


def test_an_arm_without_its_trials_shows_numbers_and_no_picture(tmp_path: Path, run_folder: Path) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run" / "trials" / "speed.jsonl").unlink()
    drawn = latency(load_run(tmp_path / "run"))
    assert pictures(drawn) == []
    assert f"p50 {speed_of(run_folder)['rows'][0]['ttft_ms_p50']:,.1f}" in words(drawn)


def test_rounds_that_nobody_may_believe_are_not_drawn(tmp_path: Path, run_folder: Path) -> None:
    def disturbed(record: dict[str, Any]) -> None:
        record["metrics"]["requests"] += 1

    folder = changed(run_folder, tmp_path / "x", disturbed)
    assert pictures(latency(load_run(folder))) == [], "the report was made before the trials were changed"
    report = report_from(read_records(folder / "trials" / "speed.jsonl"), "sample").to_json()
    (folder / "reports.json").write_text(json.dumps([report]))
    drawn = latency(load_run(folder))
    assert pictures(drawn) == []
    assert words(drawn).startswith("no time is to be believed Rates")
    assert "prose greedy, 8 at once 0 – – – 0 NOT-MEASURED" in words(drawn)


def test_trials_of_another_plan_are_refused_as_damage(
    cli: Callable[..., Any], tmp_path: Path, run_folder: Path
) -> None:
    other = tmp_path / "x"
    shutil.copytree(run_folder, other)
    file = other / "trials" / "speed.jsonl"
    file.write_text(file.read_text().replace('"plan": "sample"', '"plan": "other"'))
    told = cli("report", str(other))
    assert told.code == 1 and "deploy evidence verify" in told.err
    assert any("trials cannot be judged again" in line for line in verify_bundle(other))


def test_the_report_s_times_are_recomputed_from_their_trials(tmp_path: Path, run_folder: Path) -> None:
    def later(record: dict[str, Any]) -> None:
        if record["test"] == "decode":
            record["streams"][0]["ttft_s"] += 0.5

    def of_speed(folder: Path) -> list[str]:
        return [line for line in verify_bundle(folder) if line.startswith("speed")]

    assert of_speed(run_folder) == []
    assert any("ttft_ms" in line for line in of_speed(changed(run_folder, tmp_path / "x", later)))
