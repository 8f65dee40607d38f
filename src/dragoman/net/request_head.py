"""Parse and check request heads; a head that could be read in two ways is rejected."""

import re
from functools import lru_cache
from urllib.parse import unquote

import httptools
from msgspec import Struct
from msgspec.structs import replace

from dragoman.net.errors import HeadRejected
from dragoman.net.headers import CREDENTIAL_FIELDS, Header, LastingFields, first_values
from dragoman.translate.framing.redaction import has_secret_parameter, names_credential

HEAD_END = b"\r\n\r\n"
_BLANK_LINES = re.compile(rb"(?:\r\n)++")
_HOST = re.compile(rb"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\])(?::[0-9]{1,5})?")
_METHOD = re.compile(rb"[A-Z][A-Z_-]{0,31}")
_MAX_LENGTH_DIGITS = 18
_ZERO = b"0"[0]
_LENGTH = re.compile(rb"[1-9][0-9]{0,17}")
_LENGTH_FIELD = re.compile(rb"\r\n(?i:content-length): ?([1-9][0-9]{0,17})\r\n")
# The values that differ between requests, or are secret: they are cut out of a head, and the rest is looked up.
_CUT_FIELDS = CREDENTIAL_FIELDS | {b"content-length"}
_CUT = re.compile(rb"(\r\n(?i:" + b"|".join(sorted(_CUT_FIELDS)) + rb"): *)([!-~][ -~]*)(?=\r\n)")
_INSTEAD = b"1"  # of a value that was cut out
_CUT_OUT = frozenset((name, _INSTEAD) for name in _CUT_FIELDS)
_MAX_KEPT_BYTES = 4096  # of a head
# Fields that decide framing or routing may occur once: a proxy in front could use the other one.
_SINGLE = frozenset({b"host", b"content-length", b"transfer-encoding"})
_DECIDING = _SINGLE | {b"connection", b"expect"}


class RequestHead(Struct):
    """A request line and its fields, with the framing of the body."""

    fields: list[Header] = []
    lasting: LastingFields | None = None  # the fields of all heads that differ in length and credential alone
    by_name: dict[bytes, bytes] | None = None  # the first value of each field; None: not made yet
    method: str = ""
    path: str = ""
    raw_path: bytes = b""
    query: str = ""
    modern: bool = True  # HTTP/1.1, as opposed to 1.0
    keep_alive: bool = True
    length: int = 0
    chunked: bool = False
    expects_continue: bool = False
    upgrade: bool = False
    tunnel: bool = False  # CONNECT: what follows is no HTTP
    complete: bool = False
    key_digests: list[bytes] = []  # of the keys that it presents: made once for all equal heads of a connection

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        self.complete = True


class HeadReader:
    """Parses the heads of one connection.

    Most requests of a connection differ in nothing but their length: such a head is taken from the one before. That one
    has the client's key in it, and is forgotten with the connection.
    """

    __slots__ = ("_after", "_before", "_known", "_max_fields", "_place")

    def __init__(self) -> None:
        self._known: RequestHead | None = None  # the last one that had a length
        self._before = self._after = b""  # what stands around its length
        self._place = 0  # of the length, among its fields
        self._max_fields = 0

    def parse(self, raw: bytes, max_fields: int) -> RequestHead:
        """Parse a head that ends with its only empty line; raises HeadRejected."""
        known = self._known if max_fields == self._max_fields else None
        if known is not None:
            before, after = self._before, self._after
            length = raw[len(before) : len(raw) - len(after)]
            is_plain = length.isdigit() and length[0] != _ZERO and len(length) <= _MAX_LENGTH_DIGITS
            if is_plain and before + length + after == raw:
                assert known.by_name is not None
                fields, by_name = known.fields.copy(), known.by_name.copy()
                fields[self._place] = (b"content-length", length)
                by_name[b"content-length"] = length
                return replace(known, fields=fields, by_name=by_name, length=int(length))
        head = parse_head(raw, max_fields)
        self._remember(raw, head, max_fields)
        return head

    def _remember(self, raw: bytes, head: RequestHead, max_fields: int) -> None:
        found = _LENGTH_FIELD.search(raw) if len(raw) <= _MAX_KEPT_BYTES and head.by_name is not None else None
        if found is None:
            self._known = None
            return
        self._known, self._max_fields = head, max_fields
        self._before, self._after = raw[: found.start(1)], raw[found.end(1) :]
        self._place = [name for name, _ in head.fields].index(b"content-length")


def parse_head(raw: bytes, max_fields: int) -> RequestHead:
    """Parse a head that ends with its only empty line; raises HeadRejected.

    Requests often differ in nothing but their length and their key, so that the rest of the head is looked up.
    """
    if len(raw) > _MAX_KEPT_BYTES or raw.find(b"ength: ") < 0:
        return _parse(raw, max_fields)
    pieces = _CUT.split(raw)  # what stands before a value, the name of its field, the value, and so on
    values = pieces[2::3]
    pieces[2::3] = [_INSTEAD] * len(values)
    known: _KnownHead | None
    try:
        known = _parse_known(b"".join(pieces), max_fields)
    except _NotKept as parsed:
        known = parsed.head
    return (known and _restore(known, values)) or _parse(raw, max_fields)


class _KnownHead(Struct, frozen=True):
    """A head whose secrets and length were cut out."""

    head: RequestHead
    by_name: dict[bytes, bytes]  # the first value of each field
    cut: tuple[tuple[int, bytes], ...]  # place and name of each field whose value was cut out, the last one first


class _NotKept(Exception):
    """A head that is not remembered: there may be a secret in what is left of it, or it has no length.

    `head` is None if one of the values that should have been cut out is left.
    """

    def __init__(self, head: _KnownHead | None) -> None:
        self.head = head


@lru_cache(maxsize=256)
def _parse_known(raw: bytes, max_fields: int) -> _KnownHead:
    """Parse a head without secrets and length; raises _NotKept with what was parsed, or HeadRejected."""
    head = _parse(raw, max_fields)
    cut = [(place, field[0]) for place, field in enumerate(head.fields) if field in _CUT_OUT]
    known = _KnownHead(head, first_values(head.fields), tuple(reversed(cut)))
    rest = [field[0] for field in head.fields if field not in _CUT_OUT]
    if not _CUT_FIELDS.isdisjoint(rest):
        raise _NotKept(None)
    others = [name.decode("latin-1") for name in rest]
    if not head.length or any(map(names_credential, others)) or has_secret_parameter(head.query):
        raise _NotKept(known)
    head.lasting = LastingFields(tuple(head.fields))
    return known


def _restore(known: _KnownHead, values: list[bytes]) -> RequestHead | None:
    """Return the head with its own values; None if something else than whole values was cut out."""
    if len(known.cut) != len(values):
        return None
    fields, by_name, length = known.head.fields.copy(), known.by_name.copy(), known.head.length
    for (place, name), value in zip(known.cut, reversed(values), strict=True):
        if value[-1] == 32:  # a space
            value = value.rstrip()
        fields[place] = (name, value)
        by_name[name] = value  # of several, the first one's comes last
        if name == b"content-length":
            if not _LENGTH.fullmatch(value):
                return None
            length = int(value)
    return replace(known.head, fields=fields, by_name=by_name, length=length, key_digests=[])


def _parse(raw: bytes, max_fields: int) -> RequestHead:
    # The parser checks these too; a second check is cheap and guards against request smuggling.
    breaks = raw.count(b"\r\n")
    if breaks != raw.count(b"\n") or breaks != raw.count(b"\r") or raw.find(b"\0") >= 0:
        raise HeadRejected("a bare line break or NUL in the header")
    if breaks - 2 > max_fields:
        raise HeadRejected("too many header fields", 431)
    head = RequestHead()
    _feed(raw, head)
    _read_request_line(raw[: raw.index(b"\r\n")], head)
    _read_fields(head)
    return head


class UnreadBytes(bytearray):
    """What a client has sent and was not read yet; finds the end of a head in it without searching twice."""

    __slots__ = ("_searched",)

    def __init__(self) -> None:
        super().__init__()
        self._searched = 0

    def take_head(self, max_bytes: int) -> bytes | None:
        """Return the next head; None if it is incomplete. Raises HeadRejected if it never becomes a valid one."""
        blank = _BLANK_LINES.match(self)
        if blank is not None:  # some clients end a body with a line break that is not part of it
            del self[: blank.end()]
        end = self.find(HEAD_END, self._searched) + 4
        if len(self) > max_bytes and not 4 <= end <= max_bytes:
            raise HeadRejected("the header is too large", 431)
        if end < 4:
            self._check_incomplete()
            self._searched = max(0, len(self) - 3)
            return None
        self._searched = 0
        raw = bytes(self[:end])
        del self[:end]
        return raw

    def _check_incomplete(self) -> None:
        """Raise HeadRejected if the beginning of a head can be rejected already."""
        searched = self._searched
        if self and not _begins_method(self):
            raise HeadRejected("not an HTTP request")
        if self.count(b"\n", searched) != self.count(b"\r\n", max(0, searched - 1)):
            raise HeadRejected("a bare line break in the header")


def _begins_method(raw: bytes | bytearray) -> bool:
    return b"A"[0] <= raw[0] <= b"Z"[0]


def path_of(raw: bytes) -> str:
    """Return the path of a head that may be broken or incomplete; empty if there is none."""
    if not raw or not _begins_method(raw):
        return ""
    words = raw[: raw.find(b"\r\n")].split(b" ", 2) if b"\r\n" in raw else raw.split(b" ", 2)
    target = words[1] if len(words) > 1 else b""
    return target.partition(b"?")[0][:1024].decode("latin-1")


def _feed(raw: bytes, head: RequestHead) -> None:
    try:
        httptools.HttpRequestParser(head).feed_data(raw)
    except httptools.HttpParserUpgrade:
        head.upgrade = True
    except httptools.HttpParserInvalidMethodError as error:
        if _METHOD.fullmatch(raw.partition(b" ")[0]):
            raise HeadRejected("unknown method", 501) from error
        raise HeadRejected("not an HTTP request") from error
    except httptools.HttpParserError as error:
        raise HeadRejected(f"malformed request: {error}") from error
    if not head.complete:
        raise HeadRejected("malformed request")


def _read_request_line(line: bytes, head: RequestHead) -> None:
    words = line.split(b" ")
    if len(words) != 3:
        raise HeadRejected("malformed request line")
    method, target, version = words
    head.method = method.decode("ascii")
    if version == b"HTTP/1.0":
        head.modern = head.keep_alive = False
    elif version != b"HTTP/1.1":
        raise HeadRejected("only HTTP/1.1 and HTTP/1.0 are supported", 505)
    if method == b"CONNECT":
        head.tunnel = True
        head.keep_alive = False
        head.path, head.raw_path = target.decode("latin-1"), target
        return
    if target[0] != 47:  # not "/"
        target = _strip_authority(target, head)
    raw_path, _, query = target.partition(b"?")
    if target.find(b"#") >= 0:
        raise HeadRejected("a fragment in the request target")
    head.raw_path = raw_path
    head.path = unquote(raw_path.decode("latin-1"))
    head.query = query.decode("latin-1")


def _strip_authority(target: bytes, head: RequestHead) -> bytes:
    """Return the path of a target such as `http://host/path`; its authority must equal Host."""
    if target == b"*" and head.method == "OPTIONS":
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise HeadRejected("malformed request target")
    authority = re.split(rb"[/?#]", rest, maxsplit=1)[0]
    for name, value in head.fields:
        if name == b"host" and value.lower() != authority.lower():
            raise HeadRejected("the request target and Host disagree")
    path = rest[len(authority) :]
    return path if path.startswith(b"/") else b"/" + path


def _read_fields(head: RequestHead) -> None:
    single = dict(head.fields)
    is_plain = b"expect" not in single and single.get(b"connection", b"keep-alive") == b"keep-alive"
    if not is_plain or len(single) != len(head.fields):
        single = _read_deciding_fields(head)
    host = single.get(b"host")
    if host is None:
        if head.modern:
            raise HeadRejected("Host is missing")
    elif not _HOST.fullmatch(host):
        raise HeadRejected("illegal Host")
    if head.upgrade:
        head.keep_alive = False
    _read_framing(single, head)


def _read_deciding_fields(head: RequestHead) -> dict[bytes, bytes]:
    """Return the fields that may occur once; note what `connection` and `expect` say."""
    single: dict[bytes, bytes] = {}
    for name, value in head.fields:
        if name not in _DECIDING:
            continue
        if name in _SINGLE:
            if name in single:
                raise HeadRejected(f"more than one {name.decode('ascii')}")
            single[name] = value
        elif name == b"connection":
            if value != b"keep-alive" and b"close" in [token.strip() for token in value.lower().split(b",")]:
                head.keep_alive = False
        elif head.modern:
            if value.lower() != b"100-continue":
                raise HeadRejected("unknown expectation", 417)
            head.expects_continue = True
    return single


def _read_framing(single: dict[bytes, bytes], head: RequestHead) -> None:
    length = single.get(b"content-length")
    coding = single.get(b"transfer-encoding")
    if length is not None:
        if coding is not None:
            raise HeadRejected("both content-length and transfer-encoding")
        if not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS:
            raise HeadRejected("malformed content-length")
        head.length = int(length)
    elif coding is not None:
        if not head.modern:
            raise HeadRejected("transfer-encoding in HTTP/1.0")
        if coding.lower() != b"chunked":
            raise HeadRejected("unknown transfer-encoding", 501)
        head.chunked = True
