"""A credential that an upstream repeats in a good reply, or in its list of models, is not revealed to a client."""

import json
from pathlib import Path

import pytest

from asking import send
from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, provider_section, running
from rig import PROTOCOLS, Rig, walk
from scripting import JSON, write_reply
from scripting.replies import Text, ToolCall

SECRET = "sk-fake-upstream"
ESCAPED = "".join(f"\\u{ord(character):04x}" for character in SECRET)
PARTLY = "".join(f"\\u00{ord(c):02X}" if place % 3 == 1 else c for place, c in enumerate(SECRET))
CALL = json.dumps({"a": SECRET})
TEXT = f"You sent {SECRET}, I think. Yes, {SECRET}"

CROSSED = [(client, upstream) for client in PROTOCOLS for upstream in PROTOCOLS if client != upstream]
crossed = pytest.mark.parametrize(("client", "upstream"), CROSSED)
SIZES = [1, 2, 3, 5, 7, 16, 1000]
WRITTEN = [ESCAPED, PARTLY, ESCAPED.replace("\\", "\\\\")]


REPLY_IDS = {"chat": b"chatcmpl-fake1", "messages": b"msg_01fake", "responses": b"resp_fake1"}


def stream(upstream: str, text: str, arguments: str, size: int) -> bytes:
    """A text and a call, each in pieces of so many characters."""
    parts = (Text(text, size), ToolCall("call_1", "weather", arguments, size))
    return write_reply(upstream, parts).body


def whole(upstream: str, id: str) -> bytes:
    body = write_reply(upstream, (Text(TEXT), ToolCall(id, "weather", CALL)), stream=False).body
    return body.replace(REPLY_IDS[upstream], id.encode())


def unescape_text(body: bytes) -> bytes:
    """What a client reads that resolves every escape, however often it does."""
    for _ in range(3):
        for character in set(SECRET):
            body = body.replace(b"\\u%04x" % ord(character), character.encode())
            body = body.replace(b"\\u%04X" % ord(character), character.encode())
        body = body.replace(b"\\\\", b"\\")
    return body


def visible_text(client: str, body: bytes) -> str:
    """All texts and arguments of a stream, as a client puts them together."""
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    found = ""
    for event in events:
        if client == "chat":
            for choice in event["choices"]:
                found += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls") or ():
                    found += call["function"].get("arguments") or ""
        elif client == "messages":
            delta = event.get("delta", {})
            found += delta.get("text") or delta.get("partial_json") or ""
        elif event["type"].endswith(".delta"):
            found += event["delta"]
    return found


@pytest.mark.parametrize(("size", "pair"), walk([SIZES], [CROSSED]))
def test_a_translated_stream_does_not_repeat_it_wherever_it_is_cut(gate: Rig, pair: tuple[str, str], size: int) -> None:
    client, upstream = pair
    gate.play(upstream, Answer(stream(upstream, TEXT, CALL, size)))
    answer = gate.ask(client, upstream, stream=True)
    assert answer.status == 200
    assert SECRET not in visible_text(client, answer.body)
    assert SECRET.encode() not in answer.body
    shown = visible_text(client, answer.body)
    assert shown.startswith("You sent ")
    assert ", I think. Yes, " in shown
    assert shown.count("***") == 3


@pytest.mark.parametrize(("pair", "written", "size"), walk([CROSSED, WRITTEN], [SIZES]))
def test_escapes_do_not_hide_it_from_us_in_a_translated_stream(
    gate: Rig, pair: tuple[str, str], written: str, size: int
) -> None:
    client, upstream = pair
    arguments = f'{{"a": "{written}"}}'
    gate.play(upstream, Answer(stream(upstream, f"You sent {written}.", arguments, size)))
    answer = gate.ask(client, upstream, stream=True)
    assert answer.status == 200
    assert SECRET.encode() not in unescape_text(visible_text(client, answer.body).encode())
    assert SECRET.encode() not in unescape_text(answer.body)


@crossed
@pytest.mark.parametrize("written", [SECRET, ESCAPED, PARTLY], ids=["as it is", "all escaped", "some escaped"])
def test_a_translated_whole_reply_does_not_repeat_it(gate: Rig, client: str, upstream: str, written: str) -> None:
    body = whole(upstream, f"id-{SECRET}").replace(SECRET.encode(), written.encode())
    gate.play(upstream, Answer(body, content_type=JSON))
    answer = gate.ask(client, upstream)
    assert answer.status == 200, answer.body
    assert b"You sent ***, I think." in answer.body
    assert SECRET.encode() not in unescape_text(answer.body)


@crossed
def test_a_whole_reply_to_a_request_for_a_stream_does_not_either(gate: Rig, client: str, upstream: str) -> None:
    gate.play(upstream, Answer(whole(upstream, "id-1"), content_type=JSON))
    answer = gate.ask(client, upstream, stream=True)
    assert answer.status == 200
    assert b"You sent ***, I think." in answer.body
    assert SECRET.encode() not in answer.body


@pytest.mark.parametrize(
    ("upstream", "streamed", "written", "cut"),
    walk([PROTOCOLS, (False, True), (ESCAPED, PARTLY)], [[0, 1, 7, 64]]),
)
def test_escapes_do_not_hide_it_from_us_in_bytes_that_pass(
    gate: Rig, upstream: str, streamed: bool, written: str, cut: int
) -> None:
    body = stream(upstream, TEXT, CALL, 1000) if streamed else whole(upstream, "id-1")
    kind = "text/event-stream" if streamed else JSON
    gate.play(upstream, Answer(body.replace(SECRET.encode(), written.encode()), content_type=kind, cut=cut))
    answer = gate.ask(upstream, upstream, stream=streamed)
    assert answer.status == 200
    assert b"I think" in answer.body
    assert SECRET.encode() not in unescape_text(answer.body)


@pytest.mark.parametrize(
    ("client", "status", "upstream", "streamed", "written"),
    walk([PROTOCOLS, [200, 400, 403, 429, 500]], [PROTOCOLS, (False, True), (ESCAPED, PARTLY)]),
)
def test_escapes_do_not_hide_it_from_us_in_an_error(
    gate: Rig, client: str, upstream: str, streamed: bool, status: int, written: str
) -> None:
    error = {"type": "api_error", "message": f"Your key {SECRET} is out of luck."}
    shape = {"type": "error", "error": error} if upstream == "messages" else {"error": {**error, "param": None}}
    body = json.dumps(shape).replace(SECRET, written).encode()
    gate.play(upstream, Answer(body, status=status, content_type=JSON))
    answer = gate.ask(client, upstream, stream=streamed)
    assert answer.status >= 400
    assert b"out of luck" in answer.body
    assert SECRET.encode() not in unescape_text(answer.body)


@pytest.mark.parametrize("written", [SECRET, ESCAPED], ids=["as it is", "escaped"])
def test_a_list_of_models_does_not_repeat_it(tmp_path: Path, written: str) -> None:
    listed = [
        {"id": "m", "object": "model", "created": 1, "owned_by": SECRET, "display_name": f"The {SECRET}"},
        {"id": f"m-{SECRET}", "object": "model", "created": 1, "owned_by": "vendor"},
    ]
    body = json.dumps({"object": "list", "data": listed}).replace(SECRET, written).encode()
    pages = {path: Answer(body, content_type=JSON) for path in ("/v1/models", "/v1/models?limit=1000")}
    with FakeUpstream(pages=pages) as fake:
        sections = "".join(provider_section(name, fake.url, name) for name in PROTOCOLS)
        with running(sections, tmp_path) as gateway:
            gateway.settle()
            shapes: list[dict[str, str]] = [{}, {"anthropic-version": "2023-06-01"}, {"x-goog-api-key": KEY}]
            answers = [send(gateway, "GET", "/v1/models?limit=1000", headers=fields) for fields in shapes]
            answers += [send(gateway, "GET", f"/v1/models/{name}/m", headers=shapes[1]) for name in PROTOCOLS]
    for answer in answers:
        assert answer.status == 200, answer.body
        assert b"m" in answer.body
        assert SECRET.encode() not in unescape_text(answer.body)
    assert b"The ***" in answers[1].body
