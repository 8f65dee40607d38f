"""Words, thoughts, calls and citations come in as Kiro tells them; hub events, one block after the other, go out."""

from collections.abc import Iterable, Sequence

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
)
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.ports import Issuer
from dragoman.hub.request import Citation
from dragoman.protocols.kiro.calls import Call
from dragoman.protocols.kiro.citations import within

_TEXT = TextBlock()
_THINKING = ThinkingBlock()


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
            self._ledger.dropped("/citations", "no text follows that they could be told with")
        return self.end_block()

    def _begin(self, what: TextBlock | ThinkingBlock) -> Sequence[Event]:
        closed = self.end_block()
        self._open = what
        return [*closed, Opened(self._take_number(), what)]

    def _cited(self, citation: Citation) -> CitationAdded:
        return CitationAdded(self._next - 1, within(citation, self._base, self._length))

    def _opaque(self, form: Form, payload: str) -> Opaque:
        return Opaque(self._issuer.name, form, payload, self._issuer.model)

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1
