"""Slow upstreams that send signs of life are awaited; until a reply's first event another target may still answer."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import msgspec
import pytest

from asking import ask, make_body
from dragoman.config import load
from e2e.cases import request_for
from e2e.targets import Targets, run_targets
from fakes.upstream import Answer, Delivery, End
from gateway import KEY
from raw_http import dial, request_bytes
from rig import FEW_PAIRS, ONCE, PATHS, PROTOCOLS, Rig, run_rig
from scripting import JSON, write_reply
from sdk_replies import STREAMS, SdkReply, ask_all
from sdk_replies import Reply as SdkOutcome
from surface.reading import GRAMMARS

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
    server = load(None, {}, tmp_path, tmp_path, {}).server
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


ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Too much.", "code": None}}
# Ways to give the client nothing of a reply, though it has been kept alive for a while.
SLOW = {
    "comments": Answer(signs=FOR_EVER, sign_pause_s=0.1),
    "silence": Answer(end=End.HANG),
    "headless": Answer(headless=True, end=End.HANG),
    "reset": Answer(signs=3, sign_pause_s=0.1, end=End.RESET),
    "error": Answer(b"event: error\ndata: " + msgspec.json.encode(ERROR) + b"\n\n", signs=3, sign_pause_s=0.1),
}
# The second target has all the time that it may need on a busy machine, except for its first token of all.
LIMITS = ONCE + "[server]\nkeep_alive_s = 0.05\ntoken_timeout_s = 2\n"
ORDERS = [
    ("chat", "messages"),
    pytest.param("messages", "responses", marks=pytest.mark.rest),
    pytest.param("responses", "chat", marks=pytest.mark.rest),
]


def play_slow(rig: Rig) -> None:
    for kind in PROTOCOLS:
        rig.play_models(kind, SLOW | {"good": write_reply(kind, REPLY)})


def calls(rig: Rig, kind: str, model: str) -> int:
    return sum(call.json["model"] == model for call in rig.fakes[kind].calls)


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_the_next_target_answers_though_the_client_was_kept_alive(first: str, second: str, tmp_path: Path) -> None:
    """Of the same protocol as the first target, as the second, and as neither; all of them at the same time."""
    routes = "".join(f'[[models]]\nname = "{way}"\nto = ["{first}/{way}", "{second}/good"]\n' for way in SLOW)
    cases = list(product(PROTOCOLS, SLOW))
    with run_rig(tmp_path, LIMITS + routes) as rig:
        hurry(rig, first)
        play_slow(rig)
        for (client, way), (reply, headers) in zip(cases, ask_sdks(rig, cases), strict=True):
            assert isinstance(reply, SdkReply), (client, way, reply)
            assert reply.text == REPLY, (client, way)
            # Nothing of ours goes before a reply that passes through, so there the head waits for the upstream's.
            named = f"{second}/good" if (client, way) == (first, "headless") else f"{first}/{way}"
            assert headers["x-dragoman-route"] == named, (client, way)
        for way in SLOW:
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


def test_without_any_reply_the_stream_ends_with_one_error(tmp_path: Path) -> None:
    cases = [(client, upstream, way) for (client, upstream), way in product(FEW_PAIRS, SLOW)]
    with run_rig(tmp_path, LIMITS) as rig, ThreadPoolExecutor(len(cases)) as pool:
        hurry(rig, *PROTOCOLS)
        play_slow(rig)
        answers = list(pool.map(lambda case: ask(rig, case[0], f"{case[1]}/{case[2]}", stream=True), cases))
        for (client, upstream, way), answer in zip(cases, answers, strict=True):
            if way == "headless" and client == upstream:
                assert answer.status == 504
                continue
            assert answer.status == 200, (client, upstream, way)
            text, error = GRAMMARS[client].fold_broken(without_keep_alives(answer.body))
            assert (text, bool(error["message"])) == ("", True), (client, upstream, way)
        results = Counter(rig.gateway.outcome(answer.headers["x-request-id"]).outcome for answer in answers)
        assert results == {"timeout": 18, "lost": 6, "overloaded": 6}


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
