"""TOML of other programs and of our own: single keys and tables change, comments, order and layout stay."""

import tomllib

import pytest

from dragoman.operate.clients.settings_format import TOML, CannotMerge, merge_toml

PROVIDER = {"name": "dragoman", "base_url": "http://127.0.0.1:8484/v1"}
CODEX = {"model_provider": "dragoman", "model_providers": {"dragoman": PROVIDER}}

TOML_TEXT = """\
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


def test_toml_keeps_comments_order_and_everything_else() -> None:
    merged = merge_toml(TOML_TEXT, CODEX)
    added = {f'{key} = "{value}"' for key, value in (*PROVIDER.items(), ("model_provider", "dragoman"))}
    assert set(merged.splitlines()) - set(TOML_TEXT.splitlines()) == {*added, "[model_providers.dragoman]"}
    kept = [line for line in merged.splitlines() if line in TOML_TEXT.splitlines() and line]
    assert kept == [line for line in TOML_TEXT.splitlines() if line]
    assert tomllib.loads(merged) == tomllib.loads(TOML_TEXT) | CODEX


def test_toml_changes_the_lines_that_are_there() -> None:
    table = '[model_providers.dragoman]\nname = "old"\nretries = 3\n'
    old = f'model_provider = "openai" # was\n\n{table}[other]\nname = "x"\n'
    merged = merge_toml(old, CODEX)
    assert tomllib.loads(merged) == {
        "model_provider": "dragoman",
        "model_providers": {"dragoman": PROVIDER | {"retries": 3}},
        "other": {"name": "x"},
    }


@pytest.mark.parametrize("text", ["", "\n", TOML_TEXT, 'model_provider = "x"\n', "[a]\nb = 1"])
def test_toml_merged_twice_is_merged_once(text: str) -> None:
    once = merge_toml(text, CODEX)
    assert merge_toml(once, CODEX) == once


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "model_providers = 3",
        '[model_providers.a]\nname = "x"\n[[hooks]]\nname = "h"\n[model_providers.b]\nname = "y"\n',
    ],
)
def test_toml_that_cannot_be_changed_safely_is_refused(text: str) -> None:
    with pytest.raises(CannotMerge):
        merge_toml(text, CODEX)


@pytest.mark.parametrize(
    "text",
    [
        'model_providers = { dragoman = { name = "inline" } }\n',
        'model_provider = """\nof several\nlines"""\n',
        '"model_provider" = "quoted" # kept\n\n[model_providers."x y"]\na = 1\n\n[other]\nb = 2\n',
        '[model_providers]\n[model_providers.dragoman]\nname = "old"\n[[hooks]]\nx = 1\n',
    ],
)
def test_toml_of_any_layout_is_changed_and_the_rest_stays(text: str) -> None:
    before = tomllib.loads(text)
    after = tomllib.loads(merge_toml(text, CODEX))
    assert after["model_provider"] == "dragoman"
    assert after["model_providers"]["dragoman"] == PROVIDER
    assert {key: value for key, value in after.items() if key in before and not key.startswith("model")} == {
        key: value for key, value in before.items() if not key.startswith("model")
    }
    assert text.count("#") == merge_toml(text, CODEX).count("#")


def test_a_toml_table_is_added_at_the_end_even_where_others_would_have_to_move() -> None:
    split = '[providers.a]\nkind = "x"\n\n[[models]]\nname = "m"\n\n# about b\n[providers.b]\nkind = "y"\n'
    merged = merge_toml(split, {"providers": {"c": {"kind": "z"}}})
    assert merged == split + '\n[providers.c]\nkind = "z"\n'


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
    rest = TOML.remove(text, [("providers", "b")])
    assert rest == (
        '# top\n[providers.a]\nkind = "openai"  # [providers.b]\n\n# about c\n[providers.c]\nkind = "echo"\n# the end\n'
    )
    assert TOML.remove('[providers.b]\nkind = "x"\n', [("providers", "b")]) == ""
    assert TOML.remove('providers.b.kind = "x"\nport = 1\n', [("providers", "b")]) == "port = 1\n"
