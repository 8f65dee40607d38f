"""What goes wrong before the first byte is a real HTTP error in the client's own shape, retried as configured."""

import socket
from collections.abc import Iterator
from contextlib import closing

import anthropic
import openai
import pytest

from e2e.cases import CASES, request_for
from e2e.faults import ACCIDENTS, ALWAYS_AGAIN, FAULTS, SECRET, Fault, assert_error, body_of, refusal
from fakes.upstream import Answer
from gateway import KEY, provider_section, running
from rig import FEW_PAIRS, PROTOCOLS, Rig, run_rig, walk
from sdk_replies import STREAMS, WHOLE, Broke, Sdk, SdkReply, expect_for

RETRIES = f"[retry]\nattempts = {ALWAYS_AGAIN}\nbase_s = 0.01\n"

MODES = (False, True)  # whole, stream
each_pair = pytest.mark.parametrize(("client", "upstream", "stream"), walk([PROTOCOLS, PROTOCOLS], [MODES]))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with run_rig(tmp_path_factory.mktemp("gateway"), RETRIES) as shared:
        yield shared


def error_of(sdk: Sdk, client: str, model: str, stream: bool) -> Exception:
    if stream:
        reply = STREAMS[client][0](sdk, request_for(client, model))
        assert isinstance(reply, Broke), reply
        assert reply.text == ""
        return reply.error
    with pytest.raises(Exception) as raised:  # noqa: PT011 - which one it is, assert_error judges
        WHOLE[client](sdk, request_for(client, model))
    return raised.value


@pytest.mark.parametrize(("client", "name", "upstream", "stream"), walk([PROTOCOLS, FAULTS], [PROTOCOLS, MODES]))
def test_a_refusal_keeps_its_meaning(rig: Rig, client: str, upstream: str, stream: bool, name: str) -> None:
    fault = FAULTS[name]
    fake = rig.play(upstream, refusal(upstream, fault))
    error = error_of(rig.sdk, client, rig.model(upstream), stream)
    passed = client == upstream and fault.status not in (401, 403)
    assert_error(client, error, fault.status if passed else fault.seen.get(client, fault.status))
    assert len(fake.calls) == fault.calls
    assert rig.sdk.headers.get("x-should-retry") == ("false" if fault.status in (401, 403) else None)
    assert rig.sdk.headers.get("retry-after") == dict(fault.headers).get("retry-after")
    if passed:
        assert isinstance(error, openai.APIStatusError | anthropic.APIStatusError)
        assert error.response.content == body_of(upstream, fault)
    if fault.status == 401:
        assert f"Provider '{upstream}'" in str(error)
    else:
        assert fault.message in str(error)


@pytest.mark.parametrize(("client", "name", "upstream", "stream"), walk([PROTOCOLS, ACCIDENTS], [PROTOCOLS, MODES]))
def test_an_accident_is_a_bad_gateway(rig: Rig, client: str, upstream: str, stream: bool, name: str) -> None:
    fake = rig.play(upstream, ACCIDENTS[name])
    error = error_of(rig.sdk, client, rig.model(upstream), stream)
    assert_error(client, error, 502)
    assert "<" not in str(error)
    assert len(fake.calls) == ALWAYS_AGAIN
    assert "x-should-retry" not in rig.sdk.headers


@each_pair
def test_an_error_under_a_good_status_is_an_error(rig: Rig, client: str, upstream: str, stream: bool) -> None:
    fault = Fault(200, ("rate_limit_error", "rate_limit_exceeded"), "rate_limit_error")
    fake = rig.play(upstream, refusal(upstream, fault))
    error = error_of(rig.sdk, client, rig.model(upstream), stream)
    assert_error(client, error, 429)
    assert fault.message in str(error)
    assert len(fake.calls) == ALWAYS_AGAIN


@pytest.mark.parametrize(("client", "upstream"), FEW_PAIRS)
def test_an_error_as_the_first_event_is_a_real_status(rig: Rig, client: str, upstream: str) -> None:
    fault = Fault(200, ("rate_limit_error", "rate_limit_exceeded"), "rate_limit_error")
    name = b"event: error\n" if upstream == "messages" else b""
    rig.play(upstream, Answer(b"%bdata: %b\n\n" % (name, body_of(upstream, fault))))
    assert_error(client, error_of(rig.sdk, client, rig.model(upstream), True), 429)


@each_pair
def test_the_reply_of_the_second_attempt_is_returned(rig: Rig, client: str, upstream: str, stream: bool) -> None:
    scripted = CASES["text"].scripted
    bad = Fault(429, ("rate_limit_error", None), "rate_limit_error", headers=(("retry-after-ms", "20"),))
    fake = rig.play(upstream, refusal(upstream, bad), ACCIDENTS["reset before the first byte"], scripted, stream=stream)
    listen = STREAMS[client][0] if stream else WHOLE[client]
    assert listen(rig.sdk, request_for(client, rig.model(upstream))) == expect_for(client, upstream, scripted)
    assert len(fake.calls) == ALWAYS_AGAIN
    assert "x-should-retry" not in rig.sdk.headers


@each_pair
def test_an_upstream_that_refuses_connections_is_a_bad_gateway(
    client: str, upstream: str, stream: bool, unreachable: Sdk
) -> None:
    error = error_of(unreachable, client, f"{upstream}/m", stream)
    assert_error(client, error, 502)
    assert upstream in str(error)
    assert "x-should-retry" not in unreachable.headers


@pytest.fixture(scope="module")
def unreachable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sdk]:
    with closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but never listening
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        sections = "".join(provider_section(name, url, name) for name in PROTOCOLS)
        with running(RETRIES + sections, tmp_path_factory.mktemp("nobody")) as gateway:
            sdk = Sdk(gateway.url, KEY)
            yield sdk
            sdk.close()


def test_the_next_target_answers_for_a_dead_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    scripted = CASES["text"].scripted
    routes = '[[models]]\nname = "any"\nto = ["chat/one", "messages/two"]\n'
    with run_rig(tmp_path_factory.mktemp("gateway"), RETRIES + routes) as rig:
        chat = rig.play("chat", refusal("chat", FAULTS["401"]))
        rig.play("messages", scripted)
        for client in PROTOCOLS:
            reply = STREAMS[client][0](rig.sdk, request_for(client, "any"))
            assert isinstance(reply, SdkReply)
            assert reply == expect_for(client, "messages", scripted)
            assert rig.sdk.headers["x-dragoman-route"] == "messages/two"
        assert len(chat.calls) == len(PROTOCOLS)
        rig.play("chat", refusal("chat", FAULTS["400"]))
        messages = rig.play("messages", scripted)
        assert_error("chat", error_of(rig.sdk, "chat", "any", True), 400)
        assert messages.calls == []


def test_the_upstreams_secret_is_the_one_that_these_tests_look_for() -> None:
    assert SECRET in provider_section("chat", "http://127.0.0.1:1/v1")
