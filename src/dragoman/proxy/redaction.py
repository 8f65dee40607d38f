"""Redact the secrets that an upstream was sent in its events and failures."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dragoman.translate.framing.known_secrets import MASK_BYTES, Secrets, make_finder, redact_known
from dragoman.translate.framing.redaction import SHORTEST
from dragoman.translate.hub.events import (
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    OpaqueAdded,
    Opened,
    RefusalBlock,
    Started,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.ports import RunStage, feed_each

MASK = MASK_BYTES.decode()
TOLERATED = 3  # characters of a secret that are not held back: too many words begin with them
SHORT_TEXT = 40  # characters; longer texts are searched for words at once


def redact_failure(failure: Failure, secrets: Secrets) -> Failure:
    """Redact the upstream's message, code and details."""
    encoded = msgspec.json.encode((failure.message, failure.code, failure.detail))
    hidden = redact_known(encoded, secrets)
    if hidden is encoded:
        return failure
    message, code, detail = msgspec.json.decode(hidden, type=tuple[str, str | None, dict[str, object] | None])
    return replace(failure, message=message, code=code, detail=detail)


_WORDLESS = frozenset((TextBlock, ThinkingBlock, RefusalBlock))


class EventRedactor(RunStage):
    """Hides secrets in the events of one reply, also where a secret is spread over several deltas of a block.

    What may be the beginning of a secret is held back until it is known; its first three characters are not.
    """

    __slots__ = ("_finder", "_has_no_rare", "_held", "_suspects", "_tails", "secrets")

    def __init__(self, secrets: Secrets) -> None:
        self.secrets = secrets
        self._finder = make_finder(secrets)
        self._suspects = self._finder.may_contain
        self._has_no_rare = self._finder.rare_characters.isdisjoint
        self._tails: dict[int, str] = {}  # block -> the last characters that were passed on
        self._held: dict[int, str] = {}  # block -> what is held back behind them

    def feed(self, event: Event) -> Sequence[Event]:
        return self.feed_run((event,), event.text) if type(event) is Delta else self._clean(event)

    def feed_run(self, run: Sequence[Delta], text: str) -> Sequence[Event]:
        """Redact consecutive deltas of one block; `text` is their joined text, which is searched once."""
        block = run[0].block
        if block not in self._held:
            tail = self._tails.get(block)
            if tail:
                text = tail + text
            if (len(text) <= SHORT_TEXT and self._has_no_rare(text)) or not self._suspects(text):
                self._tails[block] = text[-TOLERATED:]
                return run
        return feed_each(self._delta, run)

    def _clean(self, event: Event) -> Sequence[Event]:
        # Types are compared: a struct's class pattern that does not fit is slow.
        if type(event) is Closed:
            return (*self._release(event.block), event)
        if type(event) is UsageReported:
            return (event,)
        if type(event) is Failed:
            return (*self._release_all(), Failed(redact_failure(event.failure, self.secrets)))
        if type(event) is Ended:
            return (*self._release_all(), *self._clean_event(event))
        return self._clean_event(event)

    def _delta(self, event: Delta) -> Sequence[Event]:
        block = event.block
        tail = self._tails.get(block, "")
        text = tail + self._held.pop(block, "") + event.text
        out, at, after = "", len(tail), 0
        for start, end in self._finder.spans(text):
            out += text[at:start] + MASK
            at = after = end
        begun = self._finder.partial_length(text[max(after, len(text) - self._finder.reach) :])
        begins = max(len(text) - begun, at)
        keep = begins if begun > TOLERATED else _without_escape(text, begins)
        out += text[at:keep]
        self._tails[block] = text[max(after, keep - TOLERATED) : keep]
        if keep < len(text):
            self._held[block] = text[keep:]
        if out == event.text:
            return (event,)
        return (Delta(block, out),) if out else ()

    def _release(self, block: int) -> Sequence[Event]:
        """What is held back of a block that ends; not if so much of a secret that the rest could be guessed."""
        tail, held = self._tails.pop(block, ""), self._held.pop(block, "")
        if not held:
            return ()
        return (Delta(block, MASK if self._finder.partial_length(tail + held) >= SHORTEST else held),)

    def _release_all(self) -> list[Event]:
        return [event for block in list(self._held) for event in self._release(block)]

    def _clean_event(self, event: Event) -> Sequence[Event]:
        """Clean an event that comes in one piece; most have no words of the upstream's that could be a secret."""
        if type(event) is Opened:
            if type(event.what) in _WORDLESS:
                return (event,)
        elif type(event) is Started:
            if not (self._suspects(event.id) or self._suspects(event.model)):
                return (event,)
        elif type(event) is Ended and not (
            event.sequence or event.category or event.explanation or event.cut or event.others
        ):
            return (event,)
        encoded = msgspec.json.encode(event)
        hidden = redact_known(encoded, self.secrets)
        if hidden is encoded:
            return (event,)
        if isinstance(event, OpaqueAdded):  # changed, it would be of no use to its issuer
            return ()
        return (msgspec.json.decode(hidden, type=type(event)),)


def _without_escape(text: str, begins: int) -> int:
    """Return where the escape begins that the text may be cut in: a mask after half an escape would break JSON."""
    at = text.find("\\", begins)
    return len(text) if at < 0 else at
