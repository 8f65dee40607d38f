"""The judge of Kiro's requests: it finds what is wrong with a body that breaks a rule."""

from collections.abc import Callable

import msgspec
import pytest

from tables import each_row
from translate.protocols.kiro.kiro_requests import answer, ask, assistant, make_calls, messages, tool, user
from translate.protocols.kiro.kiro_rules import broken_rules
from wire_json import Json

TURNS = (user("1"), make_calls("c"), user(answer("c")), assistant("A"), user("2"))


def state(payload: Json) -> Json:
    return payload["conversationState"]


def current(payload: Json) -> Json:
    return state(payload)["currentMessage"]["userInputMessage"]


def specification(payload: Json) -> Json:
    return current(payload)["userInputMessageContext"]["tools"][0]["toolSpecification"]


def history(payload: Json, index: int) -> Json:
    return next(iter(state(payload)["history"][index].values()))


def outcome(payload: Json) -> Json:
    return history(payload, 2)["userInputMessageContext"]["toolResults"][0]


BREAKS: dict[str, Callable[[Json], Json]] = {
    "a system field": lambda payload: state(payload).update(systemPrompt="S"),
    "a sampling field": lambda payload: payload.update(inferenceConfig={"temperature": 1}),
    "a null": lambda payload: payload.update(profileArn=None),
    "an empty history": lambda payload: state(payload).update(history=[]),
    "an empty context": lambda payload: history(payload, 0).update(userInputMessageContext={}),
    "no words": lambda payload: current(payload).update(content=" "),
    "two turns of one side": lambda payload: state(payload)["history"].pop(),
    "the assistant first": lambda payload: state(payload)["history"].pop(0),
    "a call without a result": lambda payload: history(payload, 2).pop("userInputMessageContext"),
    "a result without a call": lambda payload: history(payload, 1).pop("toolUses"),
    "a result of another call": lambda payload: outcome(payload).update(toolUseId="d"),
    "a result without content": lambda payload: outcome(payload).update(content=[]),
    "an empty key": lambda payload: history(payload, 1)["toolUses"][0].update(input={"a": [{"": 1}]}),
    "a tool that is not offered": lambda payload: current(payload).pop("userInputMessageContext"),
    "a bad name": lambda payload: specification(payload).update(name="1st"),
    "no description": lambda payload: specification(payload).update(description=""),
    "a schema that is no object": lambda payload: specification(payload).update(
        inputSchema={"json": {"type": "string"}}
    ),
    "a link as image": lambda payload: current(payload).update(
        images=[{"format": "png", "source": {"bytes": "data:image/png;base64,AA=="}}]
    ),
}


@each_row("what", BREAKS)
def test_the_judge_finds(what: str) -> None:
    body = ask("messages", messages(*TURNS, tools=[tool()])).body
    assert broken_rules(body) == []
    payload = msgspec.json.decode(body)
    BREAKS[what](payload)
    assert broken_rules(msgspec.json.encode(payload))


@pytest.mark.parametrize("keyword", ["additionalProperties", "$ref", "$defs", "required"])
def test_the_judge_looks_into_schemas(keyword: str) -> None:
    payload = msgspec.json.decode(ask("messages", messages(*TURNS, tools=[tool()])).body)
    nested = {"type": "object", "properties": {"a": {"items": {keyword: []}}}}
    specification(payload)["inputSchema"]["json"] = nested
    assert broken_rules(msgspec.json.encode(payload))
