"""`vllm serve` of the stand-in: the bundled faulty server behind a log like vLLM's, in the mode of STUB_MODE."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def main() -> None:
    from dataclasses import replace

    from shardwright.probes.faulty import server
    from shardwright.probes.faulty.behaviour import HEALTHY
    from shardwright.probes.faulty.generated import Scores

    arguments = dict(zip(sys.argv[2:], sys.argv[3:], strict=False))
    mode = os.environ.get("STUB_MODE", "healthy")
    print("INFO 12-01 00:00:00 [core.py:101] Initializing a V1 LLM engine (v0.30.0)", flush=True)
    if mode == "dies":
        print("RuntimeError: Engine core initialization failed.", flush=True)
        sys.exit(1)
    if mode == "slow-start":
        time.sleep(60)
    if mode == "boot-weights":
        # Memory as this boot found it: another model on each, the same within one.
        found = Scores(skew=time.time_ns() % 1_000_000 + 1)
        server.behaviour_of = lambda _: replace(HEALTHY, scores=lambda *_: found)
    if mode == "dies-at-long-prompts":
        server.behaviour_of = lambda _: replace(HEALTHY, refuses=lambda asked: _end_at_once(asked.prompt_tokens > 512))
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with server.FaultyServer(mode, port=int(arguments["--port"])):
        print("INFO:     Application startup complete.", flush=True)
        ended.wait()


def _end_at_once(really: bool) -> None:
    if really:
        os._exit(1)


main()
