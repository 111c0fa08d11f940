"""Short requests: every outcome is a value, no proxy is used, and the key stays hidden."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shardwright.connect.http import JsonClient
from shardwright.errors import UsageError


class _Echo(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(b"not json" if self.path == "/text" else json.dumps({"path": self.path}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(json.dumps({"got": body, "auth": self.headers["Authorization"]}).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@contextmanager
def raw_server(answer: bytes | None) -> Iterator[str]:
    """A server that sends these bytes and closes; None stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                if answer is None:
                    done.wait(10)
                else:
                    connection.sendall(answer)

        done = threading.Event()
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        done.set()


def test_json_goes_both_ways_with_the_key_as_bearer(url: str) -> None:
    reply = JsonClient("s3cret").post(f"{url}/v1/completions", {"max_tokens": 1}, 5)
    assert reply.outcome == "answered"
    assert reply.data == {"got": {"max_tokens": 1}, "auth": "Bearer s3cret"}


def test_a_body_that_is_not_json_is_kept_as_text(url: str) -> None:
    reply = JsonClient().get(f"{url}/text", 5)
    assert (reply.status, reply.data, reply.text) == (200, None, "not json")


def test_a_proxy_of_the_environment_is_not_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert JsonClient().get(f"{url}/health", 5).status == 200


def test_nobody_there_is_refused(free_port: int) -> None:
    assert JsonClient().get(f"http://127.0.0.1:{free_port}/health", 5).outcome == "refused"


def test_silence_is_a_timeout() -> None:
    with raw_server(None) as url:
        assert JsonClient().get(f"{url}/health", 0.2).outcome == "timeout"


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort"])
def test_what_is_not_http_or_breaks_off_is_broken(answer: bytes) -> None:
    with raw_server(answer) as url:
        assert JsonClient().get(f"{url}/health", 5).outcome == "broken"


@pytest.mark.parametrize("key", ["with space", "two\nlines", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        JsonClient(key)
    assert key not in f"{caught.value.what} {caught.value.why}"
