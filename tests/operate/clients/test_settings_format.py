"""Merging settings into the text of other programs' files: nothing else changes, nothing is guessed."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.operate.clients.settings_format import ENV, JSON, YAML, CannotMerge, merge_json

keys = st.text("abcdef-_", min_size=1, max_size=6)
scalars = st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=8) | st.none()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))


@settings(max_examples=60)
@given(st.dictionaries(keys, values, max_size=5))
def test_json_keeps_every_other_value(old: dict[str, object]) -> None:
    text = msgspec.json.encode({**old, "env": {"KEPT": "1"}}).decode()
    merged = merge_json(text, {"env": {"NEW": "2"}})
    assert msgspec.json.decode(merged) == {**old, "env": {"KEPT": "1", "NEW": "2"}}
    assert merge_json(merged, {"env": {"NEW": "2"}}) == merged


def test_json_keeps_the_order_of_keys_and_the_indentation() -> None:
    merged = merge_json('{\n    "z": 1,\n    "a": {"y": 2}\n}\n', {"b": 3})
    assert merged == '{\n    "z": 1,\n    "a": {"y": 2},\n    "b": 3\n}\n'


def test_json_with_comments_keeps_them() -> None:
    old = """\
// my settings
{
  "theme": "dark", // easy on the eyes
  "env": {
    /* off */
    "A": "1"  // the first
  },
}
"""
    merged = merge_json(old, {"env": {"A": "2", "B": "3"}, "model": "echo"})
    assert (
        merged
        == """\
// my settings
{
  "theme": "dark", // easy on the eyes
  "env": {
    /* off */
    "A": "2",  // the first
    "B": "3"
  },
  "model": "echo"
}
"""
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{}", '{\n  "a": 1\n}'),
        ('{"b": 2}', '{"b": 2,\n"a": 1\n}'),
        ('{\n  "b": "//, }"\n}\n', '{\n  "b": "//, }",\n  "a": 1\n}\n'),
        ('{\n\t"b": [1, 2,], // x\n}', '{\n\t"b": [1, 2,], // x\n\t"a": 1\n}'),
        ('{"a": {"c": 0}}', '{"a": 1}'),
    ],
)
def test_a_member_is_added_to_json_of_any_layout(old: str, new: str) -> None:
    assert merge_json(old, {"a": 1}) == new


@pytest.mark.parametrize(
    "text", ['{"a": 1} x', "[1]", "{", '{"a" 1}', '{"a": 01}', '{"env": "not a table"}', "[" * 999]
)
def test_json_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(CannotMerge):
        merge_json(text, {"env": {"A": "1"}})


@pytest.mark.parametrize(
    ("old", "path", "new"),
    [
        ('{"a": 1, "b": 2}', "a", '{ "b": 2}'),
        ('{"a": 1, "b": 2}', "b", '{"a": 1 }'),
        ('{"a": 1}', "a", "{}"),
        ('{\n  "a": 1, // one\n  "b": 2\n}\n', "b", '{\n  "a": 1 // one\n}\n'),
        ('{\n  "a": 1,\n  "b": 2,\n}\n', "a", '{\n  "b": 2,\n}\n'),
        ('{\n  // about b\n  "b": {\n    "c": 1\n  },\n  "d": 2\n}\n', "b", '{\n  // about b\n  "d": 2\n}\n'),
        ('{"b": 2}', "a", '{"b": 2}'),
    ],
)
def test_a_member_is_removed_from_json_of_any_layout(old: str, path: str, new: str) -> None:
    assert JSON.remove(old, [(path,)]) == new


@settings(max_examples=60)
@given(st.dictionaries(keys, values, max_size=5), st.booleans())
def test_a_member_that_was_added_to_json_is_removed_without_a_trace(old: dict[str, object], is_long: bool) -> None:
    text = msgspec.json.format(msgspec.json.encode(old), indent=2 if is_long else 0).decode()
    added = merge_json(text, {"NEW": {"a": 1, "b": [2]}})
    assert msgspec.json.decode(JSON.remove(added, [("NEW", "a"), ("NEW", "b"), ("NEW",)])) == old


def test_yaml_changes_only_the_lines_it_means() -> None:
    old = "# aider\nmodel: gpt-4o # fast\nread:\n  - A.md\n  - model: decoy\nweak-model: gpt-4o-mini\n"
    merged = YAML.merge(old, YAML.prepare({"model": "openai/echo", "openai-api-base": "http://127.0.0.1:8484/v1"}))
    assert merged == (
        "# aider\nmodel: openai/echo\nread:\n  - A.md\n  - model: decoy\nweak-model: gpt-4o-mini\n"
        "openai-api-base: http://127.0.0.1:8484/v1\n"
    )
    assert YAML.remove(merged, [("openai-api-base",), ("absent",)]) == old.replace("gpt-4o # fast", "openai/echo")


@pytest.mark.parametrize(
    "text",
    [
        "{model: x}",
        "- a\n- b\n",
        "model: |\n  two\n  lines\n",
        "model:\n  - x\n",
        "model: a\nmodel: b\n",
        "just words\n",
    ],
)
def test_yaml_beyond_plain_keys_is_refused(text: str) -> None:
    with pytest.raises(CannotMerge):
        YAML.merge(text, YAML.prepare({"model": "openai/echo"}))


def test_env_files_keep_their_other_lines() -> None:
    old = "# mine\nexport A='1'\nGOOGLE_GEMINI_BASE_URL=\"http://old\"\n\nB=2"
    merged = ENV.merge(old, ENV.prepare({"GOOGLE_GEMINI_BASE_URL": "http://new", "C": "3"}))
    assert merged == "# mine\nexport A='1'\nGOOGLE_GEMINI_BASE_URL=http://new\n\nB=2\nC=3\n"
    assert ENV.remove(merged, [("A",), ("C",)]) == "# mine\nGOOGLE_GEMINI_BASE_URL=http://new\n\nB=2\n"
