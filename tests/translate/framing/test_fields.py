"""Reading request objects: right values come out, wrong ones are named, unread ones are remembered."""

from collections.abc import Callable
from functools import partial

import pytest

from dragoman.translate.framing.fields import BadField, Fields
from dragoman.translate.hub.failure import Kind
from tables import each_row


def refusal(read: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(BadField) as caught:
        read()
    failure = caught.value.failure
    assert failure.kind is Kind.BAD_REQUEST
    return failure.at or "", failure.message


def test_values_of_the_right_type_come_out() -> None:
    fields = Fields(
        {
            "t": "x",
            "n": 0.5,
            "i": 3,
            "f": False,
            "c": "auto",
            "o": {"k": 1},
            "l": [1, "a"],
            "os": [{"a": 1}],
            "r": [None],
        },
        "",
    )
    assert fields.text("t") == fields.need_text("t") == "x"
    assert (fields.number("n"), fields.number("i"), fields.integer("i")) == (0.5, 3, 3)
    assert fields.flag("f") is False
    assert fields.one_of("c", {"auto", "none"}) == "auto"
    assert fields.need_obj("o").integer("k") == 1
    assert fields.items("l") == [1, "a"]
    assert [part.integer("a") for part in fields.need_objects("os")] == [1]
    assert fields.raw("r") == [None]


@pytest.mark.parametrize("raw", [{}, {"k": None}])
def test_null_equals_absent(raw: dict[str, object]) -> None:
    fields = Fields(raw, "")
    assert not fields.has("k")
    for read in (fields.text, fields.number, fields.integer, fields.flag, fields.obj, fields.items, fields.objects):
        assert read("k") is None
    assert fields.text_or_objects("k") is None
    assert fields.one_of("k", ["a"]) is None
    assert fields.raw("k") is None
    assert fields.text("k", "d") == "d"
    assert fields.flag("k", False) is False


def test_null_is_not_among_the_unread() -> None:
    assert Fields({"a": None, "b": 0, "c": "", "d": False}, "").rest() == {"b": 0, "c": "", "d": False}


def test_rest_excludes_what_was_read_and_has_does_not_count_as_reading() -> None:
    fields = Fields({"a": "1", "b": 2, "c": {"d": 1}, "e": [{}], "f": 1, "g": 1}, "")
    fields.text("a")
    fields.raw("b")
    fields.obj("c")
    fields.objects("e")
    assert fields.has("f")
    assert fields.rest() == {"f": 1, "g": 1}


def test_nested_objects_report_their_own_unread_fields() -> None:
    fields = Fields({"o": {"a": 1, "b": 2}, "l": [{"a": 1}, {"z": {"y": 1}}]}, "")
    inner = fields.need_obj("o")
    inner.integer("a")
    first, second = fields.need_objects("l")
    first.integer("a")
    assert fields.rest() == {}
    assert (inner.rest(), first.rest(), second.rest()) == ({"b": 2}, {}, {"z": {"y": 1}})


def test_reading_does_not_change_the_object() -> None:
    raw: dict[str, object] = {"a": 1, "b": None}
    fields = Fields(raw, "")
    fields.raw("a")
    fields.rest()
    assert raw == {"a": 1, "b": None}


def test_pointers_name_the_way_down() -> None:
    fields = Fields({"messages": [{"content": [{}, {"a/b~c": {"x": 1}}]}]}, "")
    part = fields.need_objects("messages")[0].need_objects("content")[1]
    assert part.at == "/messages/0/content/1"
    assert part.need_obj("a/b~c").at == "/messages/0/content/1/a~1b~0c"
    assert part.pointer("~1") == "/messages/0/content/1/~01"
    assert part.pointer("") == "/messages/0/content/1/"


@each_row(
    ("read", "value", "message"),
    [
        (lambda f: f.text("k"), 7, "/k must be a string, got 7"),
        (lambda f: f.need_text("k"), [1], "/k must be a string, got [1]"),
        (lambda f: f.number("k"), True, "/k must be a number, got true"),
        (lambda f: f.number("k"), "1", '/k must be a number, got "1"'),
        (lambda f: f.integer("k"), 3.5, "/k must be an integer, got 3.5"),
        (lambda f: f.integer("k"), True, "/k must be an integer, got true"),
        (lambda f: f.integer("k"), "3", '/k must be an integer, got "3"'),
        (lambda f: f.flag("k"), 0, "/k must be true or false, got 0"),
        (lambda f: f.flag("k"), "true", '/k must be true or false, got "true"'),
        (lambda f: f.one_of("k", ["b", "a"]), "c", '/k must be one of "a", "b", got "c"'),
        (lambda f: f.one_of("k", {"a"}), {"x": 1}, '/k must be one of "a", got {"x":1}'),
        (lambda f: f.obj("k"), [], "/k must be an object, got []"),
        (lambda f: f.items("k"), {}, "/k must be an array, got {}"),
        (lambda f: f.items("k"), "text", '/k must be an array, got "text"'),
        (lambda f: f.text_or_objects("k"), 7, "/k must be a string or an array, got 7"),
    ],
)
def test_a_wrong_type_is_named_with_its_place_and_value(
    read: Callable[[Fields], object], value: object, message: str
) -> None:
    assert refusal(lambda: read(Fields({"k": value}, ""))) == ("/k", message)


@pytest.mark.parametrize("raw", [{}, {"k": None}])
def test_a_missing_required_field_is_named(raw: dict[str, object]) -> None:
    fields = Fields(raw, "/tools/0")
    for read in (fields.need_text, fields.need_obj, fields.need_objects):
        assert refusal(partial(read, "k")) == ("/tools/0/k", "/tools/0/k is required")


def test_an_element_that_is_no_object_is_named_by_its_index() -> None:
    fields = Fields({"messages": [{}, None, 3]}, "")
    expected = ("/messages/1", "/messages/1 must be an object, got null")
    assert refusal(lambda: fields.objects("messages")) == expected
    assert refusal(lambda: fields.text_or_objects("messages")) == expected


def test_content_may_be_text_or_parts() -> None:
    fields = Fields({"a": "text", "b": [{"type": "text"}], "c": ""}, "/messages/0")
    assert (fields.text_or_objects("a"), fields.text_or_objects("c")) == ("text", "")
    parts = fields.text_or_objects("b")
    assert isinstance(parts, list)
    assert [part.at for part in parts] == ["/messages/0/b/0"]


@pytest.mark.parametrize("value", [3, 3.0])
def test_a_whole_float_is_an_integer(value: float) -> None:
    got = Fields({"k": value}, "").integer("k")
    assert (got, type(got)) == (3, int)


def test_infinity_is_no_integer() -> None:
    assert refusal(lambda: Fields({"k": float("inf")}, "").integer("k"))[0] == "/k"


@pytest.mark.parametrize("value", ["x" * 10_000_000, ["y" * 1000], {"k": "é" * 200}])
def test_a_long_value_is_shortened(value: object) -> None:
    _, message = refusal(lambda: Fields({"k": value}, "").integer("k"))
    shown = message.removeprefix("/k must be an integer, got ")
    assert len(shown) == 80
    assert shown.endswith("…")


def test_the_root_is_called_the_body() -> None:
    assert BadField("", "must be an object").failure.message == "the body must be an object"
