"""A stand-in for the engine: plays a recorded log and answers like the server in it, or fails in one of its ways."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Does not notice the end of its parent, and notes that it was asked to end.
WORKER = """
import signal, sys, time
from pathlib import Path
def end(*_):
    Path(sys.argv[1]).write_text("asked to end")
    sys.exit()
signal.signal(signal.SIGTERM, end)
time.sleep(600)
"""
READY_LINE = "Application startup complete."


def main() -> None:
    options = _options()
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _number in range(options.workers):
        subprocess.Popen([sys.executable, "-c", WORKER, str(options.worker_note)])
    lines = options.log.read_text().splitlines() if options.log else []
    before, after = _split(lines) if options.serve != "nothing" else (lines, [])
    _play(before, options.pace)
    if options.serve != "nothing":
        server = ThreadingHTTPServer(("127.0.0.1", options.port), _Handler)
        server.options, server.after = options, after  # type: ignore[attr-defined]
        server.serve_forever()
    if options.end is None:
        time.sleep(600)
    elif options.end < 0:
        signal.raise_signal(-options.end)
    sys.exit(options.end)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="needle-tiny")
    parser.add_argument("--serve", choices=("well", "token-500", "no-token", "nothing"), default="nothing")
    parser.add_argument("--end", type=int, help="exit status, or minus a signal; without it the process stays")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--worker-note", type=Path, default="/dev/null")
    return parser.parse_args()


def _split(lines: list[str]) -> tuple[list[str], list[str]]:
    """What is logged until the server is up, and what comes after the first request."""
    end = next((i for i, line in enumerate(lines, 1) if READY_LINE in line), len(lines))
    return lines[:end], lines[end:]


def _play(lines: list[str], pace: float) -> None:
    for line in lines:
        print(line, flush=True)
        time.sleep(pace)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        options = self.server.options  # type: ignore[attr-defined]
        answers = {"/health": {}, "/v1/models": {"object": "list", "data": [{"id": options.model}]}}
        self._answer(200 if self.path in answers else 404, answers.get(self.path, {}))

    def do_POST(self) -> None:
        options = self.server.options  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers["Content-Length"]))
        if options.serve == "no-token":
            time.sleep(600)
        if options.serve == "token-500":
            _play(self.server.after, 0.0)  # type: ignore[attr-defined]
            self._answer(500, {"error": {"message": "EngineCore encountered an issue."}})
            self.server.shutdown()
            return
        self._answer(200, {"choices": [{"text": "llo"}], "usage": {"completion_tokens": 1}})

    def _answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


if __name__ == "__main__":
    main()
