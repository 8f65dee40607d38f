"""A conversation without any turn is a 400 that names the field when translated, and passes in its own protocol."""

import pytest

from fakes.upstream import Answer
from surface.outside import JSON, PROTOCOLS, Outside
from surface.vendor_replies import STREAM, WHOLE

EMPTY: list[tuple[str, dict[str, object]]] = [
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
    gate: Outside, client: str, fields: dict[str, object], upstream: str, stream: bool
) -> None:
    answered = Answer(STREAM[upstream]) if stream else Answer(WHOLE[upstream], content_type=JSON)
    fake = gate.play(upstream, answered)
    answer = gate.ask(client, f"{upstream}/m", stream, **fields)
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


def test_tokens_of_an_empty_conversation_are_not_estimated(gate: Outside) -> None:
    body = b'{"model":"chat/m","messages":[]}'
    answer = gate.send("POST", "/v1/messages/count_tokens", body, content_type=JSON)
    assert answer.status == 400
    assert "/messages must hold at least one message, got []" in answer.json["error"]["message"]
