"""Law 8: what is sent of a turn looks the same in every later request, whatever is marked and whatever follows."""

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.translate.caching.memory import SessionMemories
from dragoman.translate.hub.caching import CacheMode
from dragoman.translate.hub.failure import BadRequest
from laws import assert_prefixes_stay
from translate.caching.agent import WRITERS, Conversation, Item, script
from translate.caching.sessions import Session
from translate.caching.simulator import read_chat, read_gemini, read_messages, read_responses
from wire_json import Json, JsonObject

CLIENTS = ("chat", "responses", "messages", "gemini")
READERS = {"chat": read_chat, "responses": read_responses, "messages": read_messages, "gemini": read_gemini}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
POINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def mark_last(client: str, body: JsonObject) -> None:
    """Mark the newest user text as the client would, which moves the mark with every request."""
    match client:
        case "chat":
            newest = [message for message in body["messages"] if message["role"] == "user"][-1]
            newest["content"][-1] |= POINT
        case "responses":
            newest = [item for item in body["input"] if item.get("role") == "user"][-1]
            newest["content"][-1] |= POINT
        case _:
            pass  # Claude Code's requests have marks anyway, and Gemini has none


def add_picture(client: str, body: JsonObject) -> None:
    """Add an image to the first user message."""
    link = f"data:image/png;base64,{PIXEL}"
    match client:
        case "chat":
            users = [message for message in body["messages"] if message["role"] == "user"]
            for message in users:
                message["content"] = [{"type": "text", "text": message["content"]}]
            users[0]["content"].append({"type": "image_url", "image_url": {"url": link}})
        case "responses":
            body["input"][0]["content"].append({"type": "input_image", "image_url": link, "detail": "auto"})
        case "messages":
            source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
            body["messages"][0]["content"].insert(0, {"type": "image", "source": source})
        case _:
            body["contents"][0]["parts"].append({"inlineData": {"mimeType": "image/png", "data": PIXEL}})


def write(client: str, request: Conversation, *, marked: bool) -> JsonObject:
    body: JsonObject = msgspec.json.decode(msgspec.json.encode(WRITERS[client](request)))
    add_picture(client, body)
    if marked:
        mark_last(client, body)
    return body


MODELS = {"chat": "gpt-5.5", "responses": "gpt-5.5", "messages": "claude-sonnet-5", "gemini": "gemini-3.1-pro"}


def list_blocks(upstream: str, body: JsonObject) -> list[bytes]:
    return [block.content for block in READERS[upstream](body)]


@pytest.mark.parametrize("marked", [pytest.param(False, marks=pytest.mark.rest), True], ids=["unmarked", "marked"])
@pytest.mark.parametrize(("client", "upstream"), list(product(CLIENTS, CLIENTS)))
def test_a_turn_looks_the_same_in_every_later_request(client: str, upstream: str, marked: bool) -> None:
    models = [(MODELS[upstream], False)] + ([("gpt-5.6", True)] if upstream in ("chat", "responses") else [])
    for (model, breakpoints), mode in product(models, (CacheMode.AUTO, CacheMode.CLIENT)):
        session = Session(client, upstream, model, memory=SessionMemories(), mode=mode, breakpoints=breakpoints)
        sent: list[Json] = [session.send(write(client, request, marked=marked)) for request in script()]
        assert_prefixes_stay([list_blocks(upstream, body) for body in sent])


def write_rounds(rounds: list[tuple[int, bool, bool]], *, new_ids: bool) -> list[Conversation]:
    """Return requests of a conversation. Of each round: how many calls, whether they are answered, and with what."""
    items: list[Item] = [Item("user", ("go",))]
    requests: list[Conversation] = []
    for number, (calls, is_answered, is_empty) in enumerate(rounds):
        first = 10 * number if new_ids else 0
        items.append(Item("calls", tuple(f'{{"round":{number}}}' for _ in range(calls)), first))
        if is_answered:
            items.append(Item("results", tuple("" if is_empty else f"found {number}" for _ in range(calls)), first))
        else:
            items += [Item("user", (f"stop {number}",))]
        requests.append(tuple(items))
    return requests


ROUNDS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from((True, True, False)), st.booleans()), max_size=5)


@pytest.mark.parametrize(("client", "upstream"), list(product(CLIENTS, CLIENTS)))
@given(rounds=ROUNDS, new_ids=st.booleans())
def test_results_stay_with_their_calls_when_ids_repeat_or_calls_are_interrupted(
    client: str, upstream: str, rounds: list[tuple[int, bool, bool]], new_ids: bool
) -> None:
    session = Session(client, upstream, MODELS[upstream])
    sent: list[list[bytes]] = []
    for request in write_rounds(rounds, new_ids=new_ids):
        try:
            sent.append(list_blocks(upstream, session.send(WRITERS[client](request))))
        except BadRequest:  # Gemini takes no call without a result
            assert upstream == "gemini"
            return
    assert_prefixes_stay(sent)
