"""A small OpenAI-compatible server that is healthy, or has exactly one fault. Standard library only."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "stub-model"

MODES = (
    "healthy",
    "loop",
    "reasoning-loop",
    "runaway",
    "garbage",
    "one-character",
    "empty",
    "reasoning-only",
    "http-500",
    "some-http-500",
    "some-loops",
    "truncated",
    "no-finish",
    "error-in-stream",
    "error-with-200",
    "not-json",
    "ends-early",
    "u2028",
    "byte-by-byte",
    "no-ids",
    "strict",
    "wrong-usage",
    "no-usage",
    "stream-differs",
    "changes-its-mind",
    "wrong-model",
    "no-template",
    "no-health",
    "ignores-max-tokens",
    "stalls",
    "refuses-key",
)
_ENDLESS = {"loop", "reasoning-loop", "runaway", "one-character"}
_EXTENSIONS = {"top_k", "min_p", "repetition_penalty", "return_token_ids"}
_LOOP = ["the", "same", "three", "words"]


@dataclass
class Script:
    """What one request is answered with."""

    text: list[str]
    reasoning: list[str] = field(default_factory=list)
    finish: str | None = "stop"


class StubServer:
    """Serves on a free port of the loopback address while its `with` block runs."""

    def __init__(self, mode: str = "healthy") -> None:
        assert mode in MODES, mode
        self.mode = mode
        self.started_at: str | None = "1000.5"
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.given_up = 0
        self.running = 0
        self.reasoning_name = "reasoning"
        self.lock = threading.Lock()
        self.leaving = threading.Event()
        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._httpd.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._httpd.server_address[1]}"

    def __enter__(self) -> StubServer:
        threading.Thread(target=self._httpd.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leaving.set()
        self._httpd.shutdown()
        self._httpd.server_close()

    def script(self, body: dict[str, Any], number: int) -> Script:
        mode = self.mode
        if mode == "some-loops":
            mode = "loop" if body["seed"] % 4 == 0 else "healthy"
        limit = 4000 if mode == "ignores-max-tokens" else body["max_tokens"]
        if mode in ("loop", "reasoning-loop"):
            words = ["Right", " answer", "."] + [f" {_LOOP[i % 4]}" for i in range(limit)]
            words = words[:limit]
            return Script([], words, "length") if mode == "reasoning-loop" else Script(words, finish="length")
        if mode in ("runaway", "ignores-max-tokens"):
            return Script([f" word{i}" for i in range(limit)], finish="length")
        if mode == "one-character":
            return Script(["!"] * min(limit, 100))
        if mode == "empty":
            return Script([])
        if mode == "reasoning-only":
            return Script([], ["I", " think", " Paris."])
        words = ["Paris", " is", " the", " capital", " é", " 中文", " 👋", "."]
        if "17 plus 25" in json.dumps(body.get("messages", body.get("prompt"))):
            words[0] = "42"
        if mode == "garbage":
            words = ["Par", "\ufffd", "is."]
        if mode == "u2028":
            words = [words[0], "\u2028", "is", "\u0085", " in", "\r\n\n", "data: France."]
        if mode == "stream-differs" and body["stream"]:
            words[1] = " was"
        if mode == "changes-its-mind" and number % 2:
            words[0] = "Rome"
        cut = words[:limit]
        return Script(cut, finish="stop" if len(cut) == len(words) else "length")


def _handler_for(stub: StubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/health" and stub.mode != "no-health":
                self._send(200, b"")
            elif self.path == "/version" and stub.mode != "no-health":
                self._send_json(200, {"version": "0.30.0"})
            elif self.path == "/metrics" and stub.started_at is not None:
                self._send(200, f"# TYPE\nprocess_start_time_seconds {stub.started_at}\n".encode())
            elif self.path == "/v1/models":
                name = "another-model" if stub.mode == "wrong-model" else MODEL
                self._send_json(200, {"object": "list", "data": [{"id": name, "max_model_len": 4096}]})
            else:
                self._send_json(404, {"error": {"message": "Not Found"}})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with stub.lock:
                number = len(stub.requests)
                stub.requests.append(body)
                stub.headers.append(dict(self.headers))
                stub.running += 1
            try:
                self._answer(body, number)
            except OSError:
                with stub.lock:
                    stub.given_up += 1
            finally:
                with stub.lock:
                    stub.running -= 1

        def _answer(self, body: dict[str, Any], number: int) -> None:
            if stub.mode == "refuses-key":
                key = self.headers.get("Authorization", "")
                self._send_json(401, {"error": {"message": f"Incorrect API key provided: {key}"}})
            elif stub.mode == "http-500" or (stub.mode == "some-http-500" and number % 3 == 1):
                self._send_json(500, {"error": {"message": "EngineCore encountered an issue"}})
            elif stub.mode == "strict" and _EXTENSIONS & set(body):
                self._send_json(400, {"error": {"message": "Unrecognized request argument supplied: top_k"}})
            elif stub.mode == "no-template" and "messages" in body:
                self._send_json(400, {"error": {"message": "you must provide a chat template"}})
            elif stub.mode == "stalls":
                stub.leaving.wait(60)
            elif stub.mode == "error-with-200":
                self._send_json(200, {"error": {"message": "worker died"}})
            elif stub.mode == "not-json":
                self._send(200, b"<html>gateway</html>")
            elif body["stream"]:
                self._stream(body, stub.script(body, number))
            else:
                self._whole(body, stub.script(body, number))

        def _whole(self, body: dict[str, Any], script: Script) -> None:
            chat = "messages" in body
            text, reasoning = "".join(script.text), "".join(script.reasoning)
            choice: dict[str, Any] = {"index": 0, "finish_reason": script.finish}
            if chat:
                choice["message"] = {
                    "role": "assistant",
                    "content": text or None,
                    stub.reasoning_name: reasoning or None,
                }
            else:
                choice["text"] = reasoning + text
            if self._gives_ids(body):
                choice["token_ids"] = list(range(_count(script)))
            content = {"object": "answer", "choices": [choice], "usage": _usage(script)}
            payload = json.dumps(content, ensure_ascii=False).encode()
            self._send(200, payload, claim=len(payload) + (50 if stub.mode == "ends-early" else 0))

        def _stream(self, body: dict[str, Any], script: Script) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number, event in enumerate(self._events(body, script)):
                self._chunk(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n")
                if number > 250 and stub.mode in _ENDLESS:
                    time.sleep(0.001)
            if stub.mode not in ("truncated", "ends-early"):
                self._chunk(b"data: [DONE]\n\n")
            if stub.mode != "ends-early":
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = True

        def _events(self, body: dict[str, Any], script: Script) -> Iterator[dict[str, Any]]:
            chat = "messages" in body
            if chat:
                yield _event({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
                time.sleep(0.02)
            ids = {}
            for place, (name, word) in enumerate(
                [(stub.reasoning_name, w) for w in script.reasoning] + [("content", w) for w in script.text]
            ):
                choice: dict[str, Any] = {"index": 0, "finish_reason": None}
                choice.update({"delta": {name: word}} if chat else {"text": word})
                if self._gives_ids(body):
                    choice["token_ids"] = [ids.setdefault(word, len(ids))]
                if stub.mode == "error-in-stream" and place == 2:
                    yield {"error": {"message": "worker died", "code": 500}}
                    return
                yield _event(choice)
            finish = None if stub.mode == "no-finish" else script.finish
            yield _event({"index": 0, "finish_reason": finish} | ({"delta": {}} if chat else {"text": ""}))
            if stub.mode != "no-usage":
                usage = _usage(script)
                if stub.mode == "wrong-usage":
                    usage["total_tokens"] += 1
                yield {"choices": [], "usage": usage}

        def _gives_ids(self, body: dict[str, Any]) -> bool:
            return bool(body.get("return_token_ids")) and stub.mode != "no-ids"

        def _chunk(self, data: bytes) -> None:
            parts = [data[i : i + 1] for i in range(len(data))] if stub.mode == "byte-by-byte" else [data]
            for part in parts:
                self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

        def _send_json(self, status: int, content: Any) -> None:
            self._send(status, json.dumps(content).encode())

        def _send(self, status: int, content: bytes, claim: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(claim or len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = True

    return Handler


def _event(choice: dict[str, Any]) -> dict[str, Any]:
    return {"object": "chunk", "choices": [choice]}


def _count(script: Script) -> int:
    return len(script.text) + len(script.reasoning)


def _usage(script: Script) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": _count(script), "total_tokens": 7 + _count(script)}
