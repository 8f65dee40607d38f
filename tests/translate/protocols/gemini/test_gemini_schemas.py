"""Read the schemas that Gemini clients write as JSON Schema."""

from dragoman.translate.protocols.gemini.parse_fields import read_dialect, read_json_schema
from tables import each_row
from wire_json import Json


@each_row(
    ("dialect", "schema"),
    [
        ({"type": "STRING"}, {"type": "string"}),
        ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "STRING", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"anyOf": [{"type": "STRING"}], "nullable": True}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": "STRING", "format": "enum", "enum": ["a"]}, {"type": "string", "enum": ["a"]}),
        ({"type": "STRING", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        (
            {"type": "ARRAY", "min_items": "2", "items": {"type": "INTEGER"}},
            {"type": "array", "minItems": 2, "items": {"type": "integer"}},
        ),
        ({"type": "INTEGER", "example": 3}, {"type": "integer", "examples": [3]}),
        ({"type": "TYPE_UNSPECIFIED", "description": "d"}, {"description": "d"}),
        (
            {"properties": {"type": {"type": "STRING"}, "format": {}, "property_ordering": {}}},
            {"properties": {"type": {"type": "string"}, "format": {}, "property_ordering": {}}},
        ),
        ({"default": "STRING", "enum": ["STRING", "type"]}, {"default": "STRING", "enum": ["STRING", "type"]}),
    ],
)
def test_the_dialect_is_read_in_schema_positions_alone(dialect: Json, schema: Json) -> None:
    assert read_dialect(dialect) == schema


def test_the_named_order_of_properties_is_kept() -> None:
    read = read_dialect({"properties": {"a": {}, "b": {}, "c": {}}, "propertyOrdering": ["c", "a"]})
    assert isinstance(read, dict)
    assert list(read["properties"]) == ["c", "a", "b"]


def test_json_schema_keeps_everything_but_the_case_of_types() -> None:
    schema: Json = {
        "type": "OBJECT",
        "$defs": {"X": {"type": ["STRING", "NULL"]}},
        "properties": {"a": {"$ref": "#/$defs/X"}, "b": {"const": "STRING", "nullable": True}},
        "additionalProperties": False,
        "oneOf": [{"type": "NUMBER"}],
    }
    assert read_json_schema(schema) == {
        "type": "object",
        "$defs": {"X": {"type": ["string", "null"]}},
        "properties": {"a": {"$ref": "#/$defs/X"}, "b": {"const": "STRING", "nullable": True}},
        "additionalProperties": False,
        "oneOf": [{"type": "number"}],
    }


def test_a_schema_that_nests_too_deeply_is_left_as_it_is() -> None:
    deep: Json = {"type": "STRING"}
    for _ in range(200):
        deep = {"type": "ARRAY", "items": deep}
    assert read_dialect(deep)
