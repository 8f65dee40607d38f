"""Events for tests: short ways to write a reply, to cut its deltas, and to join them again."""

from collections.abc import Iterable

from dragoman.translate.hub.events import CallBlock, Closed, Delta, Ended, Event, Opened, Started, Stop, TextBlock

START = Started("reply-1", "model-1")
END = Ended(Stop.END)


def text(block: int, *pieces: str) -> list[Event]:
    return [Opened(block, TextBlock()), *(Delta(block, piece) for piece in pieces), Closed(block)]


def call(block: int, name: str, *pieces: str) -> list[Event]:
    return [Opened(block, CallBlock(f"call-{block}", name)), *(Delta(block, piece) for piece in pieces), Closed(block)]


def split_delta(event: Event, at: int) -> tuple[Event, Event] | None:
    if not isinstance(event, Delta) or at >= len(event.text):
        return None
    return Delta(event.block, event.text[:at]), Delta(event.block, event.text[at:])


def join_deltas(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbouring deltas of one block as one."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, Delta) and isinstance(last, Delta) and last.block == event.block:
            out[-1] = Delta(event.block, last.text + event.text)
        else:
            out.append(event)
    return out


def text_of(events: Iterable[Event], block: int) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.block == block)
