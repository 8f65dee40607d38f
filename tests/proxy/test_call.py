"""A client's request, read no further than it must be."""

import pytest

from dragoman.net.bodies import UNCOUNTED_BYTES, ByteBudget
from dragoman.net.body_threads import LARGE_BYTES
from dragoman.proxy.call import Call
from dragoman.proxy.request_record import RequestRecord
from dragoman.tenancy.keys import ENVIRONMENT_KEY
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Request, Role, Text, Turn
from dragoman.translate.protocols import PROTOCOLS
from proxy.in_memory import CHAT, CHAT_STREAM, Sender, make_call, make_request, run
from tables import each_row


def test_what_routing_needs_is_read_at_once() -> None:
    call = make_call("chat", CHAT_STREAM)
    assert (call.model, call.stream, call.body) == ("m", True, CHAT_STREAM)
    assert (call.record.requested_model, call.record.stream, call.record.body) == ("m", True, CHAT_STREAM)
    assert not make_call("chat", b'{"model":"m","stream":null}').stream


@each_row(
    ("body", "at", "words"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b'"m"', None, "must be a JSON object"),
        (b"[1]", None, "must be a JSON object"),
        (b"[" * 100_000, None, ""),
        (b"{}", "/model", "model is missing"),
        (b'{"model":""}', "/model", 'got ""'),
        (b'{"model":7}', "/model", "got 7"),
        (b'{"model":"%b"}' % (b"x" * 1025), "/model", "at most 1024 bytes"),
        (b'{"model":"m","stream":"yes"}', "/stream", 'got "yes"'),
    ],
)
def test_a_body_without_what_routing_needs_is_refused_by_field(body: bytes, at: str | None, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        make_call("chat", body)
    assert refused.value.failure.kind is Kind.BAD_REQUEST
    assert refused.value.failure.at == at
    assert words in refused.value.failure.message


def test_what_only_translation_needs_is_parsed_once_and_later() -> None:
    body = b'{"model":"m","messages":7}'
    call = make_call("chat", body)
    with pytest.raises(RequestError):
        call.request()
    good = make_call("chat", CHAT)
    run(good.read())
    assert good.request() is good.request()


def test_a_large_body_is_parsed_all_the_same() -> None:
    text = b"x" * LARGE_BYTES
    call = make_call("chat", b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text)
    run(call.read())
    assert call.request().turns == (
        Turn(Role.USER, (Text(text.decode(), at="/messages/0/content"),), at="/messages/0"),
    )


def test_each_ledger_starts_with_what_parsing_lost() -> None:
    call = make_call("chat", b'{"model":"m","messages":[{"role":"user","content":"Hi"}],"no_such_field":1}')
    first = call.ledger()
    lost = len(first)
    first.record_dropped("/seed", "for one target")
    assert len(first) == lost + 1
    assert len(call.ledger()) == lost


def test_a_call_uses_the_parser_it_was_given() -> None:
    request = Request("chat", "m", (Turn(Role.USER, (Text("Hi"),)),))

    def parse(body: bytes, ledger: Ledger) -> Request:
        return request

    http = make_request()
    call = Call(PROTOCOLS["chat"], http, Sender(), RequestRecord("", "", http.headers))
    assert call.take_body(b'{"model":"m"}') == ""
    call.take_parser(parse)
    assert call.is_from_other_protocol
    assert call.request() is request
    assert not make_call().is_from_other_protocol


@pytest.mark.parametrize(("value", "is_on"), [(b"1", True), (b"0", False), (b"true", False)])
def test_strict_mode_and_explanations_are_requested_by_header(value: bytes, is_on: bool) -> None:
    assert make_call("chat", CHAT, [(b"x-dragoman-strict", value)]).strict is is_on
    assert make_call("chat", CHAT, [(b"x-dragoman-explain", value)]).explain is is_on
    assert not make_call().strict
    assert not make_call().explain


def test_the_owner_uses_the_key_of_the_environment() -> None:
    assert make_call(key=ENVIRONMENT_KEY).is_owner
    assert not make_call(key="key_1").is_owner
    assert make_call(tenant="them").tenant == "them"


def test_each_call_has_an_id_that_no_client_chooses() -> None:
    call = make_call()
    assert call.uuid == call.uuid != make_call().uuid


def test_usage_of_a_reply_that_is_thrown_away_is_not_counted() -> None:
    budget = ByteBudget(10 * UNCOUNTED_BYTES)
    request = make_request(budget=budget)
    request.buffered.hold(2 * UNCOUNTED_BYTES)  # the request's body
    call = make_call(request=request)
    call.buffered.hold(3 * UNCOUNTED_BYTES)
    assert budget.held == 4 * UNCOUNTED_BYTES
    call.release_reply()
    assert budget.held == UNCOUNTED_BYTES
