"""However clients mark a conversation, no request is refused for its marks: of every protocol, in any place."""

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from dragoman.translate.caching.memory import SessionMemories
from dragoman.translate.hub.caching import CacheMode
from translate.caching.agent import SYSTEM, WRITERS, prose, script
from translate.caching.sessions import Session
from translate.caching.simulator import MAX_MARKS, MessagesCache
from wire_json import Json, JsonObject

CLIENTS = ("chat", "responses", "gemini", "messages")
LONG, SHORT = SYSTEM.encode(), prose(700, "rule").encode()
SCRIPT = script()[:8]
POINT: JsonObject = {"prompt_cache_breakpoint": {"mode": "explicit"}}
ODD_POINT: JsonObject = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}


def write(client: str, number: int, odd: str) -> JsonObject:
    """Return a request of the script, with texts in lists and an odd text among the user's."""
    written = WRITERS[client](SCRIPT[number])
    body: JsonObject = msgspec.json.decode(msgspec.json.encode(written).replace(LONG, SHORT))
    if client == "messages":
        for block in list_blocks(client, body):
            block.pop("cache_control", None)
    if client == "chat":
        for message in body["messages"]:
            if isinstance(message.get("content"), str):
                message["content"] = [{"type": "text", "text": message["content"]}]
        body["messages"][1]["content"].append({"type": "text", "text": odd})
    if client == "responses":
        for item in body["input"]:
            if isinstance(item.get("output"), str):
                item["output"] = [{"type": "input_text", "text": item["output"]}]
        body["input"][0]["content"].append({"type": "input_text", "text": odd})
    return body


def list_blocks(client: str, body: JsonObject) -> list[JsonObject]:
    """Return what the client may mark, in the order of the prompt."""
    return list(find_blocks(client, body))


def find_blocks(client: str, body: JsonObject) -> Iterator[JsonObject]:
    match client:
        case "messages":
            yield from body["tools"]
            yield from body["system"]
            for message in body["messages"]:
                yield from message["content"]
        case "chat":
            for message in body["messages"]:
                yield from message.get("content") or ()
        case "responses":
            for item in body["input"]:
                yield from item.get("content", item.get("output", ()))
        case _:
            return


def mark(client: str, body: JsonObject, places: list[float], hours: int, *, top_level: bool) -> None:
    """Mark blocks at these shares of the prompt; of a Messages client the first of them for an hour, as is allowed."""
    blocks = list_blocks(client, body)
    chosen = sorted({int(place * len(blocks)) for place in places}) if blocks else []
    for number, index in enumerate(chosen):
        if client == "messages":
            ttl = {"ttl": "1h"} if number < hours else {}
            blocks[index]["cache_control"] = {"type": "ephemeral", **ttl}
        else:
            blocks[index].update(ODD_POINT if number < hours else POINT)
    if top_level and client == "messages":
        body["cache_control"] = blocks[-1].get("cache_control") or {"type": "ephemeral"}


class Case(Struct, frozen=True):
    client: str
    mode: CacheMode
    numbers: tuple[int, ...]  # which requests of the script are sent, one after another
    places: list[float]
    hours: int
    top_level: bool
    gap_s: float
    odd: str


CASES = st.builds(
    Case,
    client=st.sampled_from(CLIENTS),
    mode=st.sampled_from((CacheMode.AUTO, CacheMode.CLIENT)),
    numbers=st.lists(st.integers(0, len(SCRIPT) - 1), min_size=1, max_size=3).map(tuple),
    places=st.lists(st.floats(0, 0.999), max_size=6),
    hours=st.integers(0, 6),
    top_level=st.booleans(),
    gap_s=st.sampled_from((5.0, 480.0, 5400.0)),
    odd=st.sampled_from(("", " ", "x")),
)


def check(case: Case) -> None:
    session = Session(case.client, "messages", memory=SessionMemories(), mode=case.mode)
    upstream = MessagesCache(1024)
    for turn, number in enumerate(case.numbers):
        body = write(case.client, number, case.odd)
        mark(case.client, body, case.places, case.hours, top_level=case.top_level)
        sent = session.send(body, at=turn * case.gap_s)
        upstream.send(sent, at=turn * case.gap_s)
        assert count_marks(sent) <= MAX_MARKS


def count_marks(value: Json) -> int:
    if isinstance(value, dict):
        return sum(name == "cache_control" or count_marks(inner) for name, inner in value.items())
    return sum(map(count_marks, value)) if isinstance(value, list) else 0


@settings(max_examples=60)
@given(CASES)
def test_no_request_of_a_marked_conversation_is_refused(case: Case) -> None:
    check(case)


@pytest.mark.rest
@settings(max_examples=5_000)
@given(CASES)
def test_none_of_ten_thousand_requests_with_marks_is_refused(case: Case) -> None:
    check(case)
