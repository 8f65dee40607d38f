"""Merging settings into the text of other programs' files: nothing else changes, nothing is guessed."""

import stat
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.admin.settings_file import (
    CannotMerge,
    merge_env,
    merge_json,
    merge_toml,
    merge_yaml,
    plan_edit,
    read_text,
    remove_toml_table,
    undo_newest,
)

PROVIDER = {"name": "dragoman", "base_url": "http://127.0.0.1:8484/v1"}
CODEX = {"model_provider": "dragoman", "model_providers": {"dragoman": PROVIDER}}

TOML = """\
# mine
model = "gpt"   # the best
notify = [
  "say",
  "done",
]

[projects."/home/me"]
trust_level = "trusted"

[[hooks]]
name = "model_provider = 'decoy'"
"""

keys = st.text("abcdef-_", min_size=1, max_size=6)
scalars = st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=8) | st.none()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))


def test_toml_keeps_comments_order_and_everything_else() -> None:
    merged = merge_toml(TOML, CODEX)
    assert TOML in merged
    assert tomllib.loads(merged) == tomllib.loads(TOML) | CODEX


def test_toml_changes_the_lines_that_are_there() -> None:
    table = '[model_providers.dragoman]\nname = "old"\nretries = 3\n'
    old = f'model_provider = "openai" # was\n\n{table}[other]\nname = "x"\n'
    merged = merge_toml(old, CODEX)
    assert tomllib.loads(merged) == {
        "model_provider": "dragoman",
        "model_providers": {"dragoman": PROVIDER | {"retries": 3}},
        "other": {"name": "x"},
    }


@pytest.mark.parametrize("text", ["", "\n", TOML, 'model_provider = "x"\n', "[a]\nb = 1"])
def test_toml_merged_twice_is_merged_once(text: str) -> None:
    once = merge_toml(text, CODEX)
    assert merge_toml(once, CODEX) == once


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        'model_providers = { dragoman = { name = "inline" } }',
        'model_provider = """\nof several\nlines"""',
        "model_providers = 3",
    ],
)
def test_toml_that_cannot_be_changed_safely_is_refused(text: str) -> None:
    with pytest.raises(CannotMerge):
        merge_toml(text, CODEX)


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


def test_a_toml_table_is_removed_with_its_sub_tables_and_the_comment_above_it() -> None:
    text = """\
# top
[providers.a]
kind = "openai"  # [providers.b]

# about b
[providers.b]
kind = "groq"
[providers.b.headers]
x = "1"

# about c
[providers.c]
kind = "echo"
# the end
"""
    rest = remove_toml_table(text, {"providers": {"b": {}}})
    assert rest == (
        '# top\n[providers.a]\nkind = "openai"  # [providers.b]\n\n# about c\n[providers.c]\nkind = "echo"\n# the end\n'
    )
    assert remove_toml_table('[providers.b]\nkind = "x"\n', {"providers": {"b": {}}}) == "\n"
    with pytest.raises(CannotMerge):
        remove_toml_table('providers.b.kind = "x"\n', {"providers": {"b": {}}})


def test_yaml_changes_only_the_lines_it_means() -> None:
    old = "# aider\nmodel: gpt-4o # fast\nread:\n  - A.md\n  - model: decoy\nweak-model: gpt-4o-mini\n"
    merged = merge_yaml(old, {"model": "openai/echo", "openai-api-base": "http://127.0.0.1:8484/v1"})
    assert merged == (
        "# aider\nmodel: openai/echo\nread:\n  - A.md\n  - model: decoy\nweak-model: gpt-4o-mini\n"
        "openai-api-base: http://127.0.0.1:8484/v1\n"
    )


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
        merge_yaml(text, {"model": "openai/echo"})


def test_env_files_keep_their_other_lines() -> None:
    old = "# mine\nexport A='1'\nGOOGLE_GEMINI_BASE_URL=\"http://old\"\n\nB=2"
    merged = merge_env(old, {"GOOGLE_GEMINI_BASE_URL": "http://new", "C": "3"})
    assert merged == "# mine\nexport A='1'\nGOOGLE_GEMINI_BASE_URL=http://new\n\nB=2\nC=3\n"


def test_an_edit_is_shown_applied_with_a_backup_and_undone(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(TOML)
    file.chmod(0o640)
    edit = plan_edit(file, merge_toml, CODEX)
    assert edit.is_change
    assert '+model_provider = "dragoman"' in edit.diff()
    assert file.read_text() == TOML
    backup = edit.apply()
    assert (backup.read_text(), file.read_text()) == (TOML, edit.new)
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(backup.stat().st_mode)) == (0o640, 0o600)
    assert not plan_edit(file, merge_toml, CODEX).is_change
    assert undo_newest(file) == backup
    assert file.read_text() == TOML
    assert undo_newest(file) is None


def test_undoing_the_edit_that_made_a_file_removes_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "settings.json"
    plan_edit(file, merge_json, {"model": "echo"}).apply()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert undo_newest(file) is not None
    assert not file.exists()


def test_the_diff_masks_keys_of_other_tools_and_says_which_side_is_which(tmp_path: Path) -> None:
    file = tmp_path / "settings.env"
    file.write_text("OTHER_API_KEY=abcdef0123456789\n")
    shown = plan_edit(file, merge_env, {"MODEL": "echo"}).diff()
    assert "abcdef0123456789" not in shown
    assert shown.startswith(f"--- {file}\tbefore\n+++ {file}\tafter\n")


def test_a_file_that_is_no_text_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(CannotMerge, match="UTF-8"):
        read_text(file)
    assert read_text(tmp_path / "absent") is None
