"""HTTP to one server, over the standard library: whole replies, streamed bytes with their time of arrival, and errors.

What goes wrong between here and the model is a `TransportError`. It is never the model's failure, and never a pass.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from shardwright.errors import DeployError, ExitCode, UsageError

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

TransportKind = Literal["connect", "timeout", "broken", "truncated", "protocol", "http", "server"]

REDACTED = "[redacted]"
_MAX_BODY_BYTES = 64 * 1024 * 1024
_READ_BYTES = 64 * 1024


class TransportError(DeployError):
    """A request that brought no complete answer.

    `kind`: connect (nobody answers), timeout (no byte came in time), broken (the connection was lost), truncated (the
    stream ended early), protocol (not what an OpenAI-compatible server sends), http (an error status), server (an
    error inside a stream). `status` is the HTTP status, where there was one.
    """

    def __init__(self, kind: TransportKind, detail: str, *, status: int | None = None, fix: str = "") -> None:
        super().__init__(detail, fix=fix, code=ExitCode.HARNESS)
        self.kind = kind
        self.detail = detail
        self.status = status


@dataclass(frozen=True)
class Endpoint:
    """One server. `base_url` is without `/v1`; the key is never shown, logged or compared.

    `idle_timeout_s` is the longest wait for the next byte, `total_timeout_s` the longest for a whole answer.
    """

    base_url: str
    api_key: str | None = field(default=None, repr=False, compare=False)
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 120.0
    total_timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "base_url", normalise_base_url(self.base_url))
        key = self.api_key
        if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
            raise UsageError(
                "the API key cannot be sent",
                why="it is empty or holds blanks, line ends or characters outside ASCII",
                fix="set the variable that --api-key-env names to the bare key",
            )

    def hide(self, text: str) -> str:
        """`text` without the key, for servers that repeat it in what they answer."""
        return text.replace(self.api_key, REDACTED) if self.api_key else text


@dataclass(frozen=True)
class HttpReply:
    """A whole reply with its status, whatever that was."""

    status: int
    body: bytes
    endpoint: Endpoint

    def json(self) -> Any:
        """The decoded body. Raises TransportError(protocol) where it is not JSON."""
        return decode_json(self.body, self.endpoint)

    def error(self) -> TransportError:
        """The error that this status stands for."""
        return http_error(self.status, self.body, self.endpoint)


def normalise_base_url(text: str) -> str:
    """`host:port`, a URL, or a URL with `/v1`, as a plain URL without `/v1`. Raises UsageError for anything else."""
    from urllib.parse import urlsplit

    url = text.strip() if "://" in text else f"http://{text.strip()}"
    url = url.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment or not url.isascii():
        raise UsageError("the base URL is not one of a server", fix="write --base-url http://HOST:PORT")
    if any(c.isspace() or not c.isprintable() for c in url):
        raise UsageError("the base URL holds blanks or control characters", fix="write --base-url http://HOST:PORT")
    if "@" in parts.netloc:
        raise UsageError(
            "the base URL carries a user or password",
            why="it would end up in records and reports",
            fix="give the key by name: --api-key-env NAME",
        )
    return url


def get(endpoint: Endpoint, path: str) -> HttpReply:
    """GET one path. Raises TransportError where no whole reply came; an error status is a reply."""
    return _whole(endpoint, "GET", path, None)


def post_json(endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> HttpReply:
    """POST a JSON body. Raises TransportError where no whole reply came; an error status is a reply."""
    return _whole(endpoint, "POST", path, body)


class ByteStream:
    """A reply whose bytes are read as they arrive. Leaving the `with` block closes the connection at once.

    Closing before the end is how a request is given up: the server sees the connection go and frees the request.
    """

    def __init__(self, endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> None:
        self._endpoint = endpoint
        self.sent_at_s = time.perf_counter()
        self._connection, self._response = _open(endpoint, "POST", path, body)
        if self._response.status != 200:
            try:
                refusal = self._read_error()
            finally:
                self.close()
            raise http_error(self._response.status, refusal, endpoint)

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def chunks(self) -> Iterator[tuple[float, bytes]]:
        """Pairs of arrival time (seconds, monotonic) and bytes, to the end. Raises TransportError."""
        while True:
            try:
                chunk = self._response.read1(_READ_BYTES)
            except Exception as error:
                raise transport_error(error, self._endpoint, connected=True) from None
            now = time.perf_counter()
            if not chunk:
                return
            if now - self.sent_at_s > self._endpoint.total_timeout_s:
                raise TransportError("timeout", f"no complete answer in {self._endpoint.total_timeout_s:g} s")
            yield now, chunk

    def close(self) -> None:
        self._response.close()
        self._connection.close()

    def _read_error(self) -> bytes:
        try:
            return self._response.read(_READ_BYTES)
        except Exception as error:
            raise transport_error(error, self._endpoint, connected=True) from None


def decode_json(body: bytes, endpoint: Endpoint) -> Any:
    """JSON from UTF-8 bytes. Raises TransportError(protocol) where it is not."""
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        excerpt = endpoint.hide(one_line(body.decode("utf-8", "replace")))
        raise TransportError(
            "protocol", f"the server sent what is not JSON: {excerpt}", fix="correct the address: is it a vLLM server?"
        ) from None


def one_line(text: str) -> str:
    """Text of a server, short and on one line."""
    return " ".join(text.split())[:300] or "(empty)"


def error_message(error: Any, endpoint: Endpoint) -> str:
    """The message of an OpenAI-style error, or of whatever was sent instead, on one line."""
    if isinstance(error, dict):
        error = error.get("error", error)
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return endpoint.hide(one_line(str(error)))


def http_error(status: int, body: bytes, endpoint: Endpoint) -> TransportError:
    """The error that an HTTP status and its body stand for."""
    try:
        text = error_message(json.loads(body.decode("utf-8")), endpoint)
    except (ValueError, RecursionError):
        text = endpoint.hide(one_line(body.decode("utf-8", "replace")))
    fix = ""
    if status in (401, 403):
        fix = "name the variable that holds the key: --api-key-env NAME"
    return TransportError("http", f"HTTP {status}: {text}", status=status, fix=fix)


def _whole(endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None) -> HttpReply:
    connection, response = _open(endpoint, method, path, body)
    try:
        content = response.read(_MAX_BODY_BYTES + 1)
    except Exception as error:
        raise transport_error(error, endpoint, connected=True) from None
    finally:
        response.close()
        connection.close()
    if len(content) > _MAX_BODY_BYTES:
        raise TransportError("protocol", f"{path} sent more than {_MAX_BODY_BYTES} bytes")
    if response.length:
        raise TransportError("truncated", f"{path} ended {response.length} bytes early")
    return HttpReply(response.status, content, endpoint)


def _open(
    endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None
) -> tuple[HTTPConnection, HTTPResponse]:
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    parts = urlsplit(endpoint.base_url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=endpoint.connect_timeout_s)
    headers = {"Accept": "*/*", "Connection": "close"}
    if endpoint.api_key is not None:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    content = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        content = json.dumps(body).encode("ascii")
    connected = False
    try:
        connection.connect()
        connected = True
        connection.sock.settimeout(endpoint.idle_timeout_s)
        connection.request(method, parts.path + path, body=content, headers=headers)
        return connection, connection.getresponse()
    except Exception as error:
        connection.close()
        raise transport_error(error, endpoint, connected=connected) from None


def transport_error(error: Exception, endpoint: Endpoint, *, connected: bool) -> TransportError:
    """Say in one class what the layers below raise. What they do not raise is a fault of ours and passes through."""
    import socket
    import ssl
    from http.client import HTTPException, IncompleteRead, RemoteDisconnected

    where = endpoint.base_url
    if isinstance(error, TimeoutError):
        if connected:
            return TransportError("timeout", f"{where} sent nothing for {endpoint.idle_timeout_s:g} s")
        return TransportError("connect", f"{where} took no connection in {endpoint.connect_timeout_s:g} s")
    if isinstance(error, ssl.SSLCertVerificationError):
        return TransportError(
            "connect",
            f"{where} shows a certificate that is not trusted: {error.verify_message}",
            fix="set SSL_CERT_FILE to the file of its authority",
        )
    if isinstance(error, ConnectionRefusedError | socket.gaierror):
        return TransportError(
            "connect",
            f"nobody answers at {where} ({error.strerror or error})",
            fix="start the engine (deploy start, deploy wait), or correct the address",
        )
    if isinstance(error, IncompleteRead):
        return TransportError("truncated", f"{where} closed the connection in the middle of the answer")
    if isinstance(error, RemoteDisconnected | ConnectionError):
        return TransportError("broken", f"{where} closed the connection before it answered")
    if isinstance(error, HTTPException):
        return TransportError("protocol", f"{where} does not speak HTTP as expected ({type(error).__name__})")
    if isinstance(error, OSError):
        kind: TransportKind = "broken" if connected else "connect"
        return TransportError(kind, f"{where} cannot be reached ({error.strerror or error})")
    raise error
