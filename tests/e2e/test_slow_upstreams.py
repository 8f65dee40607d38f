"""Slow upstreams that send signs of life are awaited; until a reply's first event another target may still answer."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import msgspec
import pytest

from asking import ask, find_path, make_body
from dragoman.config.load import ConfigSource
from e2e.cases import request_for
from e2e.targets import Targets, run_targets
from fakes.upstream import Answer, Delivery, End, Gate
from gateway import KEY
from raw_http import dial, request_bytes
from rig import FEW_PAIRS, ONCE, PATHS, PROTOCOLS, Rig, run_rig
from scripting import JSON, write_reply
from sdk_replies import STREAMS, SdkReply, ask_all
from sdk_replies import Reply as SdkOutcome
from surface.reading import GRAMMARS
from waiting import wait_until
from wire_json import JsonObject

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
FOR_EVER = 10_000  # signs of life
TWO = '[[models]]\nname = "two"\nto = ["{first}/slow", "{second}/other"]\n'
REPLY = "The other one answers."


def ask_sdks(rig: Rig, cases: Sequence[tuple[str, str]]) -> list[tuple[SdkOutcome, dict[str, str]]]:
    """Ask for each model in a client's protocol, all at the same time."""
    return ask_all(rig.gateway.url, KEY, [(client, request_for(client, model)) for client, model in cases])


def hurry(rig: Rig, *upstreams: str) -> None:
    """Give these providers half a second for their first token, each by a setting of its own."""
    config = (rig.directory / "dragoman.toml").read_text()
    for name in upstreams:
        config = config.replace(f"[providers.{name}]", f"[providers.{name}]\nfirst_token_timeout_s = 0.5")
    rig.gateway.adopt(config)


def test_the_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    server = ConfigSource(None, {}, tmp_path, tmp_path).read({}).server
    assert (server.first_token_timeout_s, server.token_timeout_s, server.idle_timeout_s) == (300, 900, 300)


def test_any_byte_is_a_sign_of_life(tmp_path: Path) -> None:
    """Signs of life for longer than the longest allowed pause, each of them long before its end."""
    signs = {"comments": b": still reading\n\n", "pings": PING}  # a ping is an event of Messages alone
    cases = [(*pair, sign) for pair, sign in product(FEW_PAIRS, signs) if sign == "comments" or pair[1] == "messages"]
    with run_rig(tmp_path, ONCE + "[server]\nfirst_token_timeout_s = 1.5\nkeep_alive_s = 0.3\n") as rig:
        for kind in PROTOCOLS:
            delivery = {name: Delivery(signs=20, sign=sign, sign_pause_s=0.1) for name, sign in signs.items()}
            rig.play_models(kind, {name: write_reply(kind, REPLY, **how) for name, how in delivery.items()})
        replies = ask_sdks(rig, [(client, f"{upstream}/{sign}") for client, upstream, sign in cases])
        for case, (reply, _) in zip(cases, replies, strict=True):
            assert isinstance(reply, SdkReply), (case, reply)
            assert reply.text == REPLY, case
        assert sum(len(rig.calls(kind)) for kind in PROTOCOLS) == len(cases)


def write_opening(kind: str) -> bytes:
    """Return everything that precedes the first token of a reply: its opening event, and the start of a block."""
    body = write_reply(kind, REPLY).body
    return body[: body.rindex(b"\n\n", 0, body.index(REPLY[:5].encode())) + 2]


OPENINGS = {kind: write_opening(kind) for kind in PROTOCOLS}
ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Too much.", "code": None}}
# Ways to give the client nothing of a reply, though it has been kept alive for a while.
SLOW = {
    "comments": Answer(signs=FOR_EVER, sign_pause_s=0.1),
    "silence": Answer(end=End.HANG),
    "headless": Answer(headless=True, end=End.HANG),
    "reset": Answer(signs=3, sign_pause_s=0.1, end=End.RESET),
    "error": Answer(b"event: error\ndata: " + msgspec.json.encode(ERROR) + b"\n\n", signs=3, sign_pause_s=0.1),
}
ERROR_EVENTS = b"event: error\ndata: " + msgspec.json.encode(ERROR) + b"\n\n"
# The same after an opening event.
BEGUN: dict[str, Callable[[bytes], Answer]] = {
    "opening": lambda opening: Answer(opening, end=End.HANG),
    "opening, comments": lambda opening: Answer(b": alive\n\n", opening=opening, floods=True, pause_s=0.1),
    "opening, reset": lambda opening: Answer(opening, linger_s=0.3, end=End.RESET),
    "opening, end": lambda opening: Answer(opening, linger_s=0.3),
    "opening, error": lambda opening: Answer(opening + ERROR_EVENTS, cut=len(opening), pause_s=0.3),
}
WAYS = [*SLOW, *BEGUN]
ENDLESS = ["comments", "silence", "headless", "opening", "opening, comments"]
END_OUTCOMES = {"lost": 12, "overloaded": 12, "truncated": 6}  # two ways, two ways and one, from six pairs each
# The second target has all the time that it may need on a busy machine, except for its first token of all.
LIMITS = ONCE + "[server]\nkeep_alive_s = 0.05\ntoken_timeout_s = 2\n"
ORDERS = [
    ("chat", "messages"),
    pytest.param("messages", "responses", marks=pytest.mark.rest),
    pytest.param("responses", "chat", marks=pytest.mark.rest),
]


def play_slow(rig: Rig) -> None:
    for kind in PROTOCOLS:
        begun = {way: make(OPENINGS[kind]) for way, make in BEGUN.items()}
        rig.play_models(kind, SLOW | begun | {"good": write_reply(kind, REPLY)})


def is_silent(client: str, upstream: str, way: str) -> bool:
    """Whether the client may get no keep-alive: nothing of ours goes between the bytes of a reply that passes."""
    return client == upstream and way in BEGUN and way != "opening, comments"


def calls(rig: Rig, kind: str, model: str) -> int:
    return sum(call.json["model"] == model for call in rig.fakes[kind].calls)


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_the_next_target_answers_though_the_client_was_kept_alive(first: str, second: str, tmp_path: Path) -> None:
    """Of the same protocol as the first target, as the second, and as neither; all of them at the same time."""
    routes = "".join(f'[[models]]\nname = "{way}"\nto = ["{first}/{way}", "{second}/good"]\n' for way in WAYS)
    cases = list(product(PROTOCOLS, WAYS))
    with run_rig(tmp_path, LIMITS + routes) as rig:
        hurry(rig, first)
        play_slow(rig)
        for (client, way), (reply, headers) in zip(cases, ask_sdks(rig, cases), strict=True):
            assert isinstance(reply, SdkReply), (client, way, reply)
            assert reply.text == REPLY, (client, way)
            if is_silent(client, first, way):
                assert headers["x-dragoman-route"] in (f"{first}/{way}", f"{second}/good"), (client, way)
            else:
                assert headers["x-dragoman-route"] == f"{first}/{way}", (client, way)
        for way in WAYS:
            assert calls(rig, first, way) == len(PROTOCOLS), way
        assert calls(rig, second, "good") == len(cases)


def test_the_trailers_name_who_answered_after_all(tmp_path: Path) -> None:
    with run_rig(tmp_path, LIMITS + TWO.format(first="chat", second="responses")) as rig:
        hurry(rig, "chat")
        rig.play("chat", SLOW["silence"])
        rig.play("responses", REPLY)
        body = msgspec.json.encode({**request_for("messages", "two"), "stream": True})
        with dial(rig.gateway.port) as sock:
            sock.sendall(request_bytes(PATHS["messages"], body, "connection: close"))
            answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b"x-dragoman-route: chat/slow\r\n" in answer.partition(b"\r\n\r\n")[0]
    assert answer.endswith(b"0\r\nx-dragoman-route: chat/slow, responses/other\r\n\r\n")


@pytest.mark.rest
def test_without_any_reply_the_stream_ends_with_one_error(tmp_path: Path) -> None:
    """Upstreams that end by themselves have all the time that they may need; only the others are cut off."""
    with run_rig(tmp_path, LIMITS) as rig:
        play_slow(rig)
        assert end_streams(rig, [way for way in WAYS if way not in ENDLESS]) == END_OUTCOMES
        hurry(rig, *PROTOCOLS)
        assert end_streams(rig, ENDLESS) == {"timeout": len(FEW_PAIRS) * len(ENDLESS)}


def end_streams(rig: Rig, ways: Sequence[str]) -> Counter[str]:
    """Ask for a stream in each of these ways at the same time, and return how the requests ended."""
    cases = [(client, upstream, way) for (client, upstream), way in product(FEW_PAIRS, ways)]
    with ThreadPoolExecutor(len(cases)) as pool:
        answers = list(pool.map(lambda case: ask(rig, case[0], f"{case[1]}/{case[2]}", stream=True), cases))
    for (client, upstream, way), answer in zip(cases, answers, strict=True):
        if is_silent(client, upstream, way) and answer.status != 200:
            assert answer.status in (502, 503, 504, 529), (client, upstream, way)
            continue
        assert answer.status == 200, (client, upstream, way)
        text, error = GRAMMARS[client].fold_broken(without_keep_alives(answer.body))
        assert (text, bool(error["message"])) == ("", True), (client, upstream, way)
    return Counter(rig.gateway.outcome(answer.headers["x-request-id"]).outcome for answer in answers)


@pytest.mark.parametrize(
    "client",
    ["messages", pytest.param("chat", marks=pytest.mark.rest), pytest.param("responses", marks=pytest.mark.rest)],
)
def test_an_opening_event_that_passes_is_held_until_the_first_token_and_pings_are_not(
    client: str, tmp_path: Path
) -> None:
    """Nothing else is changed: what the client gets are the upstream's bytes, without the pings that came earlier."""
    own = b'event: ping\ndata: {"type":"ping"}\n\n'
    opening, body = (part.replace(own, b"") for part in (OPENINGS[client], write_reply(client, REPLY).body))
    sign = PING if client == "messages" else b": alive\n\n"
    pings, token = threading.Event(), threading.Event()
    gate = Gate(pings, len(opening), Gate(token, len(opening) + 3 * len(sign)))
    held = opening + 3 * sign + body[len(opening) :]
    with run_rig(tmp_path, ONCE + "[server]\nkeep_alive_s = 1\n") as rig, dial(rig.port) as sock:
        fake = rig.play(client, Answer(held, gate=gate, cut=1, headers=(("x-vendor", "1"),)))
        sock.sendall(request_bytes(PATHS[client], msgspec.json.encode(make_body(client, f"{client}/m", stream=True))))
        wait_until(lambda: fake.sent >= len(opening))
        pings.set()
        seen = b""
        while seen.count(sign) < 3:
            seen += (piece := sock.recv(65536))
            assert piece, seen
        head, _, sent = seen.partition(b"\r\n\r\n")
        assert b"x-vendor: 1" in head
        assert unchunk(sent) == 3 * sign
        token.set()
        while not seen.endswith(b"\r\n0\r\n\r\n"):
            seen += (piece := sock.recv(65536))
            assert piece, seen
    assert unchunk(seen.partition(b"\r\n\r\n")[2]) == 3 * sign + body


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
ACTIONS: dict[str, list[JsonObject]] = {
    "messages": [{"type": "content_block_start", "index": 0, "content_block": SEARCH | {"type": kind}}
                 for kind in ("server_tool_use", "of_tomorrow")],
    "responses": [{"type": "response.output_item.added", "output_index": 0, "item": {"type": kind, "id": "i_1"}}
                  for kind in ("web_search_call", "image_generation_call", "of_tomorrow")],
    "chat": [{"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"audio": {"id": "a_1", "data": "AA=="}}}]}],
    "gemini": [{"candidates": [{"content": {"role": "model", "parts": [{"executableCode": {"code": "1"}}]}}]}],
}  # fmt: skip


def test_what_an_upstream_does_before_its_first_word_passes_at_once(tmp_path: Path) -> None:
    """A search that it runs itself may take minutes, and what we cannot read may be what the client waits for."""
    with run_rig(tmp_path, ONCE) as rig:
        for client, action in [(client, action) for client, actions in ACTIONS.items() for action in actions]:
            event = b"data: " + msgspec.json.encode(action) + b"\n\n"
            rig.play(client, Answer(OPENINGS.get(client, b"") + event, end=End.HANG))
            body = msgspec.json.encode(make_body(client, f"{client}/m", stream=True))
            with dial(rig.port) as sock:
                sock.sendall(request_bytes(find_path(client, f"{client}/m", stream=True), body))
                seen = b""
                while event not in seen:
                    seen += (piece := sock.recv(65536))
                    assert piece, (client, action, seen)


def unchunk(sent: bytes) -> bytes:
    body = b""
    while sent and (size := int(sent.partition(b"\r\n")[0], 16)):
        start = sent.index(b"\r\n") + 2
        body, sent = body + sent[start : start + size], sent[start + size + 2 :]
    return body


@pytest.mark.parametrize("upstream", ["gemini", "chat"])
def test_a_gemini_client_is_sent_nothing_before_the_first_token(upstream: str, tmp_path: Path) -> None:
    """Its SDK cannot read comments; those of an upstream that passes are the upstream's."""
    opening = b'data: {"candidates":[],"modelVersion":"m"}\n\n' if upstream == "gemini" else OPENINGS["chat"]
    token = threading.Event()
    body = opening + write_reply(upstream, REPLY).body
    with run_rig(tmp_path, ONCE + "[server]\nkeep_alive_s = 0.05\n") as rig, dial(rig.port) as sock:
        fake = rig.play(upstream, Answer(body, gate=Gate(token, len(opening)), cut=len(opening)))
        path = find_path("gemini", f"{upstream}/m", stream=True)
        sock.sendall(request_bytes(path, msgspec.json.encode(make_body("gemini", "m"))))
        wait_until(lambda: fake.sent >= len(opening))
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        sock.settimeout(60)
        token.set()
        seen = b""
        while not seen.endswith(b"\r\n0\r\n\r\n"):
            seen += (piece := sock.recv(65536))
            assert piece, seen
    answer = unchunk(seen.partition(b"\r\n\r\n")[2])
    assert not [line for line in answer.splitlines() if line.startswith(b":")]
    assert answer == body or upstream != "gemini"


def without_keep_alives(body: bytes) -> bytes:
    return b"\n\n".join(piece for piece in body.split(b"\n\n") if not piece.startswith((b":", PING.strip())))


def test_a_provider_may_set_its_own_time(tmp_path: Path) -> None:
    """That of the server would be five minutes. A timeout is not retried."""
    cases = list(product(FEW_PAIRS, (True, False), (True, False)))
    with run_rig(tmp_path, "[retry]\nattempts = 3\n") as rig, ThreadPoolExecutor(len(cases)) as pool:
        hurry(rig, *PROTOCOLS)
        hanging = {"nothing": Answer(headless=True, end=End.HANG), "stream": Answer(end=End.HANG)}
        hanging["whole"] = Answer(end=End.HANG, content_type=JSON)
        for kind in PROTOCOLS:
            rig.play_models(kind, hanging)

        def find_status(case: tuple[tuple[str, str], bool, bool]) -> bytes:
            (client, upstream), stream, headless = case
            model = f"{upstream}/{'nothing' if headless else 'stream' if stream else 'whole'}"
            with dial(rig.port) as sock:
                sock.sendall(request_bytes(PATHS[client], msgspec.json.encode(make_body(client, model, stream=stream))))
                return sock.recv(12)

        for case, status in zip(cases, pool.map(find_status, cases), strict=True):
            assert status == b"HTTP/1.1 504", case
        assert sum(len(rig.calls(kind)) for kind in PROTOCOLS) == len(cases)


@pytest.fixture
def kiro_first(tmp_path: Path) -> Iterator[Targets]:
    settings = "[server]\nfirst_token_timeout_s = 0.8\n[retry]\nattempts = 2\nbase_s = 0.01\n"
    with run_targets(tmp_path, settings) as rig:
        yield rig


@pytest.mark.rest
def test_only_kiro_is_retried_after_its_timeout(kiro_first: Targets) -> None:
    aws, chatgpt, chat = kiro_first.on("by account")
    aws.play(Answer(headless=True, end=End.HANG), aws.answers(True))
    reply = STREAMS["messages"][0](kiro_first.sdk, request_for("messages", "by account"))
    assert isinstance(reply, SdkReply), reply
    assert reply.text == aws.name
    assert kiro_first.counts("by account") == [2, 0, 0]
    aws.play(Answer(headless=True, end=End.HANG))
    chatgpt.play(Answer(headless=True, end=End.HANG))
    chat.play(chat.answers(True))
    reply = STREAMS["messages"][0](kiro_first.sdk, request_for("messages", "by account"))
    assert isinstance(reply, SdkReply), reply
    assert kiro_first.counts("by account") == [2, 1, 1]
