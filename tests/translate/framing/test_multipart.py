"""One field of a form is found wherever the bytes are cut, in linear time and without holding the form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.translate.framing.multipart import MAX_PART_HEAD_BYTES, FieldFinder, MalformedForm, is_form, read_boundary
from laws import assert_linear_function

BOUNDARY = b"b7"


def part(disposition: bytes, value: bytes) -> bytes:
    return b"--b7\r\nContent-Disposition: form-data; " + disposition + b"\r\n\r\n" + value + b"\r\n"


END = b"--b7--\r\n"
FORMS = {
    "first": part(b'name="model"', b"whisper-1") + part(b'name="file"; filename="a"', b"RIFF\r\n--b8\r\n") + END,
    "last": part(b'name="file"; filename="model"', b"\r\n\r\n--b7") + part(b"name=model", b"whisper-1") + END,
    "after a preamble": b"ignore me\r\n" + part(b'filename="x; name=\\"a\\""; name="model"', b"whisper-1") + END,
    "with other heads": b"--b7 \t\r\nX-Odd: 1\r\ncontent-disposition: Form-Data; NAME=\"model\"\r\nX: 2\r\n\r\n"
    b"whisper-1\r\n" + END,
    "beside empty values": part(b'name="a"', b"") + part(b'name="model"', b"whisper-1") + part(b'name="b"', b"") + END,
    "beside a name in a file": part(b'name="f"; filename="; name=model"', b"no") + part(b'name="model"', b"whisper-1"),
}  # fmt: skip


def find(*pieces: bytes) -> FieldFinder:
    finder = FieldFinder(b"model", BOUNDARY)
    for piece in pieces:
        finder.feed(piece)
    return finder


@pytest.mark.parametrize("name", FORMS)
def test_the_value_and_its_place_are_found_wherever_the_form_is_cut(name: str) -> None:
    form = FORMS[name] + (b"" if FORMS[name].endswith(END) else END)
    whole = find(form)
    assert whole.span is not None
    assert (whole.value, form[slice(*whole.span)]) == (b"whisper-1", b"whisper-1")
    for at in range(len(form)):
        assert find(form[:at], form[at:]).span == whole.span, at
    assert find(*(form[at : at + 1] for at in range(len(form)))).span == whole.span
    assert whole.is_complete


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_any_bytes_end_in_a_value_or_an_error(first: bytes, second: bytes) -> None:
    try:
        cut = find(first, second)
    except MalformedForm:
        with pytest.raises(MalformedForm):
            find(first + second)
        return
    whole = find(first + second)
    assert (whole.span, whole.value) == (cut.span, cut.value)


def test_an_empty_value_is_found() -> None:
    form = part(b'name="model"', b"") + END
    finder = find(form)
    assert finder.span is not None
    assert (finder.value, form[finder.span[0] :]) == (b"", b"\r\n" + END)


def test_no_such_field_is_no_error() -> None:
    assert find(part(b'name="models"', b"a") + part(b'name="file"', b'name="model"') + END).span is None


@pytest.mark.parametrize(
    ("form", "complaint"),
    [
        (part(b'name="model"', b"a") + part(b'name="model"', b"b"), "more than one field 'model'"),
        (part(b'name="model"', b"m" * 5000), "longer than 4096 bytes"),
        (b"--b7\r\n" + b"x: y\r\n" * MAX_PART_HEAD_BYTES, "head of a part"),
    ],
)
def test_a_malformed_form_is_refused_with_the_reason(form: bytes, complaint: str) -> None:
    for size in (1 << 20, 1000, 7):
        with pytest.raises(MalformedForm, match=complaint):
            find(*(form[at : at + size] for at in range(0, len(form), size)))


def test_a_long_file_is_not_held() -> None:
    finder = find(part(b'name="model"', b"a"), b"--b7\r\ncontent-disposition: form-data; name=file\r\n\r\n")
    for _ in range(50):
        finder.feed(b"\r\n--b" * 20_000)
    assert len(finder._buffer) < 100


def test_time_is_linear_in_the_length() -> None:
    def make_pieces(size: int) -> list[bytes]:
        form = part(b'name="file"', b"\r\n--b" * size) + part(b'name="model"', b"a") + END
        return [form[at : at + 100] for at in range(0, len(form), 100)]

    assert_linear_function(lambda pieces: find(*pieces), make_pieces, 4_000)


def test_the_boundary_is_read_from_the_content_type() -> None:
    assert read_boundary(b'multipart/form-data; charset=utf-8; boundary="a b\\"c"') == b'a b"c'
    assert read_boundary(b"Multipart/Form-Data;boundary=xyz") == b"xyz"
    assert is_form(b"multipart/form-data; boundary=x")
    assert not is_form(b"application/json")
    for wrong in (b"", b"; boundary=", b"; boundary=" + b"x" * 300):
        with pytest.raises(MalformedForm):
            read_boundary(b"multipart/form-data" + wrong)
