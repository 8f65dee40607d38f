"""The rest of a cut tool call, in the forms in which models send it."""

import socket

import pytest

from dragoman.flow.complete_reply import join_arguments

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path", "lines"],
    "additionalProperties": False,
}
BEGUN = '{"path": "notes/to'
WHOLE = '{"path": "notes/today.md", "lines": 3}'


@pytest.mark.parametrize(
    "rest",
    [
        'day.md", "lines": 3}',
        '\n day.md", "lines": 3}\n'.strip(),
        '```json\nday.md", "lines": 3}\n```',
        'notes/today.md", "lines": 3}',
        WHOLE,
        f"```\n{WHOLE}\n```",
        'Here is the rest:\n\n```json\nday.md", "lines": 3}\n```\nDone.',
    ],
    ids=[
        "the rest",
        "the rest, trimmed",
        "fenced",
        "with the last words repeated",
        "all over again",
        "all, fenced",
        "fenced between other words",
    ],
)
def test_the_rest_completes_the_arguments(rest: str) -> None:
    assert join_arguments(BEGUN, rest, SCHEMA) == WHOLE


@pytest.mark.parametrize(
    "rest",
    ['day.md", "lines": "three"}', 'day.md"}', "I am sorry, I cannot.", 'day.md", "lines": 3', ""],
    ids=["wrong type", "a required field is missing", "prose", "cut again", "nothing"],
)
def test_what_the_schema_does_not_accept_is_not_used(rest: str) -> None:
    assert join_arguments(BEGUN, rest, SCHEMA) is None


def test_a_tool_without_a_schema_takes_any_object() -> None:
    assert join_arguments('{"a":', "1}", None) == '{"a":1}'
    assert join_arguments("[1,", "2]", None) is None


def test_a_schema_that_points_elsewhere_is_not_followed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        port = listener.getsockname()[1]
        schema = {"type": "object", "properties": {"a": {"$ref": f"http://127.0.0.1:{port}/schema"}}}
        assert join_arguments('{"a":', "1}", schema) == '{"a":1}'
        with pytest.raises(TimeoutError):
            listener.accept()
