"""Assemble text, thinking, tool calls and citations of a Kiro reply into blocks."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from dragoman.framing.jsonread import read_json
from dragoman.framing.jsonscan import compact, validate_object
from dragoman.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Event,
    OpaqueAdded,
    Opened,
    TextBlock,
    ThinkingBlock,
    TruncatedCall,
)
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.ports import Issuer
from dragoman.hub.request import Citation
from dragoman.protocols.kiro.wire import CodeReferences, Place, Quotation, Span, ToolUse, WebLinks

MAX_CHARS = 32 * 1024 * 1024  # of the arguments of all calls of a reply
EMPTY = "{}"
MAX_EARLY_LOOKS = 8
_string = msgspec.json.Decoder(str)
_TEXT = TextBlock()
_THINKING = ThinkingBlock()


class Call(Struct, frozen=True):
    id: str
    name: str
    arguments: str


class _Growing:
    __slots__ = ("_next_look", "_stops", "id", "length", "name", "pieces", "stopped")

    def __init__(self, id: str) -> None:
        self.id = id
        self.name = ""
        self.pieces: list[str] = []
        self.length = 0  # characters in all pieces
        self.stopped = False
        self._stops = 0
        self._next_look = 0

    def stop(self) -> Call | None:
        """Note that the call says it has ended; return it if it is whole.

        Each look joins and parses all pieces, so after the first few stops a look waits until the text has doubled;
        a call that is whole by then is found at the end of the reply at the latest.
        """
        self.stopped = True
        self._stops += 1
        if self._stops > MAX_EARLY_LOOKS and self.length < self._next_look:
            return None
        self._next_look = 2 * self.length
        return self.whole()

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def whole(self) -> Call | None:
        text = self.text
        if self.stopped and not text.strip():
            text = EMPTY
        arguments = validate_object(text) if self.name else None
        return None if arguments is None else Call(self.id, self.name, arguments)


class Calls:
    """Withholds every call until its arguments are one whole JSON object: half a call must never be run."""

    __slots__ = ("_growing", "_last", "_ledger", "_made", "_taken", "_told", "empty", "made")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._growing: dict[str, _Growing] = {}
        self._taken = 0
        self._last = ""  # the id of the call under way: pieces may come without one
        self._told: set[str] = set()
        self._made: set[tuple[str, str]] = set()
        self.made = 0
        self.empty: Call | None = None  # whole without arguments; told once nothing of the same id can follow

    def add(self, use: ToolUse) -> list[Call]:
        """One piece; gives the calls that may be told now."""
        id = use.tool_use_id or self._id_under_way(use.name)
        if not id:
            return []
        self._last = id
        calls = self.settle() if self.empty is not None and self.empty.id != id else []
        self.empty = None
        if id in self._told:
            return calls
        call = self._growing.get(id)
        if call is None:
            call = self._growing[id] = _Growing(id)
        call.name = call.name or use.name or ""
        self._grow(call, use)
        if not use.stop:
            return calls
        whole = call.stop()
        if whole is None:
            return calls
        if whole.arguments == EMPTY:
            self.empty = whole
            return calls
        return calls + self._tell(whole)

    def settle(self) -> list[Call]:
        """The call without arguments that waited for better ones."""
        empty, self.empty = self.empty, None
        return [] if empty is None else self._tell(empty)

    def end(self) -> tuple[list[Call], tuple[TruncatedCall, ...]]:
        """The calls that turn out whole, in the order in which they began, and those that do not."""
        self.empty = None
        calls: list[Call] = []
        cut: list[TruncatedCall] = []
        for growing in list(self._growing.values()):
            whole = growing.whole()
            if whole is None:
                cut.append(TruncatedCall(growing.id, growing.name, growing.text))
            else:
                calls += self._tell(whole)
        return calls, tuple(cut)

    def _id_under_way(self, name: str | None) -> str:
        """Whose a piece without an id is: the last call's, or a new one's if it has a name."""
        if not name or self._last in self._growing:
            return self._last
        return f"tooluse_{len(self._told) + 1}"

    def _grow(self, call: _Growing, use: ToolUse) -> None:
        raw = bytes(use.input)
        if raw == b"null" or self._taken > MAX_CHARS:
            return
        snapshot = raw[:1] != b'"'
        piece = raw.decode() if snapshot else read_json(_string, raw)
        if snapshot or call.pieces == [EMPTY]:  # some begin with an empty object and tell the pieces afterwards
            call.pieces.clear()
            call.length = 0
        if piece:
            call.pieces.append(piece)
            call.length += len(piece)
            self._taken += len(piece)

    def _tell(self, call: Call) -> list[Call]:
        self._growing.pop(call.id, None)
        self._told.add(call.id)
        key = (call.name, compact(call.arguments))
        if key in self._made:
            self._ledger.note_dropped(f"/toolUses/{call.id}", "the same call was made before in this reply")
            return []
        self._made.add(key)
        self.made += 1
        return [call]


def cite_references(event: CodeReferences) -> Iterator[Citation]:
    for reference in event.references or ():
        span = reference.recommendation_content_span or Span()
        title = " ".join(part for part in (reference.repository, _bracket(reference.license_name)) if part)
        yield Citation(reference.url, title or None, None, span.start, span.end, _record("codeReference", reference))


def cite_links(event: WebLinks) -> Iterator[Citation]:
    for link in event.supplementary_web_links or ():
        yield Citation(link.url, link.title, link.snippet, raw=_record("supplementaryWebLink", link))


def cite_quotation(event: Quotation) -> Iterator[Citation]:
    place = event.target or Place()
    span = place.range or Span(place.location, place.location)
    record = _record("citation", event)
    yield Citation(event.citation_link, event.citation_text, None, span.start, span.end, record)


def place_citation(citation: Citation, base: int, length: int) -> Citation:
    """The citation as its block counts characters; one that lies outside of the block is of the whole block."""
    start, end = citation.start, citation.end
    if start is None or end is None or not base <= start <= end <= base + length:
        return msgspec.structs.replace(citation, start=None, end=None)
    return msgspec.structs.replace(citation, start=start - base, end=end - base)


def _bracket(text: str | None) -> str | None:
    return f"({text})" if text else None


def _record(kind: str, value: msgspec.Struct) -> dict[str, object]:
    fields = msgspec.to_builtins(value)
    return {"type": kind, **{name: field for name, field in fields.items() if field is not None}}


class Blocks:
    """At most one block is open: text stays one block until another kind comes."""

    __slots__ = ("_base", "_issuer", "_ledger", "_length", "_next", "_open", "_signature", "_uncited")

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._issuer = issuer
        self._ledger = ledger
        self._next = 0
        self._open: TextBlock | ThinkingBlock | None = None
        self._base = 0  # characters of text before the open block of text, by which Kiro counts
        self._length = 0  # characters in it
        self._signature: list[str] = []  # pieces of the open thinking block's
        self._uncited: list[Citation] = []  # for the next block of text

    def text(self, text: str) -> Sequence[Event]:
        opened = () if self._open is _TEXT else self._begin(_TEXT)
        self._length += len(text)
        delta = Delta(self._next - 1, text)
        if not opened:
            return (delta,)
        cited = [self._cited(citation) for citation in self._uncited]
        self._uncited.clear()
        return [*opened, delta, *cited]

    def thought(self, text: str) -> Sequence[Event]:
        if self._open is _THINKING and not self._signature:
            return (Delta(self._next - 1, text),)
        return [*self._begin(_THINKING), Delta(self._next - 1, text)]

    def signature(self, piece: str) -> Sequence[Event]:
        """Vouches for the open thoughts, or for some that were not shown."""
        opened = () if self._open is _THINKING else self._begin(_THINKING)
        self._signature.append(piece)
        return opened

    def redacted(self, content: str) -> Sequence[Event]:
        opened = self._begin(_THINKING)
        return [*opened, OpaqueAdded(self._next - 1, self._opaque(Form.REDACTED, content)), *self.end_block()]

    def call(self, call: Call) -> Sequence[Event]:
        closed = self.end_block()
        number = self._take_number()
        return [
            *closed,
            Opened(number, CallBlock(call.id, call.name)),
            Delta(number, call.arguments),
            Closed(number),
        ]

    def cite(self, citations: Iterable[Citation]) -> Sequence[Event]:
        if self._open is _TEXT:
            return [self._cited(citation) for citation in citations]
        self._uncited += citations
        return ()

    def end_block(self) -> Sequence[Event]:
        if self._open is None:
            return ()
        number = self._next - 1
        self._open = None
        self._base += self._length
        self._length = 0
        if not self._signature:
            return (Closed(number),)
        signature = "".join(self._signature)
        self._signature.clear()
        return (OpaqueAdded(number, self._opaque(Form.SIGNATURE, signature)), Closed(number))

    def end(self) -> Sequence[Event]:
        if self._uncited:
            self._ledger.note_dropped("/citations", "no text follows that they could be told with")
        return self.end_block()

    def _begin(self, what: TextBlock | ThinkingBlock) -> Sequence[Event]:
        closed = self.end_block()
        self._open = what
        return [*closed, Opened(self._take_number(), what)]

    def _cited(self, citation: Citation) -> CitationAdded:
        return CitationAdded(self._next - 1, place_citation(citation, self._base, self._length))

    def _opaque(self, form: Form, payload: str) -> Opaque:
        return Opaque(self._issuer.name, form, payload, self._issuer.model)

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1
