"""From a log line to the phase of start-up that it shows; pure. Texts of vLLM 0.28 to 0.33."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from shardwright.runtime.loglines import LogLine, parse_line


class Phase(StrEnum):
    """Stations of an engine's start, in their order."""

    STARTING = "starting"
    WEIGHTS = "weights"
    PROFILE = "profile"
    COMPILE = "compile"
    KV_ALLOCATION = "kv-allocation"
    WARMUP = "warmup"
    GRAPHS = "graphs"
    API = "api"
    FIRST_TOKEN = "first-token"
    READY = "ready"


@dataclass(frozen=True)
class Sighting:
    """A line that shows a phase: by which worker (empty without a tag), and what it said."""

    phase: Phase
    worker: str
    message: str


# Where each text is logged in vLLM 0.30: model runners (load, graphs), weight_utils and default_loader (weights),
# compilation/ (compile), gpu_worker and kv_cache_utils (KV pool), model_executor/warmup (kernels), core.py (init),
# launchers/api_server (api).
_SIGNS: tuple[tuple[Phase, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        (Phase.STARTING, r"^non-default args: |^Initializing a V1 LLM engine "),
        (Phase.WEIGHTS, r"^Starting to load model |^Loading model from scratch|^Filesystem type for checkpoints: "),
        (Phase.WEIGHTS, r"^Loading (?:safetensors|pt|.*) checkpoint shards: |^Loading weights took "),
        (Phase.PROFILE, r"^Model loading took |^Initial profiling/warmup run took "),
        (Phase.COMPILE, r"^Using cache directory: .* for vLLM's torch\.compile|^Dynamo bytecode transform time: "),
        (Phase.COMPILE, r"^Compiling a graph for |^Cache the graph of |^torch\.compile takes |^torch\.compile took "),
        (Phase.COMPILE, r"^Directly load (?:the compiled graph|AOT compilation)"),
        (Phase.KV_ALLOCATION, r"^Available KV cache memory: |^[A-Z]+ KV cache size: |^Overriding num_gpu_blocks="),
        (Phase.KV_ALLOCATION, r"^Explicitly set \(.*\) GiB for KV cache "),
        (Phase.WARMUP, r"^Running FlashInfer autotune |^Autotuning FlashInfer |^Warming up |^JIT kernel warmup "),
        (Phase.GRAPHS, r"^Capturing CUDA graph|^Graph capturing finished in "),
        (Phase.API, r"^init engine \(profile, create kv cache, warmup model\) took "),
        (Phase.API, r"^Supported tasks: |^Starting vLLM (?:API )?server |^Application startup complete\."),
    )
)

_FATAL = re.compile(
    r"^EngineCore failed to start\.|^EngineCore encountered a fatal error\.|^Engine core initialization failed\."
    r"|^RuntimeError: Engine core initialization failed\.|EngineDeadError: "
)


# Devices differ in what comes first inside the middle group: GPUs compile while they profile, CPUs after the KV pool.
_GROUPS: tuple[frozenset[Phase], ...] = (
    frozenset({Phase.STARTING}),
    frozenset({Phase.WEIGHTS}),
    frozenset({Phase.PROFILE, Phase.COMPILE, Phase.KV_ALLOCATION, Phase.WARMUP, Phase.GRAPHS}),
    frozenset({Phase.API}),
    frozenset({Phase.FIRST_TOKEN}),
    frozenset({Phase.READY}),
)


def advance(current: Phase, seen: Phase) -> Phase:
    """The phase of the whole engine after `seen`: a slower worker does not take it back to an earlier station."""
    return seen if _group(seen) >= _group(current) else current


def phase_of(lines: Iterable[str]) -> Phase:
    """The phase of the last start in a log, which a container that restarts goes on writing."""
    phase = Phase.STARTING
    for sighting in filter(None, map(see_phase, lines)):
        begins = sighting.phase is Phase.STARTING
        phase = Phase.STARTING if begins else advance(phase, sighting.phase)
    return phase


def _group(phase: Phase) -> int:
    return next(index for index, group in enumerate(_GROUPS) if phase in group)


def see_phase(line: str) -> Sighting | None:
    """The phase that one raw log line shows, or None."""
    parsed = parse_line(line)
    for phase, pattern in _SIGNS:
        if pattern.search(parsed.message):
            return Sighting(phase, parsed.worker, parsed.message)
    return None


def is_fatal(line: str) -> bool:
    """Whether the line says that the engine core is dead, whatever the processes around it still do."""
    parsed: LogLine = parse_line(line)
    return parsed.level not in ("DEBUG", "INFO", "WARNING") and _FATAL.search(parsed.message) is not None
