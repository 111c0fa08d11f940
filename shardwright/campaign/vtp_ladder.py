"""The ladder of proof for odd tensor parallelism: what stands, on which hardware, and what may be tried next."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from shardwright.connect.atomic import write_file
from shardwright.errors import DeployError

State = Literal["green", "red", "open", "stale"]


class Rung(Struct, frozen=True):
    """One claim. `needs` says how it is tried: by computing, by a check in the engine's interpreter, or on a server."""

    name: str
    claim: str
    needs: Literal["nothing", "interpreter", "server"]


RUNGS = (
    Rung("plan", "every ratio is whole and every rank holds real work", "nothing"),
    Rung("loader-bytes", "the engine's own loaders cut every tensor where the plan says", "interpreter"),
    Rung("attention-padding", "virtual heads contribute exactly zero", "interpreter"),
    Rung("moe-numerics", "the summed ranks compute what the whole experts compute", "interpreter"),
    Rung("parity", "MTP off: greedy tokens and logprobs agree with a TP that divides, on this hardware", "server"),
    Rung("graph-replay", "the same request again and again gives the same tokens, with graphs on", "server"),
    Rung("mtp", "MTP on: drafts are accepted and the final tokens are those without it", "server"),
    Rung("speed", "tokens per second of an engine that is known to be right", "server"),
)


class Evidence(Struct, frozen=True):
    """What came of trying a rung; `subject` ties it to the plan, the patch and the engine version."""

    rung: str
    passed: bool
    where: str
    detail: str
    subject: str


class Standing(Struct, frozen=True):
    rung: Rung
    state: State
    where: str
    detail: str


def subject_of(entry: Mapping[str, object], patch_digest: str, vllm: str) -> str:
    """What evidence is about: it says nothing about another plan, patch or engine version."""
    text = json.dumps([entry, patch_digest, vllm], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_ladder(file: Path, subject: str) -> tuple[Standing, ...]:
    """Where each rung stands; evidence about another subject is stale."""
    kept = {evidence.rung: evidence for evidence in _read(file)}
    standings = []
    for rung in RUNGS:
        evidence = kept.get(rung.name)
        if evidence is None:
            standings.append(Standing(rung, "open", "", ""))
        elif evidence.subject != subject:
            standings.append(Standing(rung, "stale", evidence.where, "of another plan, patch or engine version"))
        else:
            state: State = "green" if evidence.passed else "red"
            standings.append(Standing(rung, state, evidence.where, evidence.detail))
    return tuple(standings)


def keep(file: Path, evidence: Evidence) -> None:
    """Store what came of a rung, in place of what was known of it."""
    others = [old for old in _read(file) if old.rung != evidence.rung]
    write_file(file, msgspec.json.format(msgspec.json.encode([*others, evidence])) + b"\n")


def require_below(standings: tuple[Standing, ...], name: str) -> None:
    """DeployError when a rung below `name` is not green."""
    for standing in standings:
        if standing.rung.name == name:
            return
        if standing.state != "green":
            raise DeployError(
                f"the rung {name} may not be tried: {standing.rung.name} is {standing.state}",
                why=f"not shown yet: {standing.rung.claim}; what stands on it would mean nothing",
                fix="deploy vtp qualify LAYOUT shows the ladder and tries the rungs that need no server",
            )


def _read(file: Path) -> list[Evidence]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Evidence])
    except FileNotFoundError:
        return []
    except (msgspec.DecodeError, OSError) as error:
        raise DeployError(f"the evidence in {file} cannot be read: {error}", fix=f"remove {file}") from None
