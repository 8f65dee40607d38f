"""Streams are passed on as they come, pauses are bridged and bounded, and slow clients are not flooded."""

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import anthropic
import msgspec
import openai
import pytest

from asking import make_body
from e2e.cases import CASES, request_for
from e2e.faults import assert_error
from fakes.upstream import Answer, End, FakeUpstream
from gateway import KEY
from raw_http import dial, request_bytes
from rig import CROSSED, ENCODERS, FEW_PAIRS, ONCE, PATHS, PROTOCOLS, Rig, run_rig
from scripting import write_reply
from scripting.replies import Ending, ScriptedReply, Text
from sdk_replies import STREAMS, Broke, Reply, ask_all, expect_for
from waiting import wait_until

TIMES = """
[server]
keep_alive_s = 0.08
first_token_timeout_s = {first}
token_timeout_s = {first}
idle_timeout_s = {idle}
"""
PATIENCE_S = 60.0
IDLE_S = 0.5
WORDS = "It was a dark"
BEGUN = ScriptedReply((Text(WORDS),), ending=Ending.NONE)
KEEP_ALIVE = {"chat": b":", "responses": b":", "messages": b"event: ping\n"}
COMMENT = b": " + b"." * 50_000 + b"\n\n"  # long, for the SDKs are slow at short ones
MAX_IN_FLIGHT = 32 << 20  # what the kernel's buffers of two connections may swallow, and then some
CREATED = b'data: {"type":"response.created","response":{"id":"resp_fake","model":"m","output":[]}}\n\n'
THINKING = (
    b'data: {"type":"response.output_item.added","output_index":0,'
    b'"item":{"id":"rs_fake","type":"reasoning","summary":[]}}\n\n'
)
LINE_OF = {
    "chat": b'data: {"id":"chatcmpl-fake1","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n',
    "responses": b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"%b"}\n\n',
    "messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"%b"}}\n\n',
}

clients = pytest.mark.parametrize("client", PROTOCOLS)
upstreams = pytest.mark.parametrize("upstream", PROTOCOLS)
few_pairs = pytest.mark.parametrize(("client", "upstream"), FEW_PAIRS)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A rig whose upstreams send no token, or a reply at once and nothing more."""
    with run_rig(tmp_path_factory.mktemp("gateway"), ONCE + TIMES.format(first=0.5, idle=IDLE_S)) as shared:
        yield shared


@pytest.fixture(scope="module")
def begins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A rig whose upstreams begin, however busy the machine is, and then send nothing more."""
    with run_rig(tmp_path_factory.mktemp("begins"), ONCE + TIMES.format(first=PATIENCE_S, idle=IDLE_S)) as shared:
        yield shared


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("lively"), ONCE + "[server]\nkeep_alive_s = 0.05\n") as shared:
        yield shared


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("patient")) as shared:
        yield shared


def make_begun_reply(upstream: str) -> Answer:
    """A reply whose beginning was sent, and no more."""
    return write_reply(upstream, BEGUN, end=End.HANG)


def ask_pairs(
    rig: Rig, pairs: Iterable[tuple[str, str]], write: Callable[[str], Answer]
) -> Iterator[tuple[str, str, Reply]]:
    """Ask with the SDKs of all pairs at the same time; return each pair with its reply."""
    pairs = list(pairs)
    for upstream in PROTOCOLS:
        fake = rig.play(upstream, write(upstream))
        fake.closed.clear()
    requests = [(client, request_for(client, rig.model(upstream))) for client, upstream in pairs]
    for (client, upstream), (reply, _) in zip(pairs, ask_all(rig.gateway.url, KEY, requests), strict=True):
        yield client, upstream, reply
    for upstream in {upstream for _, upstream in pairs}:
        assert len(rig.calls(upstream)) == sum(of == upstream for _, of in pairs), upstream


def request_of(client: str, model: str, stream: bool = True) -> bytes:
    return request_bytes(PATHS[client], msgspec.json.encode(make_body(client, model, stream=stream)))


def read_until(sock: socket.socket, mark: bytes) -> bytes:
    seen = b""
    while mark not in seen:
        piece = sock.recv(65536)
        assert piece, f"the connection ended before {mark!r}: {seen!r}"
        seen += piece
    return seen


def wait_for_close(fake: FakeUpstream) -> None:
    """Wait until the gateway closes the upstream, which takes much less than its idle timeout."""
    wait_until(lambda: fake.closed)


@clients
@upstreams
def test_the_first_words_arrive_while_the_upstream_is_still_sending(patient: Rig, client: str, upstream: str) -> None:
    patient.play(upstream, make_begun_reply(upstream))
    with dial(patient.gateway.port, PATIENCE_S) as sock:
        sock.sendall(request_of(client, patient.model(upstream)))
        seen = read_until(sock, WORDS[-3:].encode())
    assert seen.startswith(b"HTTP/1.1 200")
    assert b"content-type: text/event-stream" in seen


@few_pairs
@pytest.mark.parametrize("kind", ["application/json", "text/plain; charset=utf-8"])
def test_the_first_words_of_a_stream_that_is_called_a_document_arrive_no_later(
    patient: Rig, client: str, upstream: str, kind: str
) -> None:
    patient.play(upstream, replace(make_begun_reply(upstream), content_type=kind))
    with dial(patient.gateway.port, PATIENCE_S) as sock:
        sock.sendall(request_of(client, patient.model(upstream)))
        seen = read_until(sock, WORDS[-3:].encode())
    assert b"content-type: text/event-stream" in seen


@pytest.mark.parametrize(("client", "upstream"), CROSSED)
def test_pauses_are_bridged_by_the_protocols_own_keep_alives(lively: Rig, client: str, upstream: str) -> None:
    lively.play(upstream, make_begun_reply(upstream))
    with dial(lively.gateway.port, PATIENCE_S) as sock:
        sock.sendall(request_of(client, lively.model(upstream)))
        read_until(sock, WORDS[-3:].encode())
        assert KEEP_ALIVE[client] in read_until(sock, KEEP_ALIVE[client])


def test_silence_passes_unaltered_in_the_same_protocol(begins: Rig) -> None:
    with ExitStack() as stack:
        socks = {protocol: stack.enter_context(dial(begins.port, PATIENCE_S)) for protocol in PROTOCOLS}
        for protocol, sock in socks.items():
            begins.play(protocol, make_begun_reply(protocol))
            sock.sendall(request_of(protocol, begins.model(protocol)))
        for protocol, sock in socks.items():
            chunks = read_until(sock, b"error").split(b"\r\n\r\n", 1)[1].split(b"\r\n")
            assert make_begun_reply(protocol).body in b"".join(chunks[1::2])  # a slow one begins behind keep-alives


@few_pairs
def test_keep_alives_do_not_disturb_the_sdk(lively: Rig, client: str, upstream: str) -> None:
    scripted = CASES["parallel interleaved tool calls"].scripted
    body = ENCODERS[upstream].encode_stream(scripted)
    lively.play(upstream, Answer(body, cut=len(body) // 3, pause_s=0.12))
    reply = STREAMS[client][0](lively.sdk, request_for(client, lively.model(upstream), CASES["one tool call"]))
    assert reply == expect_for(client, upstream, scripted)


def test_an_upstream_that_stops_sending_is_reported_as_an_error(begins: Rig) -> None:
    started = time.monotonic()
    for client, upstream, reply in ask_pairs(begins, FEW_PAIRS, make_begun_reply):
        assert time.monotonic() - started > IDLE_S * 0.9
        assert isinstance(reply, Broke), (client, upstream, reply)
        assert isinstance(reply.error, anthropic.APIStatusError if client == "messages" else openai.APIError)
        assert reply.text == WORDS
        assert "idle_timeout_s" in str(reply.error)
    wait_until(lambda: all(len(fake.closed) >= 2 for name, fake in begins.fakes.items() if name in PROTOCOLS))


@pytest.mark.parametrize("headless", [True, False], ids=["before the head", "after the head"])
def test_a_stall_before_the_first_token_is_reported_as_a_timeout(rig: Rig, headless: bool) -> None:
    for client, upstream, reply in ask_pairs(rig, FEW_PAIRS, lambda _: Answer(headless=headless, end=End.HANG)):
        assert isinstance(reply, Broke), (client, upstream, reply)  # in the stream: the client was kept alive
        assert "token_timeout_s" in str(reply.error), (client, upstream)


@pytest.mark.parametrize("thinks", [False, True])
def test_a_model_that_thinks_without_output_has_longer_for_its_first_token(
    rig: Rig, thoughtful: Rig, thinks: bool
) -> None:
    """A reasoning item that was begun and has nothing to show may take minutes."""
    answer = Answer(CREATED + THINKING * thinks, end=End.HANG)
    pairs = [(client, "responses") for client in PROTOCOLS]
    for client, _, reply in ask_pairs(thoughtful if thinks else rig, pairs, lambda _: answer):
        assert isinstance(reply, Broke), (client, reply)
        assert ("idle_timeout_s" if thinks else "token_timeout_s") in str(reply.error), client


@pytest.fixture(scope="module")
def thoughtful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("thoughtful"), ONCE + TIMES.format(first=1.5, idle=2)) as shared:
        yield shared


@pytest.mark.parametrize("headless", [True, False], ids=["before the head", "after the head"])
def test_a_stall_before_the_first_byte_is_an_http_status_and_not_retried(stern: Rig, headless: bool) -> None:
    for client, _, reply in ask_pairs(stern, FEW_PAIRS, lambda _: Answer(headless=headless, end=End.HANG)):
        assert isinstance(reply, Broke), reply
        assert_error(client, reply.error, 504)
        assert isinstance(reply.error, openai.APIStatusError | anthropic.APIStatusError)
        assert "x-should-retry" not in reply.error.response.headers


@pytest.fixture(scope="module")
def stern(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    settings = "[retry]\nattempts = 2\nbase_s = 0.01\n[server]\nfirst_token_timeout_s = 0.5\n"
    with run_rig(tmp_path_factory.mktemp("stern"), settings) as shared:
        for fake in shared.fakes.values():
            fake.keep_alive = False
        yield shared


def test_a_whole_reply_that_never_comes_is_a_gateway_timeout(rig: Rig) -> None:
    for upstream in PROTOCOLS:
        rig.play(upstream, Answer(headless=True, end=End.HANG))
    with ThreadPoolExecutor(len(FEW_PAIRS)) as pool:
        replies = pool.map(lambda pair: rig.ask(*pair), FEW_PAIRS)
    for (client, upstream), reply in zip(FEW_PAIRS, replies, strict=True):
        assert reply.status == 504, (client, upstream)
        assert "token_timeout_s" in reply.json["error"]["message"]


@clients
@upstreams
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_takes_the_upstream_with_it(
    patient: Rig, client: str, upstream: str, stream: bool
) -> None:
    fake = patient.play(upstream, make_begun_reply(upstream) if stream else Answer(headless=True, end=End.HANG))
    fake.closed.clear()
    with dial(patient.gateway.port) as sock:
        sock.sendall(request_of(client, patient.model(upstream), stream))
        if stream:
            read_until(sock, WORDS[-3:].encode())
        else:
            wait_until(lambda: fake.calls)
    wait_for_close(fake)


@clients
@upstreams
def test_a_client_that_leaves_stops_a_fast_upstream(patient: Rig, client: str, upstream: str) -> None:
    fake = patient.play(upstream, make_endless_reply(upstream))
    fake.closed.clear()
    with dial(patient.gateway.port) as sock:
        sock.sendall(request_of(client, patient.model(upstream)))
        read_until(sock, b"aaaa")
    wait_for_close(fake)


@few_pairs
def test_a_slow_reader_holds_the_upstream_back(patient: Rig, client: str, upstream: str) -> None:
    fake = patient.play(upstream, make_endless_reply(upstream))
    fake.closed.clear()
    fake.sent = 0
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENCE_S)
        sock.connect(("127.0.0.1", patient.gateway.port))
        sock.sendall(request_of(client, patient.model(upstream)))
        sent = wait_until_settled(fake)
        assert 0 < sent < MAX_IN_FLIGHT
        read_until(sock, b"aaaa")
    wait_for_close(fake)


def test_a_flood_of_comments_is_no_token(rig: Rig) -> None:
    for client, upstream, reply in ask_pairs(rig, FEW_PAIRS, lambda _: Answer(COMMENT, floods=True)):
        assert isinstance(reply, Broke), (client, upstream, reply)
        assert "token_timeout_s" in str(reply.error)
        wait_for_close(rig.fakes[upstream])


@few_pairs
def test_a_flood_of_bytes_after_the_end_is_not_waited_for(begins: Rig, client: str, upstream: str) -> None:
    scripted = CASES["text"].scripted
    fake = begins.play(upstream, Answer(COMMENT, opening=ENCODERS[upstream].encode_stream(scripted), floods=True))
    fake.closed.clear()
    reply = STREAMS[client][0](begins.sdk, request_for(client, begins.model(upstream)))
    assert reply == expect_for(client, upstream, scripted)
    wait_for_close(fake)


def make_endless_reply(upstream: str) -> Answer:
    """The beginning of a reply once, then words without end."""
    line = LINE_OF[upstream] % (b"a" * 60_000)
    opening = ENCODERS[upstream].encode_stream(BEGUN)
    if upstream == "messages":
        opening = opening[: opening.index(b"event: content_block_stop")]
    elif upstream == "responses":
        opening = opening[: opening.index(b"event: response.output_text.done")]
    return Answer(line, opening=opening, floods=True)


def wait_until_settled(fake: FakeUpstream) -> int:
    """Return how much was sent once the gateway takes no more."""
    before = -1
    for _ in range(600):
        if fake.sent == before and before > 0:
            return before
        before = fake.sent
        assert before < MAX_IN_FLIGHT
        time.sleep(0.1)
    raise AssertionError("the upstream is never held back")
