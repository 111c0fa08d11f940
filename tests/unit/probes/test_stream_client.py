from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import MODEL, StubServer

from shardwright.probes import stream_client
from shardwright.probes.client import GREEDY, Answer, Request, stream
from shardwright.probes.http_body import FramingError, read_reply
from shardwright.probes.stream_client import bunched_share, run_streams
from shardwright.probes.wire import Endpoint, TransportError

Start = Callable[[str], StubServer]
REQUEST = Request(MODEL, "Where?", "chat", 50, GREEDY)


def only(results: Sequence[Answer | TransportError]) -> Answer | TransportError:
    (result,) = results
    return result


def answered(result: Answer | TransportError) -> Answer:
    assert isinstance(result, Answer), result
    return result


def lost(result: Answer | TransportError) -> TransportError:
    assert isinstance(result, TransportError), result
    return result


@contextmanager
def raw_server(*sends: bytes | float, tls: ssl.SSLContext | None = None, stay_open: bool = False) -> Iterator[Endpoint]:
    """Answers every connection with these bytes, one write each; a number is a pause in seconds."""
    listener = socket.create_server(("127.0.0.1", 0))
    leaving = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
            except ssl.SSLError:
                continue
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.recv(1 << 16)
            for part in sends:
                if isinstance(part, float):
                    time.sleep(part)
                else:
                    connection.sendall(part)
            if stay_open:
                leaving.wait(20)

    threading.Thread(target=serve, daemon=True).start()
    scheme = "http" if tls is None else "https"
    try:
        yield Endpoint(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", idle_timeout_s=5)
    finally:
        leaving.set()
        listener.close()


def event(word: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": word}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = event("Paris") + event("\u2028 is\u0085 é") + event(".", "stop") + b"data: [DONE]\n\n"
TEXT = "Paris\u2028 is\u0085 é."


def test_the_same_answer_as_the_plain_client(stub: Start) -> None:
    server = stub("healthy")
    endpoint = Endpoint(server.base_url)
    answer = answered(only(run_streams(endpoint, [REQUEST])))
    plain = stream(endpoint, REQUEST, lambda _: False)
    assert (answer.text, answer.finish_reason, answer.usage, answer.tokens) == (
        plain.text,
        plain.finish_reason,
        plain.usage,
        plain.tokens,
    )
    assert len(answer.text_times_s) == len(plain.text_times_s)
    assert server.requests[0] == server.requests[1]


def test_the_first_text_counts_and_not_the_role(stub: Start) -> None:
    answer = answered(only(run_streams(Endpoint(stub("healthy").base_url), [REQUEST])))
    assert answer.first_byte_s is not None
    assert answer.ttft_s is not None
    # The stub sends the role at once and the first text 20 ms later.
    assert answer.ttft_s - answer.first_byte_s > 0.015


@pytest.mark.parametrize(
    "mode, kind",
    [
        ("http-500", "http"),
        ("truncated", "truncated"),
        ("no-finish", "truncated"),
        ("ends-early", "truncated"),
        ("error-in-stream", "server"),
        ("error-with-200", "truncated"),
    ],
)
def test_a_fault_on_the_way_is_named_and_no_answer(stub: Start, mode: str, kind: str) -> None:
    assert lost(only(run_streams(Endpoint(stub(mode).base_url), [REQUEST]))).kind == kind


def test_an_error_body_is_read_and_the_key_is_hidden(stub: Start) -> None:
    endpoint = Endpoint(stub("refuses-key").base_url, api_key="sk-planted")
    error = lost(only(run_streams(endpoint, [REQUEST])))
    assert (error.kind, error.status) == ("http", 401)
    assert "Incorrect API key" in error.detail
    assert "planted" not in error.detail


def test_a_server_that_stalls_is_given_up(stub: Start) -> None:
    error = lost(only(run_streams(Endpoint(stub("stalls").base_url, idle_timeout_s=0.2), [REQUEST])))
    assert error.kind == "timeout"


def test_nobody_there(free_port: int) -> None:
    error = lost(only(run_streams(Endpoint(f"http://127.0.0.1:{free_port}"), [REQUEST])))
    assert (error.kind, "nobody answers" in error.detail) == ("connect", True)


def test_one_lost_stream_leaves_the_others_alone(stub: Start) -> None:
    server = stub("some-http-500")
    results = run_streams(Endpoint(server.base_url), [REQUEST] * 9, 3)
    assert [type(result) for result in results].count(Answer) == 6


def test_no_more_streams_at_a_time_than_asked_for(stub: Start) -> None:
    server = stub("healthy")
    most = 0

    def look() -> None:
        nonlocal most
        while not server.leaving.is_set():
            most = max(most, server.running)
            time.sleep(0.001)

    threading.Thread(target=look, daemon=True).start()
    assert len(run_streams(Endpoint(server.base_url), [REQUEST] * 12, 3)) == 12
    assert most <= 3
    run_streams(Endpoint(server.base_url), [REQUEST] * 12)
    assert most > 3


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("framing", ["chunked", "length", "until-closed"])
def test_framings_and_cuts(cut: int, framing: str) -> None:
    if framing == "chunked":
        reply = CHUNKED + chunk(BODY[:31]) + chunk(BODY[31:]) + b"0\r\n\r\n"
    elif framing == "length":
        reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    else:
        reply = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
    # A server that keeps the connection open must not be waited for, where the framing tells the end.
    sends = [reply[i : i + cut] for i in range(0, len(reply), cut)]
    with raw_server(*sends, stay_open=framing != "until-closed") as endpoint:
        began_s = time.perf_counter()
        assert answered(only(run_streams(endpoint, [REQUEST]))).text == TEXT
        assert time.perf_counter() - began_s < 4


@pytest.mark.parametrize("cut", range(1, 8))
def test_the_end_is_seen_however_small_the_last_reads_are(cut: int) -> None:
    reply = CHUNKED + chunk(BODY) + b"0\r\n\r\n"
    stream = stream_client._Stream(memoryview(bytearray(16)))
    for start in range(0, len(reply), cut):
        assert not stream.ended.is_set()
        part = reply[start : start + cut]
        stream.get_buffer(-1)[: len(part)] = part
        stream.buffer_updated(len(part))
    assert stream.ended.is_set()


def test_text_that_looks_like_the_end_of_a_reply_does_not_end_it() -> None:
    odd = CHUNKED + chunk(b": 0\r\n\r\n") + chunk(b": 10\r\n\r\n")
    with raw_server(odd[:-2], 0.1, odd[-2:], 0.1, chunk(BODY), b"0\r\n\r\n") as endpoint:
        assert answered(only(run_streams(endpoint, [REQUEST]))).text == TEXT


def test_an_interim_reply_is_passed_over() -> None:
    reply = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + chunk(BODY) + b"0\r\n\r\n"
    with raw_server(reply) as endpoint:
        assert answered(only(run_streams(endpoint, [REQUEST]))).text == TEXT


@pytest.mark.parametrize("reply", [b"SSH-2.0-x\r\n", b"HTTP/1.1 abc\r\n\r\n", CHUNKED + b"zz\r\n\r\n", b"HTTP/1.1 200"])
def test_another_protocol_is_a_transport_error(reply: bytes) -> None:
    with raw_server(reply) as endpoint:
        assert lost(only(run_streams(endpoint, [REQUEST]))).kind == "protocol"


def test_a_connection_closed_without_a_word_is_broken() -> None:
    with raw_server() as endpoint:
        assert lost(only(run_streams(endpoint, [REQUEST]))).kind == "broken"


def test_stamps_are_of_arrival_and_share_one_time_line() -> None:
    sends: list[bytes | float] = [CHUNKED]
    for word in "abcdef":
        sends += [chunk(event(word)), 0.05]
    sends += [chunk(event("", "stop") + b"data: [DONE]\n\n"), b"0\r\n\r\n"]
    with raw_server(*sends) as endpoint:
        answers = [answered(result) for result in run_streams(endpoint, [REQUEST] * 4)]
    for answer in answers:
        gaps = [later - earlier for earlier, later in pairwise(answer.text_times_s)]
        assert len(gaps) == 5
        assert sorted(gaps)[2] == pytest.approx(0.05, rel=0.5)
        assert bunched_share(answer.text_times_s) == 0
    starts = [answer.sent_at_s for answer in answers]
    assert all(start is not None for start in starts)
    first = min(start for start in starts if start is not None)
    assert max(start for start in starts if start is not None) - first < 1


def test_bunched_events_are_told() -> None:
    assert bunched_share([]) == bunched_share([1.0]) == 0
    assert bunched_share([0, 1, 2, 3]) == 0
    assert bunched_share([0, 1, 1.001, 2, 2.001]) == 0.5
    words = b"".join(chunk(event(word)) for word in "abcdefgh")
    with raw_server(CHUNKED, words, 0.1, words, chunk(event("", "stop") + b"data: [DONE]\n\n")) as endpoint:
        answer = answered(only(run_streams(endpoint, [REQUEST])))
    assert bunched_share(answer.text_times_s) > 0.8


def test_parsing_waits_until_the_last_stream_has_ended(monkeypatch: pytest.MonkeyPatch, stub: Start) -> None:
    running: list[bool] = []
    real = stream_client.read_stream

    def spy(*args: object) -> object:
        try:
            asyncio.get_running_loop()
            running.append(True)
        except RuntimeError:
            running.append(False)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(stream_client, "read_stream", spy)
    run_streams(Endpoint(stub("healthy").base_url), [REQUEST] * 3, 1)
    assert running == [False] * 3


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(file), "-out", str(file.with_suffix(".crt"))]
    subprocess.run(argv, check=True, capture_output=True)
    file.write_text(file.read_text() + file.with_suffix(".crt").read_text())
    return file


def test_tls_with_a_trusted_certificate_and_a_refusal_of_any_other(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with raw_server(CHUNKED, chunk(BODY), b"0\r\n\r\n", tls=context) as endpoint:
        error = lost(only(run_streams(endpoint, [REQUEST])))
        assert (error.kind, "not trusted" in error.detail) == ("connect", True)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert answered(only(run_streams(endpoint, [REQUEST]))).text == TEXT


@given(st.lists(st.integers(1, 60), max_size=12), st.lists(st.integers(1, 40), max_size=12))
def test_pieces_keep_every_byte_with_the_stamp_of_its_read(sizes: list[int], cuts: list[int]) -> None:
    chunks, left = [], BODY
    for size in sizes:
        if left:
            chunks.append(left[:size])
            left = left[size:]
    chunks += [left] if left else []
    data = CHUNKED + b"".join(map(chunk, chunks)) + b"0\r\n\r\n"
    reads, at = [], 0
    for number, cut in enumerate([*cuts, len(data)]):
        reads.append((float(number), data[at : at + cut]))
        at += cut
    reply = read_reply(reads, closed=True)
    assert (reply.status, reply.complete, reply.body) == (200, True, BODY)
    assert [stamp for stamp, _ in reply.pieces] == sorted(stamp for stamp, _ in reply.pieces)
    assert all(part in reads[int(stamp)][1] or b"\r\n" in reads[int(stamp)][1] for stamp, part in reply.pieces)


def test_a_reply_that_is_cut_anywhere_is_not_complete() -> None:
    data = CHUNKED + chunk(BODY) + b"0\r\n\r\n"
    for end in range(len(CHUNKED), len(data)):
        assert not read_reply([(0.0, data[:end])], closed=True).complete
    with pytest.raises(FramingError):
        read_reply([(0.0, CHUNKED[:-1])], closed=True)
