"""Schemas of tools for Kiro: cleaned where they are schemas, untouched where they are data."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.protocols.kiro.build_tools import clean_schema
from tables import each_row
from translate.protocols.kiro.kiro_requests import ask, messages, tool, user
from wire_json import JsonObject

EMPTY = {"type": "object", "properties": {}}


def clean_and_explain(schema: object) -> tuple[JsonObject, list[str]]:
    reasons: list[str] = []
    return clean_schema(schema, reasons.append), reasons


def shape(**properties: object) -> JsonObject:
    return {"type": "object", "properties": properties}


NAMES = ("additionalProperties", "required", "$ref", "$defs", "properties", "type", "definitions", "$schema")
NAMED = shape(**{name: {"type": "string"} for name in NAMES})
VALUE = {"required": [], "additionalProperties": False, "$ref": "#/nowhere", "x": None}
VALUES = shape(a={"enum": [VALUE, None], "default": VALUE, "examples": [VALUE]}, b={"const": VALUE})


@each_row(
    ("schema", "clean"),
    [
        (None, EMPTY),
        ({}, EMPTY),
        ({"type": "object"}, EMPTY),
        ({"type": "object", "properties": None, "required": None}, EMPTY),
        ({"type": "object", "required": []}, EMPTY),
        ({**EMPTY, "additionalProperties": True}, EMPTY),
        (NAMED, NAMED),  # properties named like keywords are data
        (VALUES, VALUES),  # and so are values
    ],
)
def test_what_means_the_same_is_no_loss(schema: object, clean: JsonObject) -> None:
    assert clean_and_explain(schema) == (clean, [])


@each_row(
    ("schema", "clean"),
    [
        ({"type": ["object", "null"], "properties": {"a": {}}}, shape(a={})),
        (
            shape(properties={**shape(x={"required": []}), "additionalProperties": False}),
            shape(properties=shape(x={})),
        ),
        (
            shape(a=None, b=True, c=False, d={"items": None, "type": None, "default": None}, e={"const": None}),
            shape(a={}, b={}, c={"not": {}}, d={}, e={"type": "null"}),
        ),
    ],
)
def test_what_is_no_schema_is_repaired_at_every_depth(schema: object, clean: JsonObject) -> None:
    assert clean_and_explain(schema)[0] == clean


def test_the_root_is_an_object_whatever_it_was() -> None:
    assert clean_and_explain({"type": "string"}) == (EMPTY, ["the input of a tool is an object"])


def test_closed_objects_and_empty_lists_go_at_every_depth() -> None:
    inner = {**shape(b={"type": "string"}), "required": [], "additionalProperties": False}
    schema = {**shape(a={"type": "array", "items": inner}), "required": ["a"], "additionalProperties": False}
    clean, reasons = clean_and_explain(schema)
    assert clean == {**shape(a={"type": "array", "items": shape(b={"type": "string"})}), "required": ["a"]}
    assert reasons


def test_references_are_written_out_before_definitions_go() -> None:
    schema = {
        **shape(a={"$ref": "#/$defs/A", "description": "mine"}, b={"$ref": "#/definitions/x~1y"}),
        "$defs": {
            "A": {"type": "array", "items": {"$ref": "#/$defs/B"}, "description": "theirs"},
            "B": {"type": "integer"},
        },
        "definitions": {"x/y": {"type": "boolean"}},
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    }
    clean, reasons = clean_and_explain(schema)
    array = {"type": "array", "items": {"type": "integer"}, "description": "mine"}
    assert clean == shape(a=array, b={"type": "boolean"})
    assert reasons


def test_a_schema_that_refers_to_itself_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}, "value": {"type": "string"}}}
    clean, reasons = clean_and_explain({**shape(head={"$ref": "#/$defs/N"}), "$defs": {"N": node}})
    assert clean == shape(head=shape(next={"type": "object"}, value={"type": "string"}))
    assert any("refers to itself" in reason for reason in reasons)
    assert clean_and_explain({**shape(me={"$ref": "#"})})[0] == shape(me=shape(me={"type": "object"}))


def test_references_that_double_at_every_step_are_cut() -> None:
    defs = {f"d{n}": shape(a={"$ref": f"#/$defs/d{n + 1}"}, b={"$ref": f"#/$defs/d{n + 1}"}) for n in range(40)}
    clean, reasons = clean_and_explain(
        {**shape(a={"$ref": "#/$defs/d0"}), "$defs": {**defs, "d40": {"type": "string"}}}
    )
    assert clean["type"] == "object"
    assert any("cut" in reason for reason in reasons)


def test_a_schema_of_great_depth_is_cut() -> None:
    schema: JsonObject = {"type": "string"}
    for _ in range(500):
        schema = shape(a=schema)
    assert clean_and_explain(schema)[1]


@pytest.mark.parametrize("reference", ["https://example.com/s.json", "#/$defs/gone", "#anchor", "other"])
def test_a_reference_that_has_no_target_leaves_what_stands_beside_it(reference: str) -> None:
    clean, reasons = clean_and_explain(shape(a={"$ref": reference, "description": "d"}))
    assert clean == shape(a={"description": "d"})
    assert "has no target" in reasons[0]


def test_types_of_further_properties_are_described_in_words() -> None:
    clean, _ = clean_and_explain(
        shape(a={"type": "object", "description": "A map.", "additionalProperties": {"type": "integer"}})
    )
    assert clean["properties"]["a"]["description"] == 'A map.\n(additionalProperties: {"type":"integer"})'


def test_alternatives_at_the_root_are_described_in_words() -> None:
    clean, reasons = clean_and_explain({**shape(a={}, b={}), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})
    assert "anyOf" not in clean
    assert '{"required":["a"]}' in clean["description"]
    assert reasons


def test_the_ledger_names_the_schema_as_the_client_wrote_it() -> None:
    closed = {**EMPTY, "additionalProperties": False}
    assert (
        "/tools/0/input_schema" in ask("messages", messages(user("1"), tools=[tool(input_schema=closed)])).approximated
    )
    function = {"name": "f", "description": "d", "parameters": closed}
    body = {"model": "m", "messages": [user("1")], "tools": [{"type": "function", "function": function}]}
    assert "/tools/0/function/parameters" in ask("chat", body).approximated


KEYWORDS = ["type", "properties", "required", "items", "anyOf", "enum", "default"]
REFUSED = ["additionalProperties", "$ref", "$defs"]


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["object", "#", "#/$defs/a", "#/properties/a", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYWORDS, *REFUSED, "a", "b"]), inner, max_size=4)
    ),
    max_leaves=25,
)


@given(junk)
@settings(max_examples=100, deadline=None)
def test_any_schema_becomes_one_that_kiro_takes(schema: object) -> None:
    function = {"name": "f", "description": "d", "parameters": schema if isinstance(schema, dict) else {}}
    ask("chat", {"model": "m", "messages": [user("1")], "tools": [{"type": "function", "function": function}]})
