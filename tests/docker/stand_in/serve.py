"""What runs in the container in the engine's place: the bundled faulty server, healthy, reachable from outside."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

from shardwright.probes.faulty import server


class _Reachable(server._Httpd):
    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        super().__init__(("0.0.0.0", address[1]), handler)


def main() -> None:
    server._Httpd = _Reachable
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    print("INFO 12-01 00:00:00 [core.py:101] Initializing a V1 LLM engine (v0.30.0)", flush=True)
    with server.FaultyServer("healthy", port=port):
        print("INFO:     Application startup complete.", flush=True)
        ended.wait()


main()
