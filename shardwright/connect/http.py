"""Short HTTP requests with JSON bodies to one server, without proxies; every outcome is a value, never an exception."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from shardwright.errors import UsageError

Outcome = Literal["answered", "refused", "timeout", "broken"]

_MAX_BODY_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Reply:
    """What came back. `status`, `data` (parsed JSON or None) and `text` are set when `outcome` is `answered`.

    refused: nobody listens. timeout: no answer in time. broken: the connection was lost, or the other side does not
    speak HTTP; `error` then says how.
    """

    outcome: Outcome
    status: int = 0
    data: Any = None
    text: str = ""
    error: str = ""


class JsonClient:
    """Requests to servers on this host or network. The key goes out as a bearer token and is never shown."""

    def __init__(self, api_key: str | None = None) -> None:
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and " " not in api_key):
            raise UsageError("the API key cannot be sent", why="it holds blanks, line ends or characters outside ASCII")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def get(self, url: str, timeout_s: float) -> Reply:
        return self._request("GET", url, None, timeout_s)

    def post(self, url: str, payload: Mapping[str, Any], timeout_s: float) -> Reply:
        return self._request("POST", url, json.dumps(payload).encode(), timeout_s)

    def _request(self, method: str, url: str, body: bytes | None, timeout_s: float) -> Reply:
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            connection.request(method, parts.path or "/", body, headers)
            response = connection.getresponse()
            text = response.read(_MAX_BODY_BYTES).decode(errors="replace")
            if response.length and len(text) < _MAX_BODY_BYTES:
                return Reply("broken", error="the answer broke off")
        except TimeoutError:
            return Reply("timeout", error=f"no answer within {timeout_s:g} s")
        except ConnectionRefusedError:
            return Reply("refused", error="connection refused")
        except (OSError, HTTPException) as error:
            return Reply("broken", error=f"{type(error).__name__}: {error}".rstrip(": "))
        finally:
            connection.close()
        return Reply("answered", response.status, _parsed(text), text)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
