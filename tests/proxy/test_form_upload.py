"""A form that is read no further than its model, sent on with another one, and kept for another attempt."""

import pytest

from dragoman.net.bodies import UNCOUNTED_BYTES
from dragoman.net.http_request import HttpRequest
from dragoman.proxy.form_upload import FormUpload
from dragoman.translate.hub.failure import Kind, RequestError
from proxy.in_memory import make_request

TYPE = b"multipart/form-data; boundary=XX"
FILE = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n'
FORM = b'--XX\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n' + FILE + b"--XX--\r\n"


def make_upload(body: bytes, declares: bool = True) -> HttpRequest:
    headers = [(b"content-length", b"%d" % len(body))] if declares else []
    request = make_request("/v1/audio/transcriptions", headers)
    request.set_body(body)
    return request


async def read_sent(form: FormUpload, model: str | None) -> bytes:
    upload = await form.prepare(model)
    body = b"".join([piece async for piece in upload.pieces()])
    assert len(body) == upload.length
    return body


@pytest.mark.parametrize("declares", [True, False], ids=["length declared", "length unknown"])
@pytest.mark.parametrize("size", [3, UNCOUNTED_BYTES + 1], ids=["in memory", "in a file"])
async def test_only_the_model_changes_and_each_attempt_gets_the_whole_form(size: int, declares: bool) -> None:
    body = FORM % (b"x" * size)
    form = FormUpload(make_upload(body, declares), TYPE)
    try:
        assert await form.read_model(needs_model=True) == "whisper"
        assert await read_sent(form, None) == body
        assert await read_sent(form, "large-v3") == body.replace(b"whisper", b"large-v3")
        assert form.read_all(len(body)) == body
        assert form.read_all(len(body) - 1) is None
    finally:
        form.close()


async def test_a_form_without_a_model_is_refused_where_one_is_needed() -> None:
    form = FormUpload(make_upload(FILE % b"x" + b"--XX--\r\n"), TYPE)
    assert await form.read_model(needs_model=False) == ""
    with pytest.raises(RequestError) as refused:
        await form.read_model(needs_model=True)
    assert (refused.value.failure.kind, refused.value.failure.at) == (Kind.BAD_REQUEST, "/model")
    form.close()


async def test_a_form_without_a_boundary_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        FormUpload(make_upload(FORM % b"x"), b"multipart/form-data")
    assert refused.value.failure.kind is Kind.BAD_REQUEST


async def test_a_model_that_is_no_text_is_refused() -> None:
    form = FormUpload(make_upload((FORM % b"x").replace(b"whisper", b"\xff\xfe")), TYPE)
    with pytest.raises(RequestError, match="not valid UTF-8"):
        await form.read_model(needs_model=True)
    form.close()
