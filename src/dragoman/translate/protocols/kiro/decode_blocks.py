"""Assemble text, thinking, tool calls and citations of a Kiro reply into blocks."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec
from msgspec import Struct

from dragoman.translate.framing.jsonread import read_json
from dragoman.translate.framing.jsonscan import compact, is_cut_object, validate_object
from dragoman.translate.hub.events import (
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
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.hub.request import Citation
from dragoman.translate.protocols.kiro.wire import (
    CitationEvent,
    CitationTarget,
    CodeReferences,
    Span,
    ToolUse,
    WebLinks,
)

MAX_CHARS = 32 * 1024 * 1024  # of the arguments of all calls of a reply
EMPTY = "{}"
MAX_EARLY_CHECKS = 8
OTHER_VERSION = "the call was sent again with other arguments, and is passed on once"
_string = msgspec.json.Decoder(str)
_members = msgspec.json.Decoder(dict[str, object])
_TEXT = TextBlock()
_THINKING = ThinkingBlock()


class Call(Struct, frozen=True):
    id: str
    name: str
    arguments: str
    is_disputed: bool = False  # another version of its arguments said something else


class _PartialCall(Struct, eq=False):
    """A call whose arguments are still coming. Kiro may send the same call again: these are its versions."""

    id: str
    name: str = ""
    _pieces: list[str] = []  # of the current version
    _earlier: list[str] = []  # versions before it
    _starts: list[int] = []  # where in the current version another one may begin
    _length: int = 0  # characters of all pieces
    _has_ended: bool = False  # the current version: by a stop, or because it came whole
    _stops: int = 0
    _next_check: int = 0

    def replace(self, arguments: str) -> None:
        """Take the whole arguments instead of what came so far; empty ones replace nothing."""
        if arguments == EMPTY and self._pieces:
            return
        self._pieces, self._starts = [arguments], []
        self._length += len(arguments)
        self._has_ended = True

    def append(self, piece: str) -> None:
        if not piece:
            return
        if self._pieces and piece.lstrip().startswith("{"):
            # Note that a version may begin here; it does if the upstream has ended the one before.
            text = "".join(self._pieces) if self._has_ended or len(self._pieces) == 1 else ""
            if text == EMPTY:  # some calls begin with an empty object before their pieces
                self._pieces = []
            elif self._has_ended:
                self._earlier.append(text)
                self._pieces, self._starts = [], []
            elif len(self._starts) < MAX_EARLY_CHECKS:
                self._starts.append(sum(map(len, self._pieces)))
        self._pieces.append(piece)
        self._length += len(piece)
        self._has_ended = False

    def stop(self) -> Call | None:
        """Note that the upstream ended the call; return it if it is complete.

        Each check joins and parses all pieces, so after the first few stops it waits until the text has doubled;
        a call that is complete by then is found at the end of the reply at the latest.
        """
        self._has_ended = True
        self._stops += 1
        if self._stops > MAX_EARLY_CHECKS and self._length < self._next_check:
            return None
        self._next_check = 2 * self._length
        return self.complete()

    @property
    def text(self) -> str:
        """Return the arguments as far as they came: of several versions the longest."""
        text = "".join(self._pieces)
        current = split_versions(text, self._starts) if self._starts and not is_cut_object(text) else [text]
        return max((*self._earlier, *current), key=len)

    def complete(self) -> Call | None:
        """Return the call if one version of its arguments is complete; of several the longest."""
        if not self.name:
            return None
        text = "".join(self._pieces)
        if self._stops and not text.strip() and not self._earlier:
            text = EMPTY
        whole = validate_object(text)
        if whole is not None and not self._earlier:
            return Call(self.id, self.name, whole)
        current = split_versions(text, self._starts) if whole is None else [whole]
        return self._choose_version([*self._earlier, *current])

    def _choose_version(self, versions: list[str]) -> Call | None:
        complete = [whole for version in versions if (whole := validate_object(version)) is not None]
        if not complete:
            return None
        best = max(complete, key=len)
        return Call(self.id, self.name, best, _say_more(versions, best))


def _say_more(versions: Iterable[str], than: str) -> bool:
    """Return whether one of these versions of a call's arguments has something that a complete one does not have."""
    members, text = read_json(_members, than.encode()), "".join(than.split())
    for version in versions:
        if (whole := validate_object(version)) is None:
            if not text.startswith("".join(version.split())):
                return True
        elif any(members.get(name) != value for name, value in read_json(_members, whole.encode()).items()):
            return True
    return False


def split_versions(text: str, starts: Sequence[int]) -> list[str]:
    """Return the versions in arguments that were sent again without an end between them.

    At one of the `starts` a version begins if the text before it is repeated there, or cannot go on there as JSON.
    """
    versions: list[str] = []
    begin = 0
    for start, following in pairwise([*starts, len(text)]):
        before = text[begin:start]
        if text.startswith(before, start) or not is_cut_object(text[begin:following]):
            versions.append(before)
            begin = start
    return [*versions, text[begin:]]


class Calls:
    """Withhold every call until its arguments are one complete JSON object: a truncated call must never run.

    Calls are released in the order in which they began, also if a later one is complete first.
    """

    __slots__ = (
        "_complete",
        "_last",
        "_ledger",
        "_made_calls",
        "_partial",
        "_released",
        "_repeated",
        "_total_length",
        "empty",
        "made",
    )

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Ordered: the first key of a dictionary from which others have been taken is slow to find.
        self._partial: OrderedDict[str, _PartialCall] = OrderedDict()
        self._total_length = 0
        self._last = ""  # the id of the current call: pieces may come without one
        self._complete: dict[str, Call] = {}  # that wait for a call which began before them
        self._released: dict[str, Call] = {}
        self._repeated: dict[str, _PartialCall] = {}  # later versions of calls that were complete before
        self._made_calls: set[tuple[str, str]] = set()
        self.made = 0
        self.empty: Call | None = None  # complete without arguments; released once nothing of the same id can follow

    def add(self, use: ToolUse) -> list[Call]:
        """Add one piece; return the calls that are complete now."""
        id = use.tool_use_id or self._current_id(use.name)
        if not id:
            return []
        self._last = id
        calls = self.take_empty() if self.empty is not None and self.empty.id != id else []
        self.empty = None
        is_late = id in self._released or id in self._complete
        begun = self._repeated if is_late else self._partial
        call = begun.get(id)
        if call is None:
            call = begun[id] = _PartialCall(id)
        call.name = call.name or use.name or ""
        self._add_piece(call, use)
        whole = call.stop() if use.stop and not is_late else None
        if whole is None:
            return calls
        if whole.arguments == EMPTY:
            self.empty = whole
            return calls
        return calls + self._complete_call(whole)

    def take_empty(self) -> list[Call]:
        """Return the call without arguments that was withheld in case arguments follow."""
        empty, self.empty = self.empty, None
        return [] if empty is None else self._complete_call(empty)

    def end(self) -> tuple[list[Call], tuple[TruncatedCall, ...]]:
        """Return the calls that turn out complete, in the order in which they began, and the truncated ones."""
        self.empty = None
        calls: list[Call] = []
        truncated: list[TruncatedCall] = []
        for partial in list(self._partial.values()):
            whole = partial.complete()
            if whole is None:
                truncated.append(TruncatedCall(partial.id, partial.name, partial.text))
            else:
                calls += self._release(whole)
        for repeated in self._repeated.values():
            # Note a version that says something else than the call which was released before it came.
            late, sent = repeated.complete(), self._released[repeated.id]
            if late is not None and (late.name != sent.name or _say_more([late.arguments], sent.arguments)):
                self._ledger.record_dropped(f"/toolUses/{late.id}", OTHER_VERSION)
        return calls, tuple(truncated)

    def _current_id(self, name: str | None) -> str:
        """Return the id for a piece without one: the last call's, or a new one if the piece begins another call."""
        last = self._partial.get(self._last)
        if not name or (last is not None and self._last not in self._complete and last.name in ("", name)):
            return self._last
        return f"tooluse_{len(self._released) + len(self._partial) + 1}"

    def _add_piece(self, call: _PartialCall, use: ToolUse) -> None:
        raw = bytes(use.input)
        if raw == b"null" or self._total_length > MAX_CHARS:
            return
        if raw[:1] == b'"':
            piece = read_json(_string, raw)
            call.append(piece)
        else:
            piece = raw.decode()
            call.replace(piece)
        self._total_length += len(piece)

    def _complete_call(self, call: Call) -> list[Call]:
        """Return the complete calls before which no other call has begun."""
        self._complete[call.id] = call
        calls: list[Call] = []
        while self._partial:
            complete = self._complete.pop(next(iter(self._partial)), None)
            if complete is None:
                break
            calls += self._release(complete)
        return calls

    def _release(self, call: Call) -> list[Call]:
        self._partial.pop(call.id, None)
        self._released[call.id] = call
        key = (call.name, compact(call.arguments))
        if key in self._made_calls:
            self._ledger.record_dropped(f"/toolUses/{call.id}", "the same call was made before in this reply")
            return []
        if call.is_disputed:
            self._ledger.record_dropped(f"/toolUses/{call.id}", OTHER_VERSION)
        self._made_calls.add(key)
        self.made += 1
        return [call]


def cite_references(event: CodeReferences) -> Iterator[Citation]:
    for reference in event.references or ():
        span = reference.recommendation_content_span or Span()
        title = " ".join(part for part in (reference.repository, _bracket(reference.license_name)) if part)
        yield Citation(reference.url, title or None, None, span.start, span.end, _as_record("codeReference", reference))


def cite_links(event: WebLinks) -> Iterator[Citation]:
    for link in event.supplementary_web_links or ():
        yield Citation(link.url, link.title, link.snippet, raw=_as_record("supplementaryWebLink", link))


def cite_quotation(event: CitationEvent) -> Iterator[Citation]:
    place = event.target or CitationTarget()
    span = place.range or Span(place.location, place.location)
    record = _as_record("citation", event)
    yield Citation(event.citation_link, event.citation_text, None, span.start, span.end, record)


def _place_citation(citation: Citation, base: int, length: int) -> Citation:
    """Return the citation with positions within its block; one outside the block applies to the whole block."""
    start, end = citation.start, citation.end
    if start is None or end is None or not base <= start <= end <= base + length:
        return msgspec.structs.replace(citation, start=None, end=None)
    return msgspec.structs.replace(citation, start=start - base, end=end - base)


def _bracket(text: str | None) -> str | None:
    return f"({text})" if text else None


def _as_record(kind: str, value: msgspec.Struct) -> dict[str, object]:
    fields = msgspec.to_builtins(value)
    return {"type": kind, **{name: field for name, field in fields.items() if field is not None}}


class Blocks:
    """The blocks of a reply. At most one is open: text stays one block until another kind comes."""

    __slots__ = ("_base", "_issuer", "_ledger", "_length", "_next", "_open", "_pending_citations", "_signature")

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._issuer = issuer
        self._ledger = ledger
        self._next = 0
        self._open: TextBlock | ThinkingBlock | None = None
        self._base = 0  # characters of text before the open text block; Kiro counts from the start of the reply
        self._length = 0  # characters in it
        self._signature: list[str] = []  # pieces, of the open thinking block
        self._pending_citations: list[Citation] = []  # for the next block of text

    def text(self, text: str) -> Sequence[Event]:
        if self._open is _TEXT:
            self._length += len(text)
            return (Delta(self._next - 1, text),)
        opened = self._begin(_TEXT)
        self._length += len(text)
        cited = [self._place(citation) for citation in self._pending_citations]
        self._pending_citations.clear()
        return [*opened, Delta(self._next - 1, text), *cited]

    def reasoning(self, text: str) -> Sequence[Event]:
        if self._open is _THINKING and not self._signature:
            return (Delta(self._next - 1, text),)
        return [*self._begin(_THINKING), Delta(self._next - 1, text)]

    def signature(self, piece: str) -> Sequence[Event]:
        """Add a piece of the signature of the open thinking block, or of one without text."""
        opened = () if self._open is _THINKING else self._begin(_THINKING)
        self._signature.append(piece)
        return opened

    def add_redacted(self, content: str) -> Sequence[Event]:
        opened = self._begin(_THINKING)
        return [*opened, OpaqueAdded(self._next - 1, self._opaque(OpaqueForm.REDACTED, content)), *self.end_block()]

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
            return [self._place(citation) for citation in citations]
        self._pending_citations += citations
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
        return (OpaqueAdded(number, self._opaque(OpaqueForm.SIGNATURE, signature)), Closed(number))

    def end(self) -> Sequence[Event]:
        if self._pending_citations:
            self._ledger.record_dropped("/citations", "no text follows that they could belong to")
        return self.end_block()

    def _begin(self, what: TextBlock | ThinkingBlock) -> Sequence[Event]:
        closed = self.end_block()
        self._open = what
        return [*closed, Opened(self._take_number(), what)]

    def _place(self, citation: Citation) -> CitationAdded:
        return CitationAdded(self._next - 1, _place_citation(citation, self._base, self._length))

    def _opaque(self, form: OpaqueForm, payload: str) -> Opaque:
        return Opaque(self._issuer.name, form, payload, self._issuer.model)

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1
