"""What a server says about itself in one look: loading, ready, dead, or somebody else's; no waiting here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from shardwright.connect.http import Reply

PROBE_TIMEOUT_S = 5.0
TOKEN_TIMEOUT_S = 30.0
"""For one attempt; a first request that compiles kernels may take several."""

_DETAIL_CHARS = 300
_BUSY = 429
_UNAUTHORISED = (401, 403)


class Http(Protocol):
    """The part of the HTTP client that readiness needs; tests bring their own."""

    def get(self, url: str, timeout_s: float) -> Reply: ...

    def post(self, url: str, payload: Mapping[str, Any], timeout_s: float) -> Reply: ...


class Verdict(Enum):
    LOADING = "nobody answers yet"
    NO_TOKEN_YET = "the server is up and no token has come yet"
    READY = "one token was generated"
    DEAD = "the engine behind the server is dead"
    REQUEST_FAILED = "the first request failed"
    WRONG_MODEL = "the server does not serve this model"
    FOREIGN = "the server is not this engine"
    UNAUTHORISED = "the server wants an API key"


@dataclass(frozen=True)
class Look:
    """One look at a server; `detail` is what it said."""

    verdict: Verdict
    detail: str = ""


def look(http: Http, base_url: str, model: str, token_timeout_s: float = TOKEN_TIMEOUT_S) -> Look:
    """Health, then the name of the model, then one token at temperature 0; stops at the first that is not there.

    Health alone is not enough: it answers 200 while requests fail or hang. `token_timeout_s` is in seconds.
    """
    return _health(http, base_url) or _models(http, base_url, model) or _token(http, base_url, model, token_timeout_s)


def _health(http: Http, base_url: str) -> Look | None:
    reply = http.get(f"{base_url}/health", PROBE_TIMEOUT_S)
    if reply.outcome != "answered":
        return Look(Verdict.LOADING, reply.error)
    if reply.status == 200:
        return None
    if reply.status == 503:
        return Look(Verdict.DEAD, "/health answers 503")
    return Look(Verdict.FOREIGN, f"/health answers {reply.status}")


def _models(http: Http, base_url: str, model: str) -> Look | None:
    reply = http.get(f"{base_url}/v1/models", PROBE_TIMEOUT_S)
    if reply.outcome != "answered":
        return Look(Verdict.LOADING, reply.error)
    if reply.status in _UNAUTHORISED:
        return Look(Verdict.UNAUTHORISED, f"/v1/models answers {reply.status}")
    names = _model_names(reply.data) if reply.status == 200 else None
    if names is None:
        return Look(Verdict.FOREIGN, f"/v1/models answers {reply.status} without a list of models")
    if model not in names:
        return Look(Verdict.WRONG_MODEL, f"it serves {', '.join(names) or 'nothing'}")
    return None


def _model_names(data: Any) -> list[str] | None:
    rows = data.get("data") if isinstance(data, Mapping) else None
    if not isinstance(rows, list):
        return None
    return [str(row["id"]) for row in rows if isinstance(row, Mapping) and "id" in row]


def _token(http: Http, base_url: str, model: str, timeout_s: float) -> Look:
    payload = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    reply = http.post(f"{base_url}/v1/completions", payload, timeout_s)
    if reply.outcome == "timeout":
        return Look(Verdict.NO_TOKEN_YET, reply.error)
    if reply.outcome != "answered":
        return Look(Verdict.REQUEST_FAILED, reply.error)
    if reply.status == _BUSY:
        return Look(Verdict.NO_TOKEN_YET, "the server is busy (429)")
    if reply.status == 200 and _completion_tokens(reply.data) > 0:
        return Look(Verdict.READY)
    said = " ".join(reply.text.split())[:_DETAIL_CHARS]
    return Look(Verdict.REQUEST_FAILED, f"/v1/completions answers {reply.status}: {said}")


def _completion_tokens(data: Any) -> int:
    usage = data.get("usage") if isinstance(data, Mapping) else None
    count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return count if isinstance(count, int) else 0
