"""The line scanner: every key path of a TOML text has the line it was written on."""

import tomllib

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.config.tree import key_lines, line_of
from tables import each_row

SAMPLE = '''# a comment with [brackets] and = signs
top = "a # b"

[server]  # [not.this]
host = "x" # host = 1
"quoted.key" = 1
'single' = """
[fake]
port = 1
\\""" still inside """
after = 2
list = [ # comment ]
  "]", 'x',
  { in = 1 },
]
a.b . c = 1.5
[providers."my.name".headers]
x = 1979-05-27T07:32:00Z
[[models]]
name = "one"
to = [
  "a/b",
]
[[models]]
name = "two"
[models.extra]
deep = \'\'\'
[[models]]
\'\'\'
[[models.inner]]
x = {y = 1, z = [1, 2]}
'''


@each_row(
    ("key", "line"),
    [
        (("top",), 2),
        (("server",), 4),
        (("server", "host"), 5),
        (("server", "quoted.key"), 6),
        (("server", "single"), 7),
        (("server", "after"), 11),
        (("server", "list"), 12),
        (("server", "a"), 16),
        (("server", "a", "b", "c"), 16),
        (("providers",), 17),
        (("providers", "my.name", "headers"), 17),
        (("providers", "my.name", "headers", "x"), 18),
        (("models",), 19),
        (("models", 0), 19),
        (("models", 0, "name"), 20),
        (("models", 0, "to"), 21),
        (("models", 1), 24),
        (("models", 1, "name"), 25),
        (("models", 1, "extra"), 26),
        (("models", 1, "extra", "deep"), 27),
        (("models", 1, "inner", 0), 30),
        (("models", 1, "inner", 0, "x"), 31),
    ],
)
@each_row("newline", ["\n", "\r\n"])
def test_a_key_has_the_line_it_was_written_on(key: tuple[str | int, ...], line: int, newline: str) -> None:
    text = SAMPLE.replace("\n", newline)
    tomllib.loads(text)
    assert key_lines(text)[key] == line


def test_nothing_inside_a_string_or_comment_is_a_key() -> None:
    keys = key_lines(SAMPLE)
    assert ("fake",) not in keys
    assert ("server", "port") not in keys
    assert ("not", "this") not in keys
    assert ("models", 2) not in keys


def test_what_is_inside_an_inline_value_has_the_line_of_its_key() -> None:
    lines = key_lines(SAMPLE)
    assert line_of(lines, ("models", 1, "inner", 0, "x", "y")) == 31
    assert line_of(lines, ("server", "list", 2, "in")) == 12
    assert line_of(lines, ("absent",)) is None


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=6)


def quote(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


@settings(max_examples=60, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=5, unique=True), st.lists(NAMES, min_size=1, max_size=4, unique=True))
def test_any_quoted_names_are_found_on_their_lines(tables: list[str], keys: list[str]) -> None:
    text = ""
    expected: dict[tuple[str, ...], int] = {}
    for table in tables:
        text += f"[{quote(table)}]\n"
        expected[(table,)] = text.count("\n")
        for key in keys:
            text += f"{quote(key)} = {quote(table)}\n"
            expected[(table, key)] = text.count("\n")
    tomllib.loads(text)
    assert key_lines(text) == expected
