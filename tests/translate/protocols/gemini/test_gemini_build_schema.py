"""JSON Schemas, fitted to the keywords that Gemini documents."""

import msgspec
import pytest

from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.protocols.gemini.build_schema import clean_schema
from tables import each_row
from wire_json import JsonObject


def clean(schema: object) -> tuple[object, int]:
    """Return the schema that is sent, and the number of losses."""
    ledger = Ledger()
    return clean_schema(schema, "/schema", ledger), len(ledger)


EXACT: list[tuple[JsonObject, JsonObject]] = [
    ({"type": "STRING"}, {"type": "string"}),
    ({"type": ["STRING", "NULL"]}, {"type": ["string", "null"]}),
    ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
    ({"const": "a"}, {"type": "string", "enum": ["a"]}),
    ({"const": 3}, {"type": "integer", "enum": [3]}),
    ({"const": None}, {"type": "null"}),
    (
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
        {"type": "integer", "minimum": 1, "maximum": 9},
    ),
    ({"exclusiveMinimum": 0.5, "type": "integer", "minimum": 3}, {"minimum": 3, "type": "integer"}),
    ({"type": "number", "format": "double"}, {"type": "number", "format": "double"}),
    ({"type": "array", "items": True}, {"type": "array", "items": {}}),
    ({"type": "array", "items": [{"type": "string"}]}, {"type": "array", "prefixItems": [{"type": "string"}]}),
    ({"type": "object", "additionalProperties": False}, {"type": "object", "additionalProperties": False}),
    ({"$schema": "https://json-schema.org/draft-07/schema#", "type": "null"}, {"type": "null"}),
    ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    (
        {"oneOf": [{"const": "a"}, {"const": "b"}]},
        {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "string", "enum": ["b"]}]},
    ),
    (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {}}, "required": ["a"]},
                {"properties": {"b": {}}, "required": ["b"]},
            ]
        },
        {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
    ),
    (
        {"$defs": {"A": {"type": "STRING"}}, "properties": {"x": {"$ref": "#/$defs/A"}}},
        {"$defs": {"A": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/A"}}},
    ),
    (
        {"definitions": {"A": {"type": "string"}}, "properties": {"x": {"$ref": "#/definitions/A"}}},
        {"$defs": {"A": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/A"}}},
    ),
    (
        {"$defs": {"A": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/A", "description": "An x."}}},
        {"$defs": {"A": {"type": "string"}}, "properties": {"x": {"type": "string", "description": "An x."}}},
    ),
]


@each_row(("schema", "sent"), EXACT)
def test_what_gemini_has_under_another_name_is_no_loss(schema: JsonObject, sent: JsonObject) -> None:
    assert clean(schema) == (sent, 0)


@each_row(
    "keyword",
    [
        *({"pattern": "^a"}, {"format": "date-time"}, {"minLength": 3}, {"multipleOf": 2}, {"uniqueItems": True}),
        *({"not": {"type": "null"}}, {"if": {"type": "string"}}, {"propertyNames": {"pattern": "a"}}),
        *({"patternProperties": {"a": {}}}, {"exclusiveMinimum": 0.5}, {"default": "x"}, {"examples": ["x"]}),
    ],
)
def test_what_gemini_does_not_know_is_described(keyword: JsonObject) -> None:
    [(name, _)] = keyword.items()
    sent, notes = clean({"description": "A value.", **keyword})
    assert isinstance(sent, dict)
    assert sent.keys() == {"description"}
    assert sent["description"].startswith(f"A value.\n({name}: ")
    assert notes == 1


def test_alternatives_that_overlap_are_a_loss() -> None:
    sent, notes = clean({"oneOf": [{"type": "number"}, {"type": "integer"}]})
    assert (sent, notes) == ({"anyOf": [{"type": "number"}, {"type": "integer"}]}, 1)


def test_alternatives_that_a_property_distinguishes_are_no_loss() -> None:
    def shape(kind: str) -> JsonObject:
        return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}

    assert clean({"oneOf": [shape("a"), shape("b")]})[1] == 0
    assert clean({"oneOf": [shape("a"), shape("a")]})[1] == 1


def test_a_property_named_like_a_keyword_is_data() -> None:
    names = ("title", "format", "const", "enum", "pattern", "$ref", "default", "type")
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    sent, notes = clean(schema)
    assert (sent, notes) == (schema, 0)
    assert isinstance(sent, dict)
    assert tuple(sent["properties"]) == names


def test_a_recursive_reference_with_siblings_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node", "description": "The next."}}}
    sent, notes = clean({"$defs": {"Node": node}, "$ref": "#/$defs/Node"})
    described = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node_1"}}}
    definitions = {"Node": described, "Node_1": {**described, "description": "The next."}}
    assert (sent, notes) == ({"$ref": "#/$defs/Node", "$defs": definitions}, 0)


def test_a_large_definition_keeps_the_keywords_beside_its_references() -> None:
    large = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(60)}}
    fields = {name: {"$ref": "#/$defs/Large", "description": name} for name in ("one", "two")}
    again = {"$ref": "#/$defs/Large", "description": "two"}
    sent, notes = clean({"properties": {**fields, "again": again}, "$defs": {"Large": large, "Large_1": {}}})
    assert isinstance(sent, dict)
    assert sent["properties"] == {
        "one": {"$ref": "#/$defs/Large_2"},
        "two": {"$ref": "#/$defs/Large_3"},
        "again": {"$ref": "#/$defs/Large_3"},
    }
    assert sent["$defs"]["Large_2"] == {**large, "description": "one"}
    assert sent["$defs"]["Large_3"] == {**large, "description": "two"}
    assert notes == 0


def test_copies_of_a_large_definition_are_bounded_and_the_rest_is_in_the_ledger() -> None:
    large = {"type": "object", "description": "word " * 20_000}
    fields = {f"p{at}": {"$ref": "#/$defs/Large", "title": f"No. {at}"} for at in range(100)}
    sent, notes = clean({"properties": fields, "$defs": {"Large": large}})
    assert isinstance(sent, dict)
    assert len(msgspec.json.encode(sent)) < 2_000_000
    assert sent["properties"]["p0"] == {"$ref": "#/$defs/Large_1"}
    assert sent["properties"]["p99"] == {"$ref": "#/$defs/Large"}
    assert notes == 1


def test_a_root_that_is_a_reference_with_siblings_keeps_its_definitions() -> None:
    defs: JsonObject = {"A": {"type": "object", "properties": {"b": {"$ref": "#/$defs/B"}}}, "B": {"type": "string"}}
    sent, notes = clean({"$ref": "#/$defs/A", "description": "An A.", "$defs": defs})
    assert (sent, notes) == ({**defs["A"], "description": "An A.", "$defs": defs}, 0)


def test_types_that_allof_joins_in_a_circle_end() -> None:
    node = {"type": "object", "properties": {"next": {"allOf": [{"$ref": "#/$defs/Node"}], "title": "next"}}}
    sent, notes = clean({"$ref": "#/$defs/Node", "$defs": {"Node": node}})
    assert isinstance(sent, dict)
    assert sent["$defs"]["Merged_1"]["properties"] == {"next": {"$ref": "#/$defs/Merged_1"}}
    assert notes == 0


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: JsonObject = {"type": "string"}
    for _ in range(500):
        schema = {"type": "array", "items": schema}
    with pytest.raises(BadRequest) as refused:
        clean(schema)
    assert refused.value.failure.at == "/schema"


@pytest.mark.parametrize("odd", [None, [], "x", 3, {"type": 3}, {"properties": []}, {"allOf": [True]}, {"enum": "a"}])
def test_what_is_no_schema_breaks_nothing(odd: object) -> None:
    clean(odd)


def test_properties_of_merged_schemas_keep_their_order() -> None:
    parts: list[JsonObject] = [{"properties": {"z": {}}}, {"properties": {"b": {}, "z": {}}}, {"properties": {"a": {}}}]
    merged = clean_schema({"type": "object", "allOf": parts}, "/x", Ledger())
    assert isinstance(merged, dict)
    assert list(merged["properties"]) == ["z", "b", "a"]
