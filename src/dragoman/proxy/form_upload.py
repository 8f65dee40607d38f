"""A form with files that is sent on while it arrives, and kept so that it can be sent again.

What has arrived is kept in memory while it is small, else in a temporary file without a name. Another attempt begins at
its start. Of the whole form only the value of `model` is changed, or added.
"""

import logging
from collections.abc import AsyncGenerator
from io import BytesIO
from typing import IO

from msgspec import Struct

from dragoman.net.bodies import UNCOUNTED_BYTES
from dragoman.net.http_request import HttpRequest
from dragoman.translate.framing.fields import check_model
from dragoman.translate.framing.multipart import FieldFinder, MalformedForm, read_boundary
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError, describe_cause

log = logging.getLogger(__name__)

PIECE_BYTES = 64 * 1024


class FormUpload:
    """A client's form. `close` it in every case."""

    def __init__(self, request: HttpRequest, content_type: bytes) -> None:
        """Raises RequestError if the content type names no boundary."""
        self._request = request
        try:
            self._finder = FieldFinder(b"model", read_boundary(content_type))
        except MalformedForm as bad:
            raise RequestError(Failure(Kind.BAD_REQUEST, str(bad))) from None
        length = request.headers.get(b"content-length")
        self._declared = None if length is None else int(length)
        self._kept: IO[bytes] = BytesIO()
        self._in_memory = True
        self._received = 0
        self._ended = False

    async def read_model(self, *, needs_model: bool) -> str:
        """Read on until the model is known, and return it; empty if there is none and none is needed.

        Raises RequestError, or as `HttpRequest.body` does.
        """
        while self._finder.span is None and await self._read_on():
            pass
        if self._finder.span is None:
            return check_model(None) if needs_model else ""
        try:
            return check_model(self._finder.value.decode())
        except UnicodeDecodeError:
            raise BadRequest("/model", "model is not valid UTF-8.") from None

    async def prepare(self, model: str | None) -> "RenamedForm":
        """Return the body with another model, or unchanged; a body of unknown length is read to its end first."""
        while self._declared is None and await self._read_on():
            pass
        length = self._received if self._declared is None else self._declared
        if model is None:
            return RenamedForm(self, length, (length, length), b"")
        span, value = self._finder.find_place(model.encode())
        return RenamedForm(self, length - (span[1] - span[0]) + len(value), span, value)

    def close(self) -> None:
        self._kept.close()

    def read_all(self, limit: int, added_model: str | None = None) -> bytes | None:
        """Return the whole form, for a capture; None if it is longer, or has not arrived in full."""
        if not self._ended or self._received > limit or self._kept.closed:
            return None
        self._kept.seek(0)
        whole = self._kept.read()
        if added_model is None:
            return whole
        (start, end), value = self._finder.find_place(added_model.encode())
        return whole[:start] + value + whole[end:]

    async def read_at(self, at: int, most: int) -> bytes:
        """Return at most `most` bytes from this place on; b"" at the end."""
        while at >= self._received:
            if not await self._read_on():
                return b""
        self._kept.seek(at)
        return self._kept.read(min(most, self._received - at))

    async def _read_on(self) -> bool:
        """Read and keep the next piece; return False at the end."""
        piece = b"" if self._ended else await self._request.next_piece()
        if not piece:
            self._ended = True
            return False
        try:
            self._finder.feed(piece)
        except MalformedForm as bad:
            raise RequestError(Failure(Kind.BAD_REQUEST, str(bad), at="/model")) from None
        self._keep(piece)
        return True

    def _keep(self, piece: bytes) -> None:
        if self._in_memory and self._received + len(piece) > UNCOUNTED_BYTES:
            self._move_to_file()
        try:
            self._kept.seek(self._received)
            self._kept.write(piece)
        except OSError as full:
            log.error("an upload cannot be kept in a temporary file: %s", describe_cause(full))
            message = "The gateway has no room to keep this upload (temporary files). Retry later."
            raise RequestError(Failure(Kind.BUSY, message)) from full
        self._received += len(piece)

    def _move_to_file(self) -> None:
        import tempfile  # 1 MB, only for forms with files

        self._in_memory = False
        self._kept.seek(0)
        begun = self._kept.read()
        try:
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (it is closed with the form)
        except OSError as fault:  # memory does too: what is kept counts in server.max_buffered_mb
            cause = describe_cause(fault)
            log.warning("an upload is kept in memory, because there is no directory for temporary files: %s", cause)
            return
        file.write(begun)
        self._kept = file


class RenamedForm(Struct, frozen=True):
    """A form with another value of one field; the body of one request to an upstream."""

    form: FormUpload
    length: int
    span: tuple[int, int]  # that the value replaces
    value: bytes

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        start, end = self.span
        at = 0
        while at < start and (piece := await self.form.read_at(at, min(PIECE_BYTES, start - at))):
            at += len(piece)
            yield piece
        if self.value:
            yield self.value
        at = end
        while piece := await self.form.read_at(at, PIECE_BYTES):
            at += len(piece)
            yield piece
