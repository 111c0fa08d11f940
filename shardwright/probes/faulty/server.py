"""The sockets of the faulty server: HTTP/1.1 on a free port of the loopback address."""

from __future__ import annotations

import json
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shardwright.probes.faulty.asked import Api, Asked, RefusedError, read_request
from shardwright.probes.faulty.behaviour import Behaviour, Sizes
from shardwright.probes.faulty.engine import Engine, Job
from shardwright.probes.faulty.faults import behaviour_of
from shardwright.probes.faulty.generated import Generated
from shardwright.probes.faulty.payloads import Payloads
from shardwright.probes.faulty.responses import ResponsePayloads
from shardwright.probes.faulty.streaming import ClientGoneError, Pace, client_is_gone, send_events, send_whole

MODEL = "faulty-model"
VERSION = "0.30.0"
_PATHS: dict[str, Api] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
}


class _Httpd(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no news."""


class FaultyServer:
    """Serves while its `with` block runs; `mode` is "healthy" or the id of a fault.

    `port` 0 takes a free one. `step_s` is the time of one engine step, `prefill_s_per_token` of each prompt token that
    the cache does not hold.
    """

    def __init__(
        self,
        mode: str = "healthy",
        seed: int = 1,
        *,
        port: int = 0,
        step_s: float = 0.0,
        prefill_s_per_token: float = 0.0,
        sizes: Sizes | None = None,
        speculative: bool = False,
    ) -> None:
        self.mode = mode
        self.model = MODEL
        self.behaviour: Behaviour = behaviour_of(mode)
        self.created = int(time.time())
        self.engine = Engine(
            MODEL,
            f"{time.time():.3f}",
            behaviour=self.behaviour,
            seed=seed,
            sizes=sizes,
            speculative=speculative or self.behaviour.acceptance is not None,
        )
        self.engine.metrics.running = self.behaviour.always_running
        self.pace = Pace(step_s, prefill_s_per_token)
        self.requests: list[dict[str, Any]] = []
        """The bodies of all generation requests, in their order."""
        self.given_up = 0
        """How many answers their clients did not wait for."""
        self.leaving = threading.Event()
        self.lock = threading.Lock()
        self._httpd = _Httpd(("127.0.0.1", port), _handler_for(self))
        self.base_url = f"http://127.0.0.1:{self._httpd.server_address[1]}"

    @property
    def running(self) -> int:
        """Requests that the engine works on now."""
        return self.engine.metrics.running

    def __enter__(self) -> FaultyServer:
        threading.Thread(target=self._httpd.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leaving.set()
        self._httpd.shutdown()
        self._httpd.server_close()


def _handler_for(server: FaultyServer) -> type[BaseHTTPRequestHandler]:
    engine = server.engine

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate((timestamp or time.time()) + server.behaviour.clock_skew_s, usegmt=True)

        def do_GET(self) -> None:
            if self.path == "/health":
                self._send(200, b"")
            elif self.path == "/version":
                self._send_json(200, {"version": VERSION})
            elif self.path == "/metrics":
                self._send(200, engine.metrics.text(speculative=engine.speculative), "text/plain; version=0.0.4")
            elif self.path == "/v1/models":
                entry = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": MODEL, "created": server.created}
                entry["max_model_len"] = engine.sizes.max_model_len
                self._send_json(200, {"object": "list", "data": [entry]})
            else:
                self._send_json(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            try:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                if not isinstance(body, dict):
                    raise RefusedError(400, "the body must be an object")
                self._route(body)
            except RefusedError as refusal:
                self._refuse(refusal)
            except ValueError:
                self._refuse(RefusedError(400, "the body is not JSON"))
            except (ClientGoneError, OSError):
                self.close_connection = True
                with server.lock:
                    server.given_up += 1

        def _route(self, body: dict[str, Any]) -> None:
            if self.path == "/tokenize":
                self._send_json(200, self._tokenized(body))
            elif self.path == "/detokenize":
                self._send_json(200, {"prompt": engine.tokenizer.decode(body.get("tokens") or ())})
            elif self.path in _PATHS:
                with server.lock:
                    server.requests.append(body)
                self._generate(read_request(_PATHS[self.path], body))
            else:
                self._send_json(404, {"detail": "Not Found"})

        def _tokenized(self, body: dict[str, Any]) -> dict[str, Any]:
            asked = read_request("chat" if "messages" in body else "completions", body)
            if asked.messages and not body.get("add_generation_prompt", True):
                ids = engine.tokenizer.encode_chat(asked.messages, ask=False)
            else:
                ids = engine.prompt_ids(asked)
            return {"count": len(ids), "max_model_len": engine.sizes.max_model_len, "tokens": ids, "token_strs": None}

        def _generate(self, asked: Asked) -> None:
            job = engine.begin(asked)
            finish: str | None = None
            try:
                choices = engine.choices(job)
                server.pace.prefill(job, server.behaviour.least_s, lambda: client_is_gone(self.connection))
                self._answer(job, choices)
                finish = choices[0].finish or "stop"
            finally:
                engine.end(job, finish)

        def _answer(self, job: Job, choices: list[Generated]) -> None:
            created = int(time.time()) + server.behaviour.clock_skew_s
            if job.asked.api == "responses":
                responses = ResponsePayloads(engine, job, MODEL, created)
                if job.asked.stream:
                    send_events(self, server, job, responses.events(choices[0]))
                else:
                    send_whole(self, server, job, responses.whole(choices[0]), choices[0].tokens)
                return
            payloads = Payloads(engine, job, MODEL, created)
            if job.asked.stream:
                send_events(self, server, job, payloads.events(choices))
            else:
                send_whole(self, server, job, payloads.whole(choices), choices[0].tokens)

        def _refuse(self, refusal: RefusedError) -> None:
            kind = "BadRequestError" if refusal.status == 400 else "InternalServerError"
            self._send_json(
                refusal.status, {"error": {"message": refusal.message, "type": kind, "code": refusal.status}}
            )

        def _send_json(self, status: int, content: Any) -> None:
            self._send(status, json.dumps(content).encode(), "application/json")

        def _send(self, status: int, content: bytes, kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler
