"""Token counts before a request: the upstream's own where it counts, else our estimate, marked as one."""

import msgspec
import pytest

from dragoman.config.settings import ModelRoute
from dragoman.proxy.count_tokens import count_tokens
from dragoman.proxy.steps.choose_routes import find_routes
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.upstreams.provider import Endpoint
from fakes.upstream import Answer, End, FakeUpstream, ReceivedRequest
from outgoing import open_http
from proxy.in_memory import (
    MESSAGES,
    ClientReply,
    MemoryWire,
    make_call,
    make_provider,
    make_request,
    make_sink,
    make_world,
    run,
)
from proxy.rigs import document, refusal

RESPONSES = b'{"model":"m","input":"Go on."}'
COUNTED = document(b'{"input_tokens":  4242 }')


def count(
    answer: Answer, protocol: str = "messages", body: bytes = MESSAGES, *, speaks: str = "messages", counts: bool = True
) -> tuple[ClientReply, list[ReceivedRequest]]:
    async def send_request(fake: FakeUpstream) -> ClientReply:
        async with open_http() as client:
            provider = make_provider(
                "one",
                key=b"sk-0123456789abcdef",
                endpoint=Endpoint(fake.url, (speaks,), client.send, counts_tokens=counts),
            )
            runtime = make_world(provider, models=(ModelRoute("m", ("one/vendor-m",)),))
            wire = MemoryWire()
            call = make_call(protocol, body, request=make_request())
            await find_routes(call, runtime)
            await count_tokens(call, make_sink(wire))
            return wire.reply

    with FakeUpstream([answer], models=("vendor-m",)) as fake:
        return run(send_request(fake)), fake.calls


@pytest.mark.parametrize(
    ("protocol", "body", "path"),
    [("messages", MESSAGES, "/v1/messages/count_tokens"), ("responses", RESPONSES, "/v1/responses/input_tokens")],
)
def test_an_upstream_that_counts_gets_the_request_and_its_answer_passes(protocol: str, body: bytes, path: str) -> None:
    reply, [request] = count(COUNTED, protocol, body, speaks=protocol)
    assert (reply.status, reply.body) == (200, COUNTED.body)
    assert reply.headers.get(b"x-dragoman-route") == b"one/vendor-m"
    assert reply.headers.get(b"x-dragoman-estimate") is None
    assert (request.path, request.json["model"]) == (path, "vendor-m")
    assert request.headers["authorization"] == "Bearer sk-0123456789abcdef"


@pytest.mark.parametrize(
    ("answer", "speaks", "counts", "questions"),
    [
        (COUNTED, "chat", True, 0),
        (COUNTED, "messages", False, 0),
        (refusal(500), "messages", True, 1),
        (document(b'{"type":"error","error":{"type":"api_error","message":"not now"}}'), "messages", True, 1),
        (document(b'{"input_tokens":"many"}'), "messages", True, 1),
        (Answer(b"\xff\xfe"), "messages", True, 1),
        (Answer(b'{"input_tok', end=End.CUT), "messages", True, 1),
        (Answer(headless=True, end=End.RESET), "messages", True, 1),
        (document(b'{"input_tokens":1}' + b" " * 100_000), "messages", True, 1),
    ],
)
def test_without_a_count_the_tokens_are_estimated_and_marked(
    answer: Answer, speaks: str, counts: bool, questions: int
) -> None:
    reply, requests = count(answer, speaks=speaks, counts=counts)
    assert reply.status == 200
    assert reply.headers.get(b"x-dragoman-estimate") == b"1"
    assert reply.headers.get(b"request-id") == b"req_1"
    assert 0 < msgspec.json.decode(reply.body)["input_tokens"] < 40
    assert len(requests) == questions


def test_an_estimate_has_the_shape_of_the_protocol() -> None:
    reply, _ = count(refusal(500), "responses", RESPONSES, speaks="responses")
    assert msgspec.json.decode(reply.body)["object"] == "response.input_tokens"


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        count(COUNTED, body=MESSAGES.replace(b'"m"', b'"unknown"'))
    assert refused.value.failure.kind is Kind.NOT_FOUND


def test_a_request_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        count(COUNTED, body=b'{"model":"m","messages":7}', speaks="chat")
    assert refused.value.failure.kind is Kind.BAD_REQUEST
