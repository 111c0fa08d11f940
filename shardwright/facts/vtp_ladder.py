"""What was shown of odd tensor parallelism for a layout: the rungs of the ladder of proof, and the kept evidence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

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


def evidence_file(state_dir: Path, layout: str) -> Path:
    return state_dir / "vtp" / f"{layout}.json"


def read_evidence(file: Path) -> tuple[Evidence, ...]:
    """What is kept in a file; nothing where there is none. DeployError where it does not read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=tuple[Evidence, ...])
    except FileNotFoundError:
        return ()
    except (msgspec.DecodeError, OSError) as error:
        raise DeployError(f"the evidence in {file} cannot be read: {error}", fix=f"remove {file}") from None


def standings(kept: Iterable[Evidence], subject: str, hardware: str) -> tuple[Standing, ...]:
    """Where each rung stands; evidence about another subject, or of a server on other hardware, is stale."""
    by_rung = {evidence.rung: evidence for evidence in kept}
    found = []
    for rung in RUNGS:
        evidence = by_rung.get(rung.name)
        if evidence is None:
            found.append(Standing(rung, "open", "", ""))
        elif evidence.subject != subject:
            found.append(Standing(rung, "stale", evidence.where, "of another plan, patch or engine version"))
        elif rung.needs == "server" and evidence.where != hardware:
            found.append(Standing(rung, "stale", evidence.where, f"of other hardware than {hardware}"))
        else:
            state: State = "green" if evidence.passed else "red"
            found.append(Standing(rung, state, evidence.where, evidence.detail))
    return tuple(found)
