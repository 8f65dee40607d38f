"""A conversation without any turn is a 400 that names the field when translated, and passes in its own protocol."""

import pytest

from rig import PROTOCOLS, Rig
from scripting import write_reply
from wire_json import JsonObject

EMPTY: list[tuple[str, JsonObject]] = [
    ("chat", {"messages": []}),
    ("messages", {"messages": []}),
    ("messages", {"messages": [], "system": "Be brief."}),
    ("responses", {"input": []}),
    ("responses", {"input": ""}),
    ("responses", {"input": [], "instructions": "Be brief."}),
]
empty = pytest.mark.parametrize(("client", "fields"), EMPTY)


@empty
@pytest.mark.parametrize("upstream", PROTOCOLS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_conversation_is_refused_unless_it_passes_through(
    gate: Rig, client: str, fields: JsonObject, upstream: str, stream: bool
) -> None:
    answered = write_reply(upstream, "Hello") if stream else write_reply(upstream, "Hello", stream=False)
    fake = gate.play(upstream, answered)
    answer = gate.ask(client, upstream, stream=stream, **fields)
    if client == upstream:
        assert answer.status == 200, answer.body
        assert len(fake.calls) == 1
        return
    [name] = [field for field in ("messages", "input") if field in fields]
    error = answer.json["error"]
    assert answer.status == 400
    assert f"/{name} must hold" in error["message"]
    assert error["type"] == "invalid_request_error"
    if client != "messages":
        assert error["param"] == name
    assert fake.calls == []


def test_tokens_of_an_empty_conversation_are_not_estimated(gate: Rig) -> None:
    body = b'{"model":"chat/m","messages":[]}'
    answer = gate.send("POST", "/v1/messages/count_tokens", body)
    assert answer.status == 400
    assert "/messages must hold at least one message, got []" in answer.json["error"]["message"]
