"""Smoke: does the server answer at all, and does it answer the same thing in each of its ways.

Each check has a stable id and ends as PASS, FAIL or SKIP with its reason. A skipped check is never a pass. Requests
are greedy, short, and sent one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shardwright.errors import ExitCode
from shardwright.probes.client import GREEDY, Answer, Api, Request, complete, stream
from shardwright.probes.server import lacks_chat_template, served_models, version_text
from shardwright.probes.wire import Endpoint, HttpReply, TransportError, get

Status = Literal["PASS", "FAIL", "SKIP"]

QUESTION = "What is the capital of France?"
MAX_TOKENS = 32
_KNOWN_FINISHES = ("stop", "length")
_LONGEST_QUOTE = 60


@dataclass(frozen=True)
class Check:
    """One check as it ended; `detail` says what was seen, or why it was skipped."""

    id: str
    status: Status
    detail: str
    elapsed_s: float


@dataclass(frozen=True)
class SmokeResult:
    """All checks in their order."""

    checks: tuple[Check, ...]
    base_url: str
    model: str | None

    def count(self, status: Status) -> int:
        return sum(check.status == status for check in self.checks)

    @property
    def verdict(self) -> Literal["PASS", "FAIL"]:
        """FAIL on any failed check."""
        return "FAIL" if self.count("FAIL") else "PASS"

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.DRIFT if self.verdict == "FAIL" else ExitCode.OK

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "verdict": self.verdict,
            "passed": self.count("PASS"),
            "failed": self.count("FAIL"),
            "skipped": self.count("SKIP"),
            "base_url": self.base_url,
            "model": self.model,
            "checks": [
                {"id": c.id, "status": c.status, "detail": c.detail, "elapsed_s": round(c.elapsed_s, 3)}
                for c in self.checks
            ],
        }


def run_smoke(endpoint: Endpoint, model: str | None, on_check: Callable[[Check], None] | None = None) -> SmokeResult:
    """Run every check. `model` is the name that the server must list; None takes the first that it lists.

    Raises TransportError (exit 4) where nobody answers at the start. Later losses are failed checks.
    """
    session = _Session(endpoint, model)
    checks: list[Check] = []
    for check_id in CHECKS:
        began_s = time.perf_counter()
        status, detail = _run(check_id, session)
        check = Check(check_id, status, endpoint.hide(detail), time.perf_counter() - began_s)
        checks.append(check)
        if on_check is not None:
            on_check(check)
    return SmokeResult(tuple(checks), endpoint.base_url, session.model)


class _FaultSeenError(Exception):
    """The check says no."""


class _CannotAskError(Exception):
    """The check cannot be made here."""


@dataclass
class _Session:
    """What the checks share: the model's name, and the answers that later checks look at again."""

    endpoint: Endpoint
    expected: str | None
    model: str | None = None
    extensions: bool = True
    stalled_in: str | None = None
    apis: list[Api] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    pairs: list[tuple[Answer, Answer]] = field(default_factory=list)
    """The same request answered whole and streamed."""

    def request(self, api: Api, max_tokens: int = MAX_TOKENS) -> Request:
        if self.model is None:
            raise _CannotAskError("the model's name is not known")
        return Request(self.model, QUESTION, api, max_tokens, GREEDY, self.extensions)

    def ask(self, api: Api, max_tokens: int = MAX_TOKENS) -> Answer:
        """One whole answer; a server that refuses fields outside the OpenAI interface is asked without them."""
        request = self.request(api, max_tokens)
        try:
            answer = complete(self.endpoint, request)
        except TransportError as error:
            if error.status not in (400, 422) or not request.extensions or lacks_chat_template(error):
                raise
            answer = complete(self.endpoint, replace(request, extensions=False))
            self.extensions = False
        if api not in self.apis:
            self.apis.append(api)
        self.answers.append(answer)
        return answer

    def answered(self) -> list[Answer]:
        if not self.answers:
            raise _CannotAskError("no request was answered")
        return self.answers


def _run(check_id: str, session: _Session) -> tuple[Status, str]:
    if session.stalled_in is not None:
        return "SKIP", f"the server stalled in the check {session.stalled_in}"
    try:
        return "PASS", CHECKS[check_id](session)
    except _CannotAskError as reason:
        return "SKIP", str(reason)
    except _FaultSeenError as fault:
        return "FAIL", str(fault)
    except TransportError as error:
        if error.kind == "connect" and check_id == "health":
            raise
        if error.kind == "timeout":
            session.stalled_in = check_id
        return "FAIL", error.detail


def _health(session: _Session) -> str:
    reply = get(session.endpoint, "/health")
    if reply.status == 404:
        raise _CannotAskError("the server has no /health")
    return f"HTTP {_ok(reply).status}"


def _version(session: _Session) -> str:
    reply = get(session.endpoint, "/version")
    if reply.status == 404:
        raise _CannotAskError("the server has no /version")
    version = version_text(_ok(reply).json())
    if version is None:
        raise _FaultSeenError("/version names no version")
    return version


def _models(session: _Session) -> str:
    names = served_models(session.endpoint)
    listed = ", ".join(names) or "nothing"
    if not names or (session.expected is not None and session.expected not in names):
        raise _FaultSeenError(f"lists {listed}, not {session.expected or 'a model'}")
    session.model = session.expected or names[0]
    return f"lists {listed}"


def _completion(session: _Session) -> str:
    first, second = session.ask("completions").whole_text, session.ask("completions").whole_text
    if not first.strip():
        raise _FaultSeenError("the completion is empty")
    if first != second:
        raise _FaultSeenError(f"the same greedy request twice: {_difference(first, second)}")
    return f"{_quote(first)}, twice the same"


def _chat(session: _Session) -> str:
    try:
        answer = session.ask("chat").whole_text
    except TransportError as error:
        if lacks_chat_template(error):
            raise _CannotAskError("the model has no chat template") from None
        raise
    if not answer.strip():
        raise _FaultSeenError("the answer is empty")
    return _quote(answer)


def _stream_equals_non_stream(session: _Session) -> str:
    session.answered()
    compared = []
    for api in tuple(session.apis):
        whole = session.ask(api)
        streamed = stream(session.endpoint, session.request(api), lambda _: False)
        session.answers.append(streamed)
        session.pairs.append((whole, streamed))
        for part in ("text", "reasoning", "finish_reason"):
            a, b = getattr(whole, part) or "", getattr(streamed, part) or ""
            if a != b:
                raise _FaultSeenError(f"{api}, {part} whole and streamed: {_difference(a, b)}")
        compared.append(f"{api} ({len(whole.whole_text)} characters)")
    return f"equal for {' and '.join(compared)}"


def _usage(session: _Session) -> str:
    for answer in session.answered():
        usage = answer.usage
        if usage is None:
            raise _FaultSeenError("an answer has no usage")
        prompt, completion, total = usage.prompt_tokens, usage.completion_tokens, usage.total_tokens
        if not prompt or completion is None or total is None or completion < 0:
            raise _FaultSeenError(f"usage is incomplete: {prompt} + {completion} = {total}")
        if prompt + completion != total:
            raise _FaultSeenError(f"usage does not add up: {prompt} + {completion} is not {total}")
        if answer.token_source == "ids" and answer.tokens != completion:
            raise _FaultSeenError(f"usage counts {completion} tokens, the answer holds {answer.tokens}")
    for whole, streamed in session.pairs:
        if whole.usage != streamed.usage:
            raise _FaultSeenError("usage differs between the whole and the streamed answer")
    return f"adds up in {len(session.answers)} answers"


def _no_replacement_character(session: _Session) -> str:
    for answer in session.answered():
        if "\ufffd" in answer.whole_text:
            raise _FaultSeenError(f"U+FFFD in {_quote(answer.whole_text)}")
    return f"none in {len(session.answers)} answers"


def _finish_reason(session: _Session) -> str:
    for answer in session.answered():
        if answer.finish_reason not in _KNOWN_FINISHES:
            raise _FaultSeenError(f"finish_reason is {answer.finish_reason!r}")
    cut = session.ask(session.apis[0], max_tokens=1)
    made = cut.usage.completion_tokens if cut.usage else None
    if cut.finish_reason not in _KNOWN_FINISHES or (made is not None and made > 1):
        raise _FaultSeenError(f"max_tokens 1 gave {made} tokens and finish_reason {cut.finish_reason!r}")
    return f"one of {', '.join(_KNOWN_FINISHES)}; max_tokens 1 ends with {cut.finish_reason}"


CHECKS: Mapping[str, Callable[[_Session], str]] = {
    "health": _health,
    "version": _version,
    "models": _models,
    "completion": _completion,
    "chat": _chat,
    "stream-equals-non-stream": _stream_equals_non_stream,
    "usage": _usage,
    "no-replacement-character": _no_replacement_character,
    "finish-reason": _finish_reason,
}
"""Every check by its stable id, in the order in which they run."""


def _ok(reply: HttpReply) -> HttpReply:
    if reply.status != 200:
        raise reply.error()
    return reply


def _difference(a: str, b: str) -> str:
    """Where two texts part, with a little of each."""
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"they part at character {place}: {_quote(a[place:])} and {_quote(b[place:])}"


def _quote(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…")
