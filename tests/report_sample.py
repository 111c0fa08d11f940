"""Bundles that hold everything a report can show, for its tests and for the picture in the docs.

The plan, the gates and the command are those of the shipped layout; what a server would have answered is made up.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from shardwright.campaign.bundle_contents import put_request
from shardwright.campaign.evidence import MANIFEST, REPORTS, SCHEMA, VERDICT, Bundle, open_bundle
from shardwright.campaign.request import prepare
from shardwright.connect.project import open_project
from shardwright.probes.speed.report import report_from
from shardwright.probes.stats import clopper_pearson_upper

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "tests" / "data"
LAYOUT = "glm53-tp4pp2"


def write_run(folder: Path, split: str, arm: str, failures: int = 0) -> Path:
    """A sealed run of the shipped layout with that split, with so many degenerate answers of 200."""
    bundle = open_bundle(folder)
    environ = {"DEPLOY_PROJECT": str(ROOT), "PP_LAYER_PARTITION": split}
    request = prepare(LAYOUT, environ, ["serve.max_model_len=131072"], project=open_project(environ))
    put_request(bundle, request, arm)
    bundle.put(MANIFEST, bundle.read(MANIFEST) | {"created_at": "2026-01-01T00:00:00Z", "user": "op", "host": "node"})
    bundle.put("image.json", {"image": "engine:1", "digest": None, "identity": "sha256:1", "vllm": "0.30.0"})
    _observe(bundle)
    bundle.put("proof.json", _proof())
    _needles(bundle, lost=failures > 0)
    reports = [*_reports(failures), speed_report(bundle, slower=1.04 if failures else 1.0)]
    bundle.put(REPORTS, reports)
    failed = [f"{one['probe']}: {one['reasons'][0]}" for one in reports if one["verdict"] == "FAIL"]
    verdict = "FAIL" if failed else "PASS"
    bundle.put(VERDICT, {"verdict": verdict, "reasons": failed, "probes": {}, "mode": "default"})
    bundle.seal()
    return folder


def write_comparison(folder: Path) -> Path:
    """A sealed comparison of a split that is whole with one that cuts a group of layers."""
    write_run(folder / "control", "42,36", "control")
    write_run(folder / "candidate", "45,33", "45-33", failures=11)
    bundle = open_bundle(folder)
    bundle.put(
        MANIFEST,
        {
            "schema": SCHEMA,
            "tool_version": "0.1.0",
            "layout": LAYOUT,
            "arm": "ab",
            "created_at": "2026-01-01T00:00:00Z",
            "control": "control",
            "candidate": "candidate",
        },
    )
    reason = "Fisher one-sided p = 3.92e-04"
    rows = [
        ("memory", "pool predicted, tokens", ["1,000", "900"], None, ""),
        ("probes", "degen", ["PASS", "FAIL"], "FAIL", "11 of 200 trials are degenerate"),
        ("degeneration", "degen, degenerate trials", ["0/200, at most 1.49 %", "11/200, at most 9 %"], "FAIL", reason),
        ("needles", "needles found, paired", ["26/26", "25/26"], "FAIL", "1 lost, 0 won of 26 paired cells"),
        ("speed", "step_ms prose greedy c1", ["41.20", "40.90"], "PASS", "within 3 %"),
    ]
    names = ("group", "metric", "cells", "verdict", "reason")
    bundle.put(
        "ab.json",
        {
            "verdict": "FAIL",
            "reasons": [f"{row[1]}: {row[4]}" for row in rows if row[3] == "FAIL"],
            "rows": [dict(zip(names, row, strict=True)) for row in rows],
        },
    )
    bundle.seal()
    return folder


def _observe(bundle: Bundle) -> None:
    plan = bundle.read("plan.json")
    stages = plan["predicted"]["stages"]
    ranks = [
        {"stage": stage["stage"], "tensor_rank": rank, "available_gib": 11.75 - 2 * stage["stage"] + rank / 100}
        for stage in stages
        for rank in range(4)
    ]
    observed = {"ranks": ranks, "pool_tokens": 403_840, "max_model_len": 131_072, "max_concurrency": 3.08}
    pool = plan["predicted"]["pool"]["pool_tokens"]
    differences = [{"what": "pool tokens", "predicted": pool, "actual": 403_840, "is_finding": True}]
    bundle.put("plan.json", plan | {"observed": observed, "differences": differences})


def _proof() -> dict[str, Any]:
    rows = [
        ("bytes", "OK", "pp-index-transport", "v1/worker/gpu_model_runner.py", "equals the lock", ""),
        ("import", "OK", "pp-index-transport", "vllm.v1.worker.gpu_model_runner", "imports the overlay's file", ""),
        ("reach", "UNKNOWN", "pp-index-transport", "GPUModelRunner", "no model code; its hit line decides", ""),
        ("hits", "OK", "pp-index-transport", "", "8 hit lines", ""),
    ]
    names = ("rung", "verdict", "patch", "subject", "message", "fix")
    return {
        "instance": "demo-1",
        "proven": True,
        "rungs": {row[0]: row[1] for row in rows},
        "rows": [dict(zip(names, row, strict=True)) for row in rows],
    }


def _needles(bundle: Bundle, lost: bool) -> None:
    target = bundle.trials("needle")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(STORED / "run-up" / "trials" / "needle.jsonl", target)
    if lost:
        records = [json.loads(line) for line in target.read_text().splitlines()]
        trial = next(one for one in records if one["kind"] == "trial" and one["target_tokens"] > 1000)
        trial |= {"text": "7000001", "class": "WRONG"}
        target.write_text("".join(json.dumps(one) + "\n" for one in records))


def _reports(failures: int) -> list[dict[str, Any]]:
    stored = json.loads((STORED / "run-up" / REPORTS).read_text())
    smoke = next(one for one in stored if one["probe"] == "smoke")
    needle = next(one for one in stored if one["probe"] == "needle")
    if failures:
        lost = {"verdict": "FAIL", "reasons": ["1 of 26 is lost"], "failures": 1, "classes": {"EXACT": 25, "WRONG": 1}}
        needle |= {**lost, "upper_bound": clopper_pearson_upper(1, 26)}
    quality = {**smoke, "probe": "quality", "trials": 40, "classes": {"PASS": 40}}
    degen = {
        **smoke,
        "probe": "degen",
        "verdict": "FAIL" if failures else "PASS",
        "reasons": [f"{failures} of 200 trials are degenerate; 4 decide"] if failures else [],
        "trials": 200,
        "failures": failures,
        "upper_bound": clopper_pearson_upper(failures, 200),
        "confidence": 0.95,
        "per_task": {
            "short": {"failures": 0, "trials": 100, "upper_bound": clopper_pearson_upper(0, 100)},
            "long": {"failures": failures, "trials": 100, "upper_bound": clopper_pearson_upper(failures, 100)},
        },
        "per_concurrency": {"8": {"failures": failures, "trials": 200, "upper_bound": 0.1}},
        "control": {"trials": 200, "failures": 0, "p_value": 3.92e-4 if failures else 1.0},
    }
    repeat = {**smoke, "probe": "repeat", "verdict": "SKIP", "reasons": ["an earlier probe fails"], "trials": 0}
    return [smoke, quality, degen, needle, repeat]


def speed_report(bundle: Bundle, slower: float) -> dict[str, Any]:
    """Keep trials of one and of eight streams and of a long prompt; the report is what the probe makes of them."""
    chance = random.Random(1)
    trials = [
        _decode(chance, prompt, level, number, slower)
        for prompt, level in (("prose", 1), ("prose", 8))
        for number in range(5)
    ]
    trials += [_prefill(chance, number, slower) for number in range(3)]
    header = {"kind": "plan", "plan": "sample", "spec": "sample", "trials": [trial["trial"] for trial in trials]}
    records = [header, *trials]
    target = bundle.trials("speed")
    target.write_text("".join(json.dumps(one) + "\n" for one in records))
    report: dict[str, Any] = json.loads(json.dumps(report_from(records, "sample").to_json()))
    return report


def _decode(chance: random.Random, prompt: str, level: int, number: int, slower: float) -> dict[str, Any]:
    """A round of streams that speculate: a step takes about 40 ms, and one in forty much longer."""
    streams, steps, accepted = [], 80, 112
    for _ in range(level):
        first_s = chance.lognormvariate(-1.5 + 0.08 * level, 0.12)
        time_s, events = first_s, [[round(first_s, 6), 1]]
        for step in range(steps):
            waits = 2.5 + chance.random() if chance.random() < 0.025 * slower**20 else 1.0
            time_s += 0.04 * (1 + 0.02 * level) * slower * waits * chance.lognormvariate(0, 0.05)
            events.append([round(time_s, 6), 2 if step % 5 < 3 else 3])
        made = sum(count for _, count in events)
        times = {"sent_s": 0.0, "first_byte_s": events[0][0], "ttft_s": events[0][0], "events": events}
        streams.append({**times, "prompt_tokens": 60, "completion_tokens": made, "finish_reason": "length"})
    made = streams[0]["completion_tokens"]
    drafts = level * steps
    counters = {"requests": level, "generation_tokens": level * made, "drafts": drafts, "preemptions": 0, "hits": 0}
    return _trial(
        f"decode/{prompt}/greedy/c{level}/r{number}",
        test="decode",
        prompt=prompt,
        sampler="greedy",
        concurrency=level,
        max_tokens=made,
        warm_up={"steps_ms": [40.0, 40.0], "settled": True},
        streams=streams,
        asked=level,
        made=level * made,
        metrics={**counters, "accepted": level * accepted, "per_pos": [0.9 * drafts, 0.5 * drafts]},
    )


def _prefill(chance: random.Random, number: int, slower: float) -> dict[str, Any]:
    counters = {"requests": 1, "generation_tokens": 1, "drafts": 0, "accepted": 0, "preemptions": 0, "hits": 0}
    return _trial(
        f"prefill/n32768/r{number}",
        test="prefill",
        concurrency=1,
        target_tokens=32_768,
        prompt_tokens=32_770,
        ttft_s=round(7.8 * slower * chance.lognormvariate(0, 0.01), 6),
        short_ttft_s=0.2,
        asked=1,
        made=1,
        metrics={**counters, "per_pos": []},
    )


def _trial(name: str, **content: Any) -> dict[str, Any]:
    common = {"kind": "trial", "probe": "speed", "plan": "sample", "trial": name, "class": "OK", "detail": ""}
    return {**common, **content, "spec": "sample"}
