"""Deployments made by hand, for tests of one gate at its borders: just what the gate sees, nothing resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from shardwright.facts.facts import Facts
from shardwright.gates.finding import Finding
from shardwright.layout.container import Container
from shardwright.layout.provenance import Origin
from shardwright.layout.schema import Engine, Hardware, Model, Parallel, ProbeSettings, Provides
from shardwright.overlay.patch import Patch, read_patch
from shardwright.plan.stages import Plan
from shardwright.resolve.deployment import Argument, Deployment, EnvPair, Mount, Speculation

Gate = Callable[[Deployment, Plan, Facts], list[Finding]]
LAYOUT = Origin("layout", "case.yaml:1")
RULE = Origin("rule", "some-rule")
GIVEN = Provides((), (), ())
PATCHES = Path(__file__).resolve().parents[3] / "patches"
PACKAGE = "/usr/local/lib/python3.12/dist-packages/vllm"

_BASE = Deployment(
    name="case",
    status="testing",
    missing_proof="",
    runtime="docker",
    project_root="/p",
    model=Model("/models/m", None, None, None),
    engine=Engine("engine:1.0", None, "0.30.0", "cuda", None, None, PACKAGE, GIVEN),
    parallel=Parallel(1, 1, None),
    hardware=None,
    container=Container("all", None, "host", None, "127.0.0.1", 8000, 8000, "no", 10, 1, ()),
    partition=None,
    speculation=Speculation("none", "auto", 0, LAYOUT),
    engine_args=(),
    env=(),
    secrets=(),
    mounts=(),
    patches=(),
    unknown_patches=(),
    overlay=None,
    waivers=(),
    probes=ProbeSettings(1, (), "chat", 1),
    wait_timeout_s=1800,
    notes=(),
    image_origin=LAYOUT,
    container_origins={},
)


def flags(*texts: str, origin: Origin = LAYOUT) -> tuple[Argument, ...]:
    """Engine flags as they would be typed: `--block-size 64`."""
    return tuple(Argument(tuple(text.split()), origin, passthrough=True) for text in texts)


def shipped(*names: str) -> tuple[Patch, ...]:
    """Patches of this project."""
    return tuple(read_patch(PATCHES / name) for name in names)


def mount(target: str, source: str = "/srv/x", *, readonly: bool = True, purpose: Any = "user") -> Mount:
    return Mount(source, target, readonly, purpose, LAYOUT)


def deployed(
    *serve: str,
    tensor: int = 1,
    pipeline: int = 1,
    env: Mapping[str, str] | None = None,
    engine: Mapping[str, Any] | None = None,
    container: Mapping[str, Any] | None = None,
    hardware: tuple[int, str, float] | None = None,
    **changes: Any,
) -> Deployment:
    """A deployment with these flags and variables; `changes` replace its other fields."""
    return replace(
        _BASE,
        engine_args=flags(*serve),
        parallel=Parallel(tensor, pipeline, None),
        env=tuple(EnvPair(name, value, LAYOUT) for name, value in (env or {}).items()),
        engine=replace(_BASE.engine, **(engine or {})),
        container=replace(_BASE.container, **(container or {})),
        hardware=Hardware(*hardware) if hardware else None,
        **changes,
    )


def said(gate: Gate, deployment: Deployment, facts: Facts | None = None, plan: Plan | None = None) -> list[str]:
    """What a gate says, one line each: its name, verdict and message."""
    found = gate(deployment, plan or Plan(), facts or Facts())
    return [f"{finding.gate} {finding.verdict}: {finding.message}" for finding in found]


def fixes(gate: Gate, deployment: Deployment, facts: Facts | None = None, plan: Plan | None = None) -> list[str]:
    return [finding.fix for finding in gate(deployment, plan or Plan(), facts or Facts())]
