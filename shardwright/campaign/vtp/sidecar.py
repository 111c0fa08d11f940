"""The sidecar: a folder with the padded config.json and links to the checkpoint, which target and draft both read.

`--hf-overrides` does not reach the draft model, and a padded copy of the weights would take a second checkpoint's disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from shardwright.connect.atomic import staged_directory
from shardwright.errors import DeployError
from shardwright.facts.virtual_tp import SIDECAR_KEY, read_config
from shardwright.plan.virtual_sizes import PADDED_KEYS
from shardwright.plan.virtual_tp import VirtualPlan

CONFIG = "config.json"


class Sidecar(Struct, frozen=True):
    directory: str
    checkpoint: str
    tp: int
    links: int
    size_bytes: int
    """What was written: config.json alone; links take no room to speak of."""


def write_sidecar(checkpoint: Path, plan: VirtualPlan, destination: Path) -> Sidecar:
    """Write the sidecar of `checkpoint` for the plan, whole or not at all.

    Links are absolute: they hold wherever the sidecar is opened, as long as the checkpoint keeps its own path there.
    DeployError when the destination holds something else, or a sidecar for another TP.
    """
    checkpoint = checkpoint.resolve()
    source = read_config(checkpoint / CONFIG, f"{checkpoint}/{CONFIG}")
    if SIDECAR_KEY in source:
        raise DeployError(
            f"{checkpoint} is a sidecar itself", fix=f"name the checkpoint: {source[SIDECAR_KEY].get('checkpoint', '')}"
        )
    if destination.resolve() == checkpoint or checkpoint in destination.resolve().parents:
        raise DeployError(f"{destination} lies in the checkpoint itself", fix="name a folder beside it")
    _refuse_occupied(destination, plan.tp)
    config = padded_config(source, plan, checkpoint)
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    names = sorted(entry.name for entry in checkpoint.iterdir() if entry.name != CONFIG)
    with staged_directory(destination) as staged:
        (staged / CONFIG).write_text(text, encoding="utf-8")
        (staged / CONFIG).chmod(0o644)
        for name in names:
            (staged / name).symlink_to(checkpoint / name)
    return Sidecar(str(destination), str(checkpoint), plan.tp, len(names), len(text.encode()))


def padded_config(config: Mapping[str, Any], plan: VirtualPlan, checkpoint: Path) -> dict[str, Any]:
    """The checkpoint's config with padded sizes and the plan. `vocab_size` stays: padded tokens could be sampled."""
    padded = dict(config)
    for axis, key in PADDED_KEYS.items():
        padded[key] = plan.axes[axis].virtual
    padded[SIDECAR_KEY] = {
        **plan.sidecar_entry(),
        "checkpoint": str(checkpoint),
        "config_sha256": _digest(checkpoint / CONFIG),
    }
    return padded


def check_sidecar(directory: Path, tp: int | None) -> tuple[Sidecar, list[str]]:
    """A sidecar and everything that is wrong with it; with `tp`, also that it was written for that TP.

    DeployError when the folder is no sidecar at all.
    """
    config = read_config(directory / CONFIG, f"{directory}/{CONFIG}")
    entry = config.get(SIDECAR_KEY)
    if not isinstance(entry, Mapping) or not isinstance(entry.get("axes"), Mapping):
        raise DeployError(
            f"{directory} is not a sidecar: its {CONFIG} has no {SIDECAR_KEY}",
            fix="deploy vtp sidecar MODEL --tp N --out DIR",
        )
    checkpoint = Path(str(entry.get("checkpoint", "")))
    problems = [*_config_problems(config, entry, tp), *_checkpoint_problems(directory, checkpoint, entry)]
    links = [item for item in directory.iterdir() if item.is_symlink()]
    size = (directory / CONFIG).stat().st_size
    return Sidecar(str(directory), str(checkpoint), int(entry.get("tp_size") or 0), len(links), size), problems


def _config_problems(config: Mapping[str, Any], entry: Mapping[str, Any], tp: int | None) -> list[str]:
    problems = []
    if tp is not None and entry.get("tp_size") != tp:
        problems.append(
            f"it was written for TP={entry.get('tp_size')}, not for TP={tp}: the engine would cut heads and groups "
            "at the wrong places"
        )
    axes = entry["axes"]
    for axis, key in PADDED_KEYS.items():
        sizes = axes.get(axis)
        if not isinstance(sizes, list) or len(sizes) != 2:
            problems.append(f"its plan has no sizes for {axis}")
        elif config.get(key) != sizes[1]:
            problems.append(f"{key} is {config.get(key)}, but its plan pads to {sizes[1]}")
    vocabulary = axes.get("vocabulary")
    if isinstance(vocabulary, list) and config.get("vocab_size") != vocabulary[0]:
        problems.append(
            f"vocab_size is {config.get('vocab_size')}, not the checkpoint's {vocabulary[0]}: padded tokens have a "
            "logit of 0 and can be sampled, and hash routing tables change their shape"
        )
    return problems


def _checkpoint_problems(directory: Path, checkpoint: Path, entry: Mapping[str, Any]) -> list[str]:
    if not (checkpoint / CONFIG).is_file():
        return [f"the checkpoint is not at {checkpoint} (moved, or mounted elsewhere): every link leads nowhere"]
    problems = []
    if _digest(checkpoint / CONFIG) != entry.get("config_sha256"):
        problems.append(f"{checkpoint}/{CONFIG} is not the one that it was made from")
    for item in sorted(directory.iterdir()):
        if item.name == CONFIG:
            continue
        if not item.is_symlink():
            problems.append(f"{item.name} is a copy, not a link")
        elif item.readlink() != checkpoint / item.name or not item.exists():
            problems.append(f"{item.name} leads to {item.readlink()}, which is not the checkpoint's")
    present = {item.name for item in directory.iterdir()}
    missing = sorted(item.name for item in checkpoint.iterdir() if item.name not in present)
    if missing:
        problems.append(f"it has no link to {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
    return problems


def _refuse_occupied(destination: Path, tp: int) -> None:
    if not destination.exists() and not destination.is_symlink():
        return
    entry: Any = None
    if (destination / CONFIG).is_file() and not destination.is_symlink():
        entry = read_config(destination / CONFIG, f"{destination}/{CONFIG}").get(SIDECAR_KEY)
    if not isinstance(entry, Mapping):
        raise DeployError(f"{destination} is there and is not a sidecar", fix="name another --out, or remove it")
    if entry.get("tp_size") != tp:
        raise DeployError(
            f"{destination} is a sidecar for TP={entry.get('tp_size')}, not for TP={tp}",
            why="an engine that still reads it would be cut at the wrong places",
            fix="name another --out",
        )


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
