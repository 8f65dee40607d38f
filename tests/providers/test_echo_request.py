"""The smallest value that satisfies a schema."""

import pytest

from dragoman.providers.echo_request import make_example


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (None, {}),
        ({}, {}),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
        ({"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}, {"a": "x"}),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/n"}},
                "required": ["a"],
                "$defs": {"n": {"const": 7}},
            },
            {"a": 7},
        ),
        ({"type": "array", "minItems": 2, "items": {"type": "boolean"}}, [False, False]),
        ({"type": ["null", "string"]}, None),
        ({"anyOf": [{"type": "string", "minLength": 6}, {"type": "null"}]}, "echooo"),
        ({"type": "integer", "exclusiveMinimum": 1.5}, 3),
        ({"type": "number", "maximum": -2}, -2),
        ({"type": "string", "format": "date"}, "2000-01-01"),
        ({"allOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}], "type": "object"}, {"a": None}),
    ],
)
def test_the_smallest_example_of_a_schema_is_found(schema: object, value: object) -> None:
    assert make_example(schema) == value


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert isinstance(make_example(schema), dict)
    assert make_example({"$ref": "#"}) is None
