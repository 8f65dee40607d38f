"""Find one field of a multipart/form-data body while its bytes arrive, without holding the body."""

import re
from enum import Enum

MAX_BOUNDARY_BYTES = 200
MAX_PART_HEAD_BYTES = 16 * 1024
MAX_VALUE_BYTES = 4096

_FORM = re.compile(rb"\s*multipart/form-data\s*(;.*)?", re.IGNORECASE | re.DOTALL)
_DISPOSITION = re.compile(rb"^content-disposition[ \t]*:[ \t]*form-data[ \t]*(;.*)?$", re.IGNORECASE | re.MULTILINE)
_PARAMETER = re.compile(rb';\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))')
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


class MalformedForm(ValueError):
    """The body is no form, or its field is repeated or too long; the message may be shown to the client."""


def is_form(content_type: bytes) -> bool:
    return _FORM.fullmatch(content_type) is not None


def read_boundary(content_type: bytes) -> bytes:
    """Return the boundary that a content type names; raises MalformedForm."""
    found = _FORM.fullmatch(content_type)
    boundary = _read_parameters(found[1] or b"").get(b"boundary", b"") if found is not None else b""
    if not boundary:
        raise MalformedForm("The content type names no boundary: send multipart/form-data; boundary=...")
    if len(boundary) > MAX_BOUNDARY_BYTES:
        raise MalformedForm(f"The boundary of the form has {len(boundary)} bytes, at most {MAX_BOUNDARY_BYTES} may be.")
    return boundary


def _read_parameters(text: bytes) -> dict[bytes, bytes]:
    """Return the parameters of a header's value; of a repeated one, the first."""
    found: dict[bytes, bytes] = {}
    for name, quoted, plain in _PARAMETER.findall(text):
        found.setdefault(name.lower(), _ESCAPED.sub(rb"\1", quoted) if quoted else plain)
    return found


class _State(Enum):
    OUTSIDE = "before a boundary"
    BOUNDARY = "after a boundary"
    HEAD = "in the head of a part"
    VALUE = "in the value of the field"
    ENDED = "after the last boundary"


class FieldFinder:
    """Finds where the value of one field stands in a form. Feed the body in any pieces.

    It holds no more than the head of a part, or the value itself. A second field of that name is an error: servers
    differ in which of the two they use.
    """

    __slots__ = ("_at", "_boundary", "_buffer", "_name", "_state", "first", "span", "value")

    def __init__(self, name: bytes, boundary: bytes) -> None:
        self._name = name
        self._boundary = b"\r\n--" + boundary
        self._buffer = b"\r\n"  # the first boundary may stand at the very beginning
        self._at = -2  # of the buffer in the body
        self._state = _State.OUTSIDE
        self.first: int | None = None  # where the first boundary stands in the body
        self.span: tuple[int, int] | None = None  # of the value in the body, once it is complete
        self.value = b""

    def find_place(self, value: bytes) -> tuple[tuple[int, int], bytes]:
        """Return what of the body is to be replaced, and by what, so that the field has this value.

        A form without the field gets it as its first part; a body without any boundary stays as it is.
        """
        if self.span is not None:
            return self.span, value
        if self.first is None:
            return (0, 0), b""
        head = b'%b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n' % (self._boundary[2:], self._name)
        return (self.first, self.first), head + value + b"\r\n"

    @property
    def is_complete(self) -> bool:
        """Whether the last boundary has been read."""
        return self._state is _State.ENDED

    def feed(self, data: bytes) -> None:
        """Read on; raises MalformedForm."""
        self._buffer += data
        while self._step():
            pass

    def _step(self) -> bool:
        """Make one step; return False if more bytes are needed."""
        match self._state:
            case _State.OUTSIDE:
                found = self._buffer.find(self._boundary)
                if found < 0:
                    self._skip(max(0, len(self._buffer) - len(self._boundary) + 1))
                    return False
                if self.first is None:
                    self.first = self._at + found + len(b"\r\n")
                self._skip(found + len(self._boundary))
                self._state = _State.BOUNDARY
                return True
            case _State.BOUNDARY:
                return self._read_boundary_end()
            case _State.HEAD:
                return self._read_head()
            case _State.VALUE:
                return self._read_value()
            case _State.ENDED:
                self._skip(len(self._buffer))
                return False

    def _skip(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._at += count

    def _read_boundary_end(self) -> bool:
        """Read the rest of the boundary's line: two dashes end the form; white space may follow."""
        if len(self._buffer) < 2:
            return False
        if self._buffer.startswith(b"--"):
            self._state = _State.ENDED
            return True
        end = self._buffer.find(b"\r\n")
        padding = self._buffer if end < 0 else self._buffer[:end]
        if padding.strip(b" \t") not in (b"", b"\r"):  # a longer boundary: this was part of some value
            self._state = _State.OUTSIDE
            return True
        if end < 0:
            return self._await_more(MAX_PART_HEAD_BYTES, "The line of a boundary")
        self._skip(end)  # the line break stays: a part may have an empty head
        self._state = _State.HEAD
        return True

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or end > MAX_PART_HEAD_BYTES:
            return self._await_more(MAX_PART_HEAD_BYTES, "The head of a part of the form")
        head = self._buffer[:end]
        self._skip(end + 4)
        if not self._names_field(head):
            self._buffer = b"\r\n" + self._buffer  # an empty value is followed by its boundary at once
            self._at -= 2
            self._state = _State.OUTSIDE
            return True
        name = self._name.decode("latin-1")
        if self.span is not None:
            raise MalformedForm(f"The form has more than one field {name!r}: send it once.")
        self._state = _State.VALUE
        return True

    def _names_field(self, head: bytes) -> bool:
        disposition = _DISPOSITION.search(head.replace(b"\r\n", b"\n"))
        return disposition is not None and _read_parameters(disposition[1] or b"").get(b"name") == self._name

    def _read_value(self) -> bool:
        # The line break before the boundary is not part of the value; that of an empty value ended the head.
        end = 0 if self._buffer.startswith(self._boundary[2:]) else self._buffer.find(self._boundary)
        if end < 0 or end > MAX_VALUE_BYTES:
            return self._await_more(MAX_VALUE_BYTES, f"The field {self._name.decode('latin-1')!r} of the form")
        self.value = self._buffer[:end]
        self.span = (self._at, self._at + end)
        if end == 0 and not self._buffer.startswith(b"\r\n"):
            self._buffer = b"\r\n" + self._buffer
            self._at -= 2
        self._state = _State.OUTSIDE
        return True

    def _await_more(self, most: int, what: str) -> bool:
        if len(self._buffer) >= most + len(self._boundary):
            raise MalformedForm(f"{what} is longer than {most} bytes.")
        return False
