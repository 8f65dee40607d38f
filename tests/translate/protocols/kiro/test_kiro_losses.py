"""No field vanishes quietly on its way to Kiro, and what real clients send arrives as what Kiro accepts."""

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path

import msgspec
import pytest

from clients.captured import list_captured
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.protocols.kiro.wire import KiroOptions
from tables import each_row
from translate.protocols.kiro.kiro_requests import Built, ask, chat, expect_refusal, user
from wire_json import Json, JsonObject

FIXTURES = Path(__file__).parents[3] / "fixtures"

# What Kiro refuses by name, each tested elsewhere.
REFUSED_PARTS = ("application/pdf", "file_id", "file_url", "input_audio", "https://pictures", "https://example.com/cat")

# Fields that concern the gateway's own answer, and not the request to Kiro.
OUR_OWN = ("/model", "/stream", "/stream_options", "/store", "/include")

# Fields that may go unnoticed: what they say by themselves, or what only the vendor that gave it understands.
UNHEARD = {
    "type": "there is one type that fits, or one that is meant where none is named",
    "role": "system and developer mean the same",
    "id": "an item's id",
    "status": "of an item that is over",
    "annotations": "none",
    "logprobs": "none",
    "refusal": "none",
    "properties": "none",
    "ttl": "of a cache that Kiro does not have",
    "mode": "of a cache that Kiro does not have",
    "prompt_cache_key": "it names the session",
}


def make_rich_request(protocol: str) -> JsonObject:
    body: JsonObject = msgspec.json.decode((FIXTURES / protocol / "request.json").read_bytes())
    for turn in body["messages" if protocol != "responses" else "input"]:
        if isinstance(turn.get("content"), list):
            turn["content"] = [
                part
                for part in turn["content"]
                if not any(word in msgspec.json.encode(part).decode() for word in REFUSED_PARTS)
            ]
    return body


def leaves(value: object, at: str = "") -> Iterator[str]:
    held: list[tuple[object, object]] = []
    if isinstance(value, dict):
        held = list(value.items())
    elif isinstance(value, list):
        held = list(enumerate(value))
    if not held:
        yield at
    for key, inner in held:
        yield from leaves(inner, f"{at}/{str(key).replace('~', '~0').replace('/', '~1')}")


def without(body: JsonObject, at: str) -> JsonObject:
    """The body without one leaf."""
    body = deepcopy(body)
    holder: Json = body
    *path, last = (token.replace("~1", "/").replace("~0", "~") for token in at.split("/")[1:])
    for token in path:
        holder = holder[int(token)] if isinstance(holder, list) else holder[token]
    if isinstance(holder, list):
        del holder[int(last)]
    else:
        del holder[last]
    return body


def names_leaf(built: Built, at: str) -> bool:
    """Whether the ledger names a leaf, what holds it, or what it holds."""
    paths = [loss.path for loss in built.ledger if loss.path]
    return any(at == path or at.startswith(f"{path}/") or path.startswith(f"{at}/") for path in paths)


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_every_leaf_of_a_rich_request_changes_the_body_or_stands_in_the_ledger(protocol: str) -> None:
    body = make_rich_request(protocol)
    whole = ask(protocol, body)
    vanished = []
    for at in leaves(body):
        if f"/{at.split('/')[1]}" in OUR_OWN or names_leaf(whole, at):
            continue
        try:
            if ask(protocol, without(body, at)).body == whole.body and at.rpartition("/")[2] not in UNHEARD:
                vanished.append(at)
        except RequestError:
            continue  # it was needed
    assert vanished == []


@each_row(
    ("field", "value", "at"),
    [
        ("temperature", 0.5, "/temperature"),
        ("top_p", 0.5, "/top_p"),
        ("top_k", 4, "/top_k"),
        ("stop", ["x"], "/stop"),
        ("seed", 7, "/seed"),
        ("frequency_penalty", 0.5, "/frequency_penalty"),
        ("presence_penalty", 0.5, "/presence_penalty"),
        ("logprobs", True, "/logprobs"),
        ("max_completion_tokens", 9, "/max_completion_tokens"),
        ("verbosity", "low", "/verbosity"),
        ("metadata", {"a": "b"}, "/metadata"),
        ("user", "u", "/user"),
        ("safety_identifier", "s", "/safety_identifier"),
        ("service_tier", "flex", "/service_tier"),
    ],
)
def test_a_setting_without_a_channel_is_dropped_and_recorded(field: str, value: object, at: str) -> None:
    built = ask("chat", chat(user("hi"), **{field: value}))
    assert at in built.dropped
    assert built.body == ask("chat", chat(user("hi"))).body


def test_a_setting_at_its_default_is_no_loss() -> None:
    usual = {"temperature": 1, "top_p": 1, "n": 1, "logprobs": False, "service_tier": "auto", "frequency_penalty": 0}
    assert len(ask("chat", chat(user("hi"), **usual)).ledger) == 0


def test_several_answers_at_once_are_refused() -> None:
    assert expect_refusal(lambda: ask("chat", chat(user("hi"), n=2))).at == "/n"


def test_a_shape_of_the_answer_is_requested_in_the_prompt() -> None:
    built = ask("chat", chat(user("hi"), response_format={"type": "json_object"}))
    assert "JSON" in built.current["content"]
    assert "/response_format" in built.approximated
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "description": "An x."}}
    built = ask("chat", chat({"role": "system", "content": "S"}, user("hi"), response_format=response_format))
    assert built.current["content"].startswith("S\n\n")
    assert built.current["content"].endswith(msgspec.json.encode(schema).decode() + "\n\nhi")
    assert "An x." in built.current["content"]


def real_bodies() -> Iterator[tuple[str, str, JsonObject]]:
    for path in sorted(FIXTURES.glob("kiro/requests/*.json")):
        protocol, _, _ = path.stem.partition("_")
        yield path.stem, protocol, msgspec.json.decode(path.read_bytes())
    for found in list_captured():
        if found.protocol in ("chat", "messages", "responses"):
            yield found.name, found.protocol, found.json


def is_refused_by_name(body: JsonObject) -> bool:
    """Stored state, and a request whose only tool is the vendor's search."""
    only_search = [tool.get("type", "").startswith("web_search") for tool in body.get("tools", ())]
    return "thread" in body or "previous_response_id" in body or (bool(only_search) and all(only_search))


@pytest.mark.parametrize(("name", "protocol", "body"), [pytest.param(*case, id=case[0]) for case in real_bodies()])
def test_what_a_real_client_sends_arrives_as_what_kiro_accepts(name: str, protocol: str, body: JsonObject) -> None:
    for options in (KiroOptions(), KiroOptions(tool_description_max=200), KiroOptions(thinking_by="off")):
        if is_refused_by_name(body):
            assert expect_refusal(partial(ask, protocol, body, options)).at
        else:
            assert ask(protocol, body, options).current["content"]  # `ask` judges by the rules
