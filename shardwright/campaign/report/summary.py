"""What stands on top of a report, as plain text: the verdict, its reasons, and what was deployed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.campaign.report.stored import StoredRun

WARNINGS = {
    "altered": "The files are not those that were sealed: deploy evidence verify names the differences.",
    "not sealed": "This run did not end; what follows is what it had.",
}
"""By the state of a run; a sealed one has none."""


def subject_of(run: StoredRun) -> str:
    """Whose verdict it is: the layout, and what was done with it."""
    return f"{run.manifest['layout']}, {'control against candidate' if run.arms else run.manifest['arm']}"


def verdict_of(run: StoredRun) -> str:
    """The stored verdict; `REFUSED` or `no verdict` where the run did not come to one."""
    if run.verdict:
        return str(run.verdict["verdict"])
    return "REFUSED" if run.refused else "no verdict"


def reasons_of(run: StoredRun) -> list[str]:
    """What the verdict rests on, after it what stopped the run; one line each."""
    found = [str(reason) for reason in run.verdict.get("reasons", ())] if run.verdict else []
    if run.refused:
        told = (("", run.refused.get("what")), ("why: ", run.refused.get("why")), ("fix: ", run.refused.get("fix")))
        found += [f"{name}{text}" for name, text in told if text]
    elif not run.verdict:
        found.append("the run ended before anything was judged")
    return found


def facts_of(run: StoredRun) -> dict[str, str]:
    """Model, split, engine and patches of one run; what it does not say is left out."""
    manifest, image = run.manifest, run.image or {}
    model = manifest.get("model") or {}
    engine = (image.get("vllm"), image.get("image") or image.get("identity"))
    facts = {
        "model": " ".join(str(model[key]) for key in ("path", "revision") if model.get(key)),
        "split": split_of(run),
        "engine": " ".join(str(value) for value in engine if value),
        "patches": ", ".join(str(patch["id"]) for patch in manifest.get("patches") or ()) or "none",
    }
    return {name: value for name, value in facts.items() if value}


def split_of(run: StoredRun) -> str:
    parallel: Mapping[str, Any] = run.manifest.get("parallel") or {}
    layers = ",".join(map(str, parallel.get("partition") or ()))
    return f"TP {parallel.get('tensor')}, PP {parallel.get('pipeline')}" + (f", layers {layers}" if layers else "")
