from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Hashable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import MODEL, StubServer

from shardwright.errors import ExitCode, UsageError
from shardwright.probes import client, server
from shardwright.probes.client import GREEDY, Answer, Api, Request, Sampler, complete, stream
from shardwright.probes.server import fit_request, identify
from shardwright.probes.sse import EventSplitter
from shardwright.probes.wire import ByteStream, Endpoint, HttpReply, TransportError, get, normalise_base_url

Start = Callable[[str], StubServer]
ANSWER = "Paris is the capital é 中文 👋."


def request(api: Api = "chat", **fields: object) -> Request:
    return Request(MODEL, "What is the capital of France?", api, 64, GREEDY, **fields)  # type: ignore[arg-type]


def read_all(server: StubServer, api: Api = "chat") -> tuple[Answer, list[Hashable]]:
    seen: list[Hashable] = []

    def keep(tokens: Sequence[Hashable]) -> bool:
        seen.extend(tokens)
        return False

    return stream(Endpoint(server.base_url), request(api), keep), seen


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_an_answer_streamed_and_whole(stub: Start, api: Api) -> None:
    server = stub("healthy")
    streamed, tokens = read_all(server, api)
    whole = complete(Endpoint(server.base_url), request(api))
    assert streamed.text == whole.text == ANSWER
    assert (streamed.finish_reason, streamed.aborted) == ("stop", False)
    assert streamed.usage == whole.usage
    assert streamed.usage is not None
    assert streamed.usage.completion_tokens == 8
    assert (streamed.token_source, streamed.tokens, tokens) == ("ids", 8, list(range(8)))


@pytest.mark.parametrize("mode", ["u2028", "byte-by-byte"])
def test_line_separators_inside_json_do_not_cut_an_event(stub: Start, mode: str) -> None:
    streamed, _ = read_all(stub(mode))
    expected = "Paris\u2028is\u0085 in\r\n\ndata: France." if mode == "u2028" else ANSWER
    assert streamed.text == expected


@given(st.lists(st.text(min_size=1, max_size=9), max_size=6), st.integers(1, 7), st.sampled_from([b"\n", b"\r\n"]))
def test_events_do_not_depend_on_how_the_bytes_arrive(texts: list[str], size: int, end: bytes) -> None:
    import json

    events = [json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass") for text in texts]
    wire = b": a comment" + end + end + b"".join(b"data: " + event + end + end for event in events)
    splitter = EventSplitter()
    found = [event for i in range(0, len(wire), size) for event in splitter.feed(wire[i : i + size])]
    assert found == events


FIELDS = (
    "choices delta message text content reasoning usage error token_ids finish_reason prompt_tokens completion_tokens "
    "total_tokens tool_calls data id"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS.split(" ")), inner, max_size=4),
    max_leaves=12,
)
EVENT = JSON | st.fixed_dictionaries({"choices": st.lists(JSON, max_size=2), "usage": JSON, "data": st.lists(JSON)})


@given(st.lists(EVENT, max_size=4), st.booleans())
def test_no_reply_however_odd_is_more_than_a_transport_error(events: list[object], ends_well: bool) -> None:
    import json

    wire = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    wire += b"data: [DONE]\n\n" if ends_well else b"data: {"
    whole = json.dumps(events[0] if events else None).encode()
    endpoint = Endpoint("http://127.0.0.1:1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "ByteStream", lambda *_: _Canned(wire))
        patch.setattr(client, "post_json", lambda *_: HttpReply(200, whole, endpoint))
        patch.setattr(server, "get", lambda *_: HttpReply(200, whole, endpoint))
        with contextlib.suppress(TransportError):
            stream(endpoint, request(), lambda _: False)
        with contextlib.suppress(TransportError):
            complete(endpoint, request())
        with contextlib.suppress(TransportError):
            server.served_models(endpoint)


class _Canned:
    sent_at_s = 0.0

    def __init__(self, wire: bytes) -> None:
        self._wire = wire

    def __enter__(self) -> _Canned:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def chunks(self) -> Iterator[tuple[float, bytes]]:
        yield 1.0, self._wire


def test_an_endless_event_is_refused_before_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.probes.sse.MAX_EVENT_BYTES", 1000)
    splitter = EventSplitter()
    with pytest.raises(ValueError, match="larger than"):
        for _ in range(30):
            splitter.feed(b"data: " + b"x" * 40 + b"\n")


def test_ttft_is_the_first_text_and_not_the_role_chunk(stub: Start) -> None:
    streamed, _ = read_all(stub("healthy"))
    assert streamed.first_byte_s is not None
    assert streamed.ttft_s is not None
    # The stub waits 20 ms between the two.
    assert streamed.ttft_s >= streamed.first_byte_s + 0.015
    assert streamed.elapsed_s >= streamed.ttft_s


def test_every_sampler_field_is_sent_so_that_no_model_default_acts(stub: Start) -> None:
    server = stub("healthy")
    sampler = Sampler(0.8, 0.9, seed=17)
    complete(Endpoint(server.base_url), Request(MODEL, "x", "chat", 5, sampler))
    sent = server.requests[0]
    assert {name: sent[name] for name in sampler.fields()} == {
        "temperature": 0.8,
        "top_p": 0.9,
        "seed": 17,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
    assert (sent["max_tokens"], sent["n"], sent["stream"]) == (5, 1, False)


def test_reasoning_is_read_under_both_of_its_names(stub: Start) -> None:
    server = stub("reasoning-only")
    for name in ("reasoning", "reasoning_content"):
        server.reasoning_name = name
        whole = complete(Endpoint(server.base_url), request())
        streamed, _ = read_all(server)
        assert (whole.text, whole.reasoning) == (streamed.text, streamed.reasoning) == ("", "I think Paris.")
        assert streamed.ttft_s is not None


def test_words_stand_in_where_the_server_gives_no_ids(stub: Start) -> None:
    streamed, tokens = read_all(stub("no-ids"))
    assert streamed.token_source == "words"
    assert tokens == ["Paris", "is", "the", "capital", "é", "中", "文", "👋", "."]
    assert streamed.tokens == len(tokens)


@pytest.mark.parametrize(
    "mode, kind",
    [
        ("http-500", "http"),
        ("truncated", "truncated"),
        ("no-finish", "truncated"),
        ("ends-early", "truncated"),
        ("error-in-stream", "server"),
        ("error-with-200", "truncated"),
        ("not-json", "truncated"),
        ("stalls", "timeout"),
    ],
)
def test_an_incomplete_stream_is_an_error_and_no_answer(stub: Start, mode: str, kind: str) -> None:
    endpoint = Endpoint(stub(mode).base_url, idle_timeout_s=1 if mode == "stalls" else 30)
    with pytest.raises(TransportError) as caught:
        stream(endpoint, request(), lambda _: False)
    assert caught.value.kind == kind
    assert caught.value.code == ExitCode.HARNESS


@pytest.mark.parametrize(
    "mode, kind",
    [("http-500", "http"), ("ends-early", "truncated"), ("error-with-200", "server"), ("not-json", "protocol")],
)
def test_an_incomplete_reply_is_an_error_and_no_answer(stub: Start, mode: str, kind: str) -> None:
    with pytest.raises(TransportError) as caught:
        complete(Endpoint(stub(mode).base_url), request())
    assert caught.value.kind == kind


def test_the_body_of_an_error_reaches_the_reader(stub: Start) -> None:
    with pytest.raises(TransportError, match="HTTP 500: EngineCore encountered an issue") as caught:
        stream(Endpoint(stub("http-500").base_url), request(), lambda _: False)
    assert caught.value.status == 500


def test_nobody_there_is_said_so(free_port: int) -> None:
    with pytest.raises(TransportError, match="nobody answers") as caught:
        get(Endpoint(f"http://127.0.0.1:{free_port}"), "/health")
    assert caught.value.kind == "connect"


def test_a_server_that_is_no_http_server_is_said_so() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        endpoint = Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", idle_timeout_s=0.2)
        with pytest.raises(TransportError, match="sent nothing for") as caught:
            get(endpoint, "/health")
    assert caught.value.kind == "timeout"


def test_a_drip_of_bytes_does_not_hold_a_probe_for_ever(stub: Start) -> None:
    endpoint = Endpoint(stub("runaway").base_url, total_timeout_s=0.01)
    with pytest.raises(TransportError, match="no complete answer in") as caught:
        stream(endpoint, request(), lambda _: False)
    assert caught.value.kind == "timeout"


def test_ending_early_makes_the_server_drop_the_request(stub: Start) -> None:
    server = stub("loop")
    long = Request(MODEL, "x", "chat", 100_000, GREEDY)
    answer = stream(Endpoint(server.base_url), long, lambda _: True)
    assert answer.aborted
    assert answer.finish_reason is None
    deadline = time.monotonic() + 10
    while (server.running or not server.given_up) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (server.running, server.given_up) == (0, 1)


def test_a_stream_is_closed_even_while_somebody_holds_it(stub: Start) -> None:
    server = stub("loop")
    long = Request(MODEL, "x", "chat", 100_000, GREEDY)
    with ByteStream(Endpoint(server.base_url), long.path, long.body(stream=True)) as source:
        next(source.chunks())
    deadline = time.monotonic() + 10
    while not server.given_up and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.given_up == 1
    source.close()


def test_the_key_is_sent_and_shown_nowhere(stub: Start) -> None:
    server = stub("refuses-key")
    endpoint = Endpoint(server.base_url, api_key="sk-planted-value")
    with pytest.raises(TransportError) as caught:
        complete(endpoint, request())
    assert server.headers[0]["Authorization"] == "Bearer sk-planted-value"
    assert "--api-key-env" in caught.value.fix
    for shown in (repr(endpoint), caught.value.what, caught.value.detail, repr(caught.value)):
        assert "planted" not in shown


@pytest.mark.parametrize("key", ["", "two words", "line\nend", "ключ"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        Endpoint("http://127.0.0.1:1", api_key=key)
    assert not key or key not in f"{caught.value.what}{caught.value.why}{caught.value.fix}"


@pytest.mark.parametrize(
    "text, url",
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/v1/", "http://host:8000"),
        ("https://host/prefix/v1", "https://host/prefix"),
        ("host:8000", "http://host:8000"),
    ],
)
def test_base_urls_with_and_without_v1(text: str, url: str) -> None:
    assert normalise_base_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://host", "http://", "http://h:99999", "http://h/?a=1", "http://a b", "h\nx"])
def test_what_is_no_server_url_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="base URL"):
        normalise_base_url(text)


def test_a_password_in_the_url_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError) as caught:
        normalise_base_url("http://me:planted@host:1")
    assert "planted" not in f"{caught.value.what}{caught.value.why}{caught.value.fix}"


def test_a_strict_server_is_asked_without_the_extra_fields(stub: Start) -> None:
    server = stub("strict")
    fitted = fit_request(Endpoint(server.base_url), request())
    assert not fitted.extensions
    assert complete(Endpoint(server.base_url), fitted).text == ANSWER
    assert not {"top_k", "min_p", "repetition_penalty", "return_token_ids"} & set(server.requests[-1])


def test_a_passing_server_error_is_left_to_the_trials(stub: Start) -> None:
    assert fit_request(Endpoint(stub("http-500").base_url), request()).extensions


def test_a_server_says_who_it_is(stub: Start) -> None:
    server = identify(Endpoint(stub("healthy").base_url), None)
    assert (server.model, server.version, server.started_at) == (MODEL, "0.30.0", "1000.5")


def test_another_model_than_the_layouts_is_no_answer_about_it(stub: Start) -> None:
    from shardwright.errors import DeployError

    with pytest.raises(DeployError, match="does not serve 'stub-model'") as caught:
        identify(Endpoint(stub("wrong-model").base_url), MODEL)
    assert caught.value.code == ExitCode.HARNESS
    assert "another-model" in caught.value.why
