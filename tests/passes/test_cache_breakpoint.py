"""A Messages request that is cached up to its end keeps that wish with other vendors, on its last part."""

import msgspec
import pytest

from dragoman.hub.loss import Ledger, LossKind
from dragoman.hub.profile import Target
from dragoman.protocols import PROTOCOLS
from wire_json import Json, JsonObject

AUTOMATIC = {"type": "ephemeral", "ttl": "1h"}
KEPT = {"mode": "explicit", "ttl": "12h"}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1n"}}


def answered(content: object) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": content}]}


def built(
    target: str, *messages: object, quirks: frozenset[str] = frozenset(), **fields: object
) -> tuple[JsonObject, dict[str, LossKind]]:
    """The body for an upstream, and the losses of the request."""
    client, upstream = PROTOCOLS["messages"].client, PROTOCOLS[target].upstream
    assert client is not None
    assert upstream is not None
    body = {"model": "m", "max_tokens": 100, "cache_control": AUTOMATIC, "messages": messages, **fields}
    ledger = Ledger()
    request = client.parse(msgspec.json.encode(body), ledger)
    sent = upstream.build(request, Target("vendor-model", "vendor", quirks=quirks), ledger)
    return msgspec.json.decode(sent), {loss.path: loss.how for loss in ledger}


def contents(body: JsonObject) -> list[Json]:
    """Return the text of each message or item, in order."""
    turns = body.get("messages") or body["input"]
    return [item.get("content", item.get("output")) for item in turns]


@pytest.mark.parametrize(("target", "text"), [("chat", "text"), ("responses", "input_text")])
def test_the_last_part_of_the_user_bears_the_breakpoint(target: str, text: str) -> None:
    second = {"role": "user", "content": [{"type": "text", "text": "b"}, IMAGE]}
    body, lost = built(target, {"role": "user", "content": "a"}, {"role": "assistant", "content": "ok"}, second)
    last = contents(body)[-1]
    assert last[0] == {"type": text, "text": "b"}
    assert last[1]["prompt_cache_breakpoint"] == KEPT
    assert msgspec.json.encode(body).count(b"prompt_cache_breakpoint") == 1
    assert lost == {"/cache_control": LossKind.APPROXIMATED}


@pytest.mark.parametrize(("target", "text"), [("chat", "text"), ("responses", "input_text")])
def test_a_result_at_the_end_gets_the_breakpoint_too(target: str, text: str) -> None:
    body, lost = built(target, {"role": "user", "content": "a"}, CALL, answered("4C"))
    assert contents(body)[-1] == [{"type": text, "text": "4C", "prompt_cache_breakpoint": KEPT}]
    assert lost == {"/cache_control": LossKind.APPROXIMATED}


@pytest.mark.parametrize("target", ["chat", "responses"])
@pytest.mark.parametrize("end", [answered([]), answered(""), {"role": "assistant", "content": "so"}])
def test_a_part_without_breakpoints_leaves_it_to_the_part_before(target: str, end: dict[str, object]) -> None:
    body, lost = built(target, {"role": "user", "content": "a"}, CALL, end)
    first = contents(body)[0]
    assert first[-1]["prompt_cache_breakpoint"] == KEPT
    assert lost["/cache_control"] is LossKind.APPROXIMATED


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_a_breakpoint_that_the_client_set_there_itself_stays_as_it_is(target: str) -> None:
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "5m"}}
    body, lost = built(target, {"role": "user", "content": [marked]})
    assert contents(body)[0][0]["prompt_cache_breakpoint"] == {"mode": "explicit", "ttl": "30m"}
    assert lost["/cache_control"] is LossKind.APPROXIMATED


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_a_request_without_a_part_that_takes_the_breakpoint_loses_it(target: str) -> None:
    body, lost = built(target, {"role": "assistant", "content": "so"})
    assert b"prompt_cache_breakpoint" not in msgspec.json.encode(body)
    assert lost["/cache_control"] is LossKind.DROPPED


def test_servers_without_breakpoints_lose_it() -> None:
    body, lost = built("chat", {"role": "user", "content": "a"}, quirks=frozenset({"plain"}))
    assert contents(body) == ["a"]
    assert lost == {"/cache_control": LossKind.DROPPED}
    assert built("kiro", {"role": "user", "content": "a"})[1]["/cache_control"] is LossKind.DROPPED


def test_its_own_protocol_keeps_it_word_for_word() -> None:
    setting = {**AUTOMATIC, "scope": "x"}
    body, lost = built("messages", {"role": "user", "content": "a"}, cache_control=setting)
    assert body["cache_control"] == setting
    assert (contents(body), lost) == (["a"], {})
    unheard = {"type": "eternal", "ttl": "9y"}
    assert built("messages", {"role": "user", "content": "a"}, cache_control=unheard)[0]["cache_control"] == unheard


def test_with_four_breakpoints_of_its_own_the_first_one_goes() -> None:
    marked = [{"type": "text", "text": str(n), "cache_control": {"type": "ephemeral"}} for n in range(4)]
    body, lost = built("messages", {"role": "user", "content": marked})
    assert ["cache_control" in block for block in contents(body)[0]] == [False, True, True, True]
    assert lost == {"/messages/0/content/0/cache_control": LossKind.DROPPED}
