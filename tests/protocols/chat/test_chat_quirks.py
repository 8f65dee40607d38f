"""What a server of a certain quirk is asked instead, and what the ledger then says."""

import msgspec
import pytest

from dragoman.hub.loss import How, Ledger
from dragoman.hub.profile import Target
from dragoman.hub.request import (
    Custom,
    Format,
    Function,
    Hosted,
    Pick,
    Request,
    Role,
    Shape,
    Text,
    Tool,
    ToolChoice,
    Turn,
)
from dragoman.protocols.chat.build import build

LOCAL = Target("llama", "local", quirks=frozenset({"json_object_schema", "no_required"}))
F = Function("f", "/tools/0")
G = Function("g", "/tools/1")
C = Custom("c", "/tools/2")
SEARCH = Hosted("web_search", {}, "/tools/3")
SCHEMA: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}


def built(**settings: object) -> tuple[dict[str, object], list[tuple[str, How]]]:
    turns = (Turn(Role.USER, (Text("Hi", "/m"),), "/u"),)
    request = Request("messages", "m", turns, **settings)  # type: ignore[arg-type]
    ledger = Ledger()
    body = msgspec.json.decode(build(request, LOCAL, ledger), type=dict[str, object])
    return body, [(loss.path, loss.how) for loss in ledger]


def test_a_schema_goes_beside_json_object_and_its_name_is_told_lost() -> None:
    body, lost = built(format=Format(Shape.SCHEMA, "/format", name="answer", schema=SCHEMA, strict=True))
    assert body["response_format"] == {"type": "json_object", "schema": SCHEMA}
    assert lost == [("/format", How.APPROXIMATED)]


def test_json_mode_is_the_same_for_such_a_server() -> None:
    assert built(format=Format(Shape.JSON, "/format")) == (
        built()[0] | {"response_format": {"type": "json_object"}},
        [],
    )


@pytest.mark.parametrize(
    ("tools", "choice", "wire"),
    [
        ((F,), ToolChoice(Pick.REQUIRED, "/t"), {"type": "function", "function": {"name": "f"}}),
        ((C,), ToolChoice(Pick.REQUIRED, "/t"), {"type": "custom", "custom": {"name": "c"}}),
        ((F, G), ToolChoice(Pick.REQUIRED, "/t", allowed=("g",)), {"type": "function", "function": {"name": "g"}}),
        ((F, G), ToolChoice(Pick.AUTO, "/t"), "auto"),
    ],
)
def test_a_call_that_must_be_made_is_asked_by_name_where_one_tool_is_left(
    tools: tuple[Tool, ...], choice: ToolChoice, wire: object
) -> None:
    body, lost = built(tools=tools, tool_choice=choice)
    assert body["tool_choice"] == wire
    assert lost == []


def test_a_tool_that_the_vendor_runs_leaves_the_other_one_to_name() -> None:
    body, lost = built(tools=(F, SEARCH), tool_choice=ToolChoice(Pick.REQUIRED, "/t"))
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert lost == [("/tools/3", How.DROPPED)]


def test_a_choice_among_several_is_told_to_be_a_wish() -> None:
    body, lost = built(tools=(F, G), tool_choice=ToolChoice(Pick.REQUIRED, "/t"))
    assert body["tool_choice"] == "required"
    assert lost == [("/t", How.APPROXIMATED)]
