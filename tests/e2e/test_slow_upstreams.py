"""Slow upstreams that send signs of life are awaited; until a reply's first event another target may still answer."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import pytest

import grammar_chat
import grammar_messages
import grammar_responses
from dragoman.config import load
from e2e.cases import request_for
from e2e.targets import Targets, run_targets
from fakes.upstream import Answer, End, ReceivedRequest
from gateway import KEY
from raw_http import Answered, dial, post, request_bytes
from rig import ENCODERS, FEW_PAIRS, PATHS, PROTOCOLS, Rig, run_rig
from scripting.replies import ScriptedReply, Text
from sdk_replies import STREAMS, Sdk, SdkReply

GRAMMARS = {"chat": grammar_chat, "responses": grammar_responses, "messages": grammar_messages}
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
FOR_EVER = 10_000  # signs of life
TWO = '[[models]]\nname = "two"\nto = ["{first}/slow", "{second}/other"]\n'
REPLY = "The other one answers."

few_pairs = pytest.mark.parametrize(("client", "upstream"), FEW_PAIRS)


def make_answer(kind: str) -> Answer:
    return Answer(ENCODERS[kind].encode_stream(ScriptedReply((Text(REPLY),))))


def test_the_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    server = load(None, {}, tmp_path, tmp_path, {}).server
    assert (server.first_token_timeout_s, server.token_timeout_s, server.idle_timeout_s) == (300, 900, 300)


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    times = "[server]\nfirst_token_timeout_s = 2.5\nkeep_alive_s = 0.3\n"
    with run_rig(tmp_path_factory.mktemp("gateway"), times) as shared:
        yield shared


@few_pairs
@pytest.mark.parametrize("sign", [b": still reading\n\n", PING], ids=["comments", "pings"])
def test_any_byte_is_a_sign_of_life(hurried: Rig, client: str, upstream: str, sign: bytes) -> None:
    """Ten signs of life, half a second apart: twice as long as the longest allowed pause."""
    if sign is PING and upstream != "messages":
        return  # a ping is an event of Messages alone
    fake = hurried.play(upstream, replace(make_answer(upstream), signs=10, sign=sign, sign_pause_s=0.5))
    reply = STREAMS[client][0](hurried.sdk, request_for(client, hurried.model(upstream)))
    assert isinstance(reply, SdkReply), reply
    assert reply.text == REPLY
    assert len(fake.calls) == 1


ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Too much.", "code": None}}
# Ways to give the client nothing of a reply, though it has been kept alive for a while.
SLOW = {
    "comments": Answer(signs=FOR_EVER, sign_pause_s=0.2),
    "silence": Answer(end=End.HANG),
    "headless": Answer(headless=True, end=End.HANG),
    "reset": Answer(signs=5, sign_pause_s=0.2, end=End.RESET),
    "error": Answer(b"event: error\ndata: " + msgspec.json.encode(ERROR) + b"\n\n", signs=5, sign_pause_s=0.2),
}
LIMITS = "[server]\nkeep_alive_s = 0.1\nfirst_token_timeout_s = 3\ntoken_timeout_s = 3\n[retry]\nattempts = 1\n"
ORDERS = (("chat", "messages"), ("messages", "responses"), ("responses", "chat"))


def play_by_name(rig: Rig) -> None:
    """The name of a model decides how its upstream answers."""
    for kind, fake in rig.fakes.items():

        def choose(request: ReceivedRequest, kind: str = kind) -> Answer:
            return SLOW.get(str(request.json["model"])) or make_answer(kind)

        fake.choose = choose


def calls(rig: Rig, kind: str, model: str) -> int:
    return sum(call.json["model"] == model for call in rig.fakes[kind].calls)


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_the_next_target_answers_though_the_client_was_kept_alive(first: str, second: str, tmp_path: Path) -> None:
    """Of the same protocol as the first target, as the second, and as neither; all of them at the same time."""
    routes = "".join(f'[[models]]\nname = "{way}"\nto = ["{first}/{way}", "{second}/good"]\n' for way in SLOW)
    cases = list(product(PROTOCOLS, SLOW))
    with run_rig(tmp_path, LIMITS + routes) as rig, ThreadPoolExecutor(len(cases)) as pool:
        play_by_name(rig)
        sdks = [Sdk(rig.gateway.url, KEY) for _ in cases]
        reply = list(pool.map(lambda sdk, case: STREAMS[case[0]][0](sdk, request_for(*case)), sdks, cases))
        for (client, way), sdk, text in zip(cases, sdks, reply, strict=True):
            sdk.close()
            assert isinstance(text, SdkReply), (client, way, text)
            assert text.text == REPLY, (client, way)
            # Nothing of ours goes before a reply that passes through, so there the head waits for the upstream's.
            named = f"{second}/good" if (client, way) == (first, "headless") else f"{first}/{way}"
            assert sdk.headers["x-dragoman-route"] == named, (client, way)
        for way in SLOW:
            assert calls(rig, first, way) == len(PROTOCOLS), way
        assert calls(rig, second, "good") == len(cases)


def test_the_trailers_name_who_answered_after_all(tmp_path: Path) -> None:
    with run_rig(tmp_path, LIMITS + TWO.format(first="chat", second="responses")) as rig:
        rig.play("chat", SLOW["silence"])
        rig.play("responses", make_answer("responses"))
        body = msgspec.json.encode({**request_for("messages", "two"), "stream": True})
        with dial(rig.gateway.port) as sock:
            sock.sendall(request_bytes(PATHS["messages"], body, "connection: close"))
            answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b"x-dragoman-route: chat/slow\r\n" in answer.partition(b"\r\n\r\n")[0]
    assert answer.endswith(b"0\r\nx-dragoman-route: chat/slow, responses/other\r\n\r\n")


def test_without_any_reply_the_stream_ends_with_one_error(tmp_path: Path) -> None:
    cases = [(client, upstream, way) for (client, upstream), way in product(FEW_PAIRS, SLOW)]
    with run_rig(tmp_path, LIMITS) as rig, ThreadPoolExecutor(len(cases)) as pool:
        play_by_name(rig)

        def ask(case: tuple[str, str, str]) -> Answered:
            client, upstream, way = case
            body = msgspec.json.encode({**request_for(client, f"{upstream}/{way}"), "stream": True})
            return post(rig.gateway.port, PATHS[client], body)

        answers = list(pool.map(ask, cases))
        for (client, upstream, way), answer in zip(cases, answers, strict=True):
            if way == "headless" and client == upstream:
                assert answer.status == 504
                continue
            assert answer.status == 200, (client, upstream, way)
            text, error = GRAMMARS[client].fold_broken(without_keep_alives(answer.body))
            assert (text, bool(error["message"])) == ("", True), (client, upstream, way)
        results = Counter(rig.gateway.outcome(answer.get("x-request-id") or "").outcome for answer in answers)
        assert results == {"timeout": 18, "lost": 6, "overloaded": 6}


def without_keep_alives(body: bytes) -> bytes:
    return b"\n\n".join(piece for piece in body.split(b"\n\n") if not piece.startswith((b":", PING.strip())))


@few_pairs
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("headless", [True, False], ids=["nothing", "head alone"])
def test_a_provider_may_set_its_own_time(
    tmp_path: Path, client: str, upstream: str, stream: bool, headless: bool
) -> None:
    with run_rig(tmp_path, "[retry]\nattempts = 3\n") as rig:
        config = (tmp_path / "dragoman.toml").read_text()
        own = config.replace(f"[providers.{upstream}]", f"[providers.{upstream}]\nfirst_token_timeout_s = 1")
        rig.gateway.adopt(own)
        kind = "text/event-stream" if stream else "application/json"
        fake = rig.play(upstream, Answer(headless=headless, end=End.HANG, content_type=kind))
        body = msgspec.json.encode({**request_for(client, rig.model(upstream)), "stream": stream})
        with dial(rig.gateway.port, 60) as sock:
            sock.sendall(request_bytes(PATHS[client], body))
            assert sock.recv(64).startswith(b"HTTP/1.1 504")
        assert len(fake.calls) == 1


@pytest.fixture
def kiro_first(tmp_path: Path) -> Iterator[Targets]:
    settings = "[server]\nfirst_token_timeout_s = 1.5\n[retry]\nattempts = 3\nbase_s = 0.01\n"
    with run_targets(tmp_path, settings) as rig:
        yield rig


def test_only_kiro_is_retried_after_its_timeout(kiro_first: Targets) -> None:
    aws, chatgpt, chat = kiro_first.on("by account")
    aws.play(Answer(headless=True, end=End.HANG), Answer(headless=True, end=End.HANG), aws.answers(True))
    reply = STREAMS["messages"][0](kiro_first.sdk, request_for("messages", "by account"))
    assert isinstance(reply, SdkReply), reply
    assert reply.text == aws.name
    assert kiro_first.counts("by account") == [3, 0, 0]
    aws.play(Answer(headless=True, end=End.HANG))
    chatgpt.play(Answer(headless=True, end=End.HANG))
    chat.play(chat.answers(True))
    reply = STREAMS["messages"][0](kiro_first.sdk, request_for("messages", "by account"))
    assert isinstance(reply, SdkReply), reply
    assert kiro_first.counts("by account") == [3, 1, 1]
