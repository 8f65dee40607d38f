"""Hide the secrets that an upstream was sent in the events and failures that it is the source of."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dragoman.framing.known_secrets import HIDDEN, Secrets, finder_of, hide
from dragoman.framing.redact import SHORTEST
from dragoman.hub.events import Closed, Delta, Ended, Event, Failed, Sealed, Used
from dragoman.hub.failure import Failure

MASK = HIDDEN.decode()
# So many characters of a secret are not worth holding back: many a word begins with them.
TOLERATED = 3
NOTHING = ("", "")


def hushed(failure: Failure, secrets: Secrets) -> Failure:
    """The vendor's words, its code and its details."""
    said = msgspec.json.encode((failure.message, failure.code, failure.detail))
    hidden = hide(said, secrets)
    if hidden is said:
        return failure
    message, code, detail = msgspec.json.decode(hidden, type=tuple[str, str | None, dict[str, object] | None])
    return replace(failure, message=message, code=code, detail=detail)


class EventRedactor:
    """Hides secrets in the events of one reply, also where a secret is spread over several deltas of a block.

    What may be the beginning of a secret is held back until it is known; its first three characters are not.
    """

    __slots__ = ("_blocks", "_finder", "_secrets")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._finder = finder_of(secrets)
        # block -> how what may be a secret begins: what of it has gone out already, and what is held back
        self._blocks: dict[int, tuple[str, str]] = {}

    def feed(self, events: Sequence[Event]) -> Sequence[Event]:
        if len(events) == 1 and type(events[0]) is Delta:
            return self._delta(events[0])
        return [clean for event in events for clean in self._clean(event)]

    def _clean(self, event: Event) -> Sequence[Event]:
        match event:
            case Delta():
                return self._delta(event)
            case Closed(block=block):
                return (*self._released(block), event)
            case Used():
                return (event,)
            case Failed(failure=failure):
                return (*self._all_released(), Failed(hushed(failure, self._secrets)))
            case Ended():
                return (*self._all_released(), *self._described(event))
            case _:
                return self._described(event)

    def _delta(self, event: Delta) -> Sequence[Event]:
        sent, held = self._blocks.pop(event.block, NOTHING) if self._blocks else NOTHING
        text = sent + held + event.text
        if not held and not self._finder.holds_start(text):
            ending = self._finder.short_end(text)
            if ending:
                self._blocks[event.block] = (ending, "")
            return (event,)
        out, at, after = "", len(sent), 0
        for start, end in self._finder.spans(text):
            out += text[at:start] + MASK
            at = after = end
        begun = self._finder.begun(text[max(after, len(text) - self._finder.reach) :])
        begins = len(text) - begun
        keep = max(begins, at) if begun > TOLERATED else _without_escape(text, begins)
        out += text[at:keep]
        if begun:
            self._blocks[event.block] = (text[begins:keep], text[keep:])
        if out == event.text:
            return (event,)
        return (Delta(event.block, out),) if out else ()

    def _released(self, block: int) -> Sequence[Event]:
        """What is held back of a block that ends; not if so much of a secret that the rest could be guessed."""
        sent, held = self._blocks.pop(block, NOTHING)
        if not held:
            return ()
        return (Delta(block, MASK if len(sent) + len(held) >= SHORTEST else held),)

    def _all_released(self) -> list[Event]:
        return [event for block in list(self._blocks) for event in self._released(block)]

    def _described(self, event: Event) -> Sequence[Event]:
        """An event that is told whole."""
        said = msgspec.json.encode(event)
        hidden = hide(said, self._secrets)
        if hidden is said:
            return (event,)
        if isinstance(event, Sealed):  # changed, it would be of no use to its issuer
            return ()
        return (msgspec.json.decode(hidden, type=type(event)),)


def _without_escape(text: str, begins: int) -> int:
    """Return where the escape begins that the text may be cut in: a mask after half an escape would break JSON."""
    at = text.find("\\", begins)
    return len(text) if at < 0 else at


def redact_events(events: Sequence[Event], secrets: Secrets) -> Sequence[Event]:
    """The same for a reply that was read to its end."""
    return EventRedactor(secrets).feed(events) if secrets else events
