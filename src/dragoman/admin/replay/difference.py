"""Two captures of one request come in, then and now; what is not the same goes out, part by part."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

import msgspec
from msgspec import Struct

from dragoman.flow.capture.format import Capture, UpstreamRequest
from dragoman.hub.request import escape_key
from dragoman.hub.usage import Source
from dragoman.protocols import PROTOCOLS

# Ids that are drawn anew each time: the same ones in the same places are the same.
DRAWN = re.compile(
    rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<![0-9A-Za-z])[0-9a-f]{24,64}(?![0-9A-Za-z])"
)
COMPLETED = re.compile(rb'(?<="completed_at":)\d+')  # a matter of the clock
# What an estimate is told in: token counts of every protocol, and the length of the body that holds them.
ESTIMATES = re.compile(
    rb'(?<=")((?:prompt|completion|total|input|output|reasoning|thinking|cached|cache_write|cache_creation_input'
    rb'|cache_read_input)_tokens"\s*:\s*)\d+'
)
LENGTH = "content-length"
COUNT_IS_ESTIMATE = "x-dragoman-estimate"
LONG = 1000  # lines: beyond, those that come again and again are no landmarks
FRAME_END = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)|(?<=\r\r)")


class Change(Struct, frozen=True):
    """What was there is gone, what was not there has come; either may be nothing."""

    place: str
    was: str | None
    now: str | None


class Part(Struct, frozen=True):
    """One aspect of an exchange, compared."""

    name: str
    size: str
    changes: tuple[Change, ...]


def compared(then: Capture, now: Capture) -> list[Part]:
    return [
        *_questions(then, now),
        Part("hub events", f"{len(now.events)} events", tuple(_lines(_events(then), _events(now), "event"))),
        Part("ledger", f"{len(now.losses)} losses", tuple(_lines(_losses(then), _losses(now), "loss"))),
        _head(then, now),
        _body(then, now),
        Part("outcome", now.outcome, tuple(_lines([_outcome(then)], [_outcome(now)], ""))),
    ]


def _questions(then: Capture, now: Capture) -> Iterable[Part]:
    for place in range(max(len(then.upstream_requests), len(now.upstream_requests))):
        old = then.upstream_requests[place] if place < len(then.upstream_requests) else None
        new = now.upstream_requests[place] if place < len(now.upstream_requests) else None
        what = old or new
        assert what is not None
        size = f"{len((new or what).body)} bytes"
        yield Part(f"request {place + 1} to {what.route}", size, tuple(_question(old, new)))


def _question(old: UpstreamRequest | None, new: UpstreamRequest | None) -> list[Change]:
    if old is None or new is None:
        return [Change("", _line(old), _line(new))]
    changes = list(_lines([_line(old) or ""], [_line(new) or ""], ""))
    changes += _lines(_fields(old.headers), _fields(new.headers), "header")
    return changes + list(_texts(old.body, new.body))


def _head(then: Capture, now: Capture) -> Part:
    ignored = (LENGTH,) if _differs_by_estimates(then) else ()
    old = [] if then.response is None else [f"status {then.response.status}", *_fields(then.response.headers, ignored)]
    new = [] if now.response is None else [f"status {now.response.status}", *_fields(now.response.headers, ignored)]
    return Part("head sent to the client", new[0] if new else "none", tuple(_lines(old, new, "")))


def _body(then: Capture, now: Capture) -> Part:
    old, new = _sent(then), _sent(now)
    size = f"{len(new)} bytes"
    if _differs_by_estimates(then):
        old, new = ESTIMATES.sub(rb"\g<1>0", old), ESTIMATES.sub(rb"\g<1>0", new)
        size += ", estimated tokens apart"
    if _is_stream(then) or _is_stream(now):
        changes = list(_lines(_frames(old), _frames(new), "frame"))
    else:
        changes = list(_texts(old, new))
    return Part("bytes sent to the client", size, tuple(changes))


def _differs_by_estimates(capture: Capture) -> bool:
    """Whether the client was told token counts that were estimated from text which is masked now."""
    if not capture.masked:
        return False
    if capture.response is not None and any(name == COUNT_IS_ESTIMATE for name, _ in capture.response.headers):
        return True
    if capture.passthrough:
        return False
    several = len({event.request for event in capture.events}) > 1  # whose usage is added up
    return several or not any(_reports_usage(timed.event) for timed in capture.events)


def _reports_usage(event: str) -> bool:
    told = msgspec.json.decode(event)
    usage = told.get("usage") if told["type"] == "used" else None
    return usage is not None and usage["source"] == Source.REPORTED.value


def _sent(capture: Capture) -> bytes:
    """Without what only keeps a client waiting: when that is sent is a matter of the clock."""
    if capture.response is None:
        return b""
    protocol = PROTOCOLS.get(capture.client_protocol)
    keep_alive = protocol.client.keep_alive if protocol is not None and protocol.client is not None else b""
    return b"".join([chunk.data for chunk in capture.response.chunks if chunk.data != keep_alive])


def _is_stream(capture: Capture) -> bool:
    fields = dict(capture.response.headers) if capture.response is not None else {}
    return fields.get("content-type", "").startswith("text/event-stream")


def _events(capture: Capture) -> list[str]:
    return [_numbered(moment.event.encode()).decode() for moment in capture.events]


def _losses(capture: Capture) -> list[str]:
    return [f"{loss.how.value} {loss.path}: {loss.why}" for loss in capture.losses]


def _outcome(capture: Capture) -> str:
    words = [
        capture.outcome,
        *([capture.error_code] if capture.error_code else []),
        *(f"cut call {name}" for name in capture.cut_calls),
    ]
    return ", ".join([*words, *(f"guard: {trip}" for trip in capture.guard_trips)])


def _line(question: UpstreamRequest | None) -> str | None:
    return None if question is None else _numbered(f"{question.method} {question.url}".encode()).decode()


def _fields(fields: Sequence[tuple[str, str]], ignored: Sequence[str] = ()) -> list[str]:
    kept = [(name, value) for name, value in sorted(fields) if name not in ignored]
    return [_numbered(f"{name}: {value}".encode()).decode() for name, value in kept]


def _frames(data: bytes) -> list[str]:
    return [frame.decode(errors="replace") for frame in FRAME_END.split(_numbered(data)) if frame]


def _texts(old: bytes, new: bytes) -> Iterable[Change]:
    """Two documents, told apart by their fields where they are JSON."""
    old, new = _numbered(old), _numbered(new)
    if old == new:
        return []
    try:
        changes = list(_values(msgspec.json.decode(old), msgspec.json.decode(new), ""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        changes = []
    return changes or [Change("", old.decode(errors="replace"), new.decode(errors="replace"))]


def _values(old: object, new: object, at: str) -> Iterable[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            pointer = f"{at}/{escape_key(str(name))}"
            if name not in old or name not in new:
                yield Change(pointer, _shown(old, name), _shown(new, name))
            else:
                yield from _values(old[name], new[name], pointer)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _values(before, after, f"{at}/{place}")
    elif old != new:
        yield Change(at, _json(old), _json(new))


def _shown(holder: dict[str, object], name: str) -> str | None:
    return _json(holder[name]) if name in holder else None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _lines(old: Sequence[str], new: Sequence[str], word: str) -> Iterable[Change]:
    """What is alike at both ends is left out first, for a search among very many lines takes very long."""
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    before, after = old[head : len(old) - tail], new[head : len(new) - tail]
    matcher = SequenceMatcher(None, before, after, autojunk=max(len(before), len(after)) > LONG)
    for tag, start, end, begin, stop in matcher.get_opcodes():
        if tag == "equal":
            continue
        for step in range(max(end - start, stop - begin)):
            was = before[start + step] if start + step < end else None
            now = after[begin + step] if begin + step < stop else None
            place = head + (begin + step if now is not None else start + step) + 1
            if was != now:
                yield Change(f"{word} {place}".strip() if word else "", was, now)


def _alike(old: Sequence[str], new: Sequence[str]) -> int:
    """How many lines are the same before the first that is not."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((place for place, (was, now) in pairs if was != now), min(len(old), len(new)))


def _numbered(data: bytes) -> bytes:
    """Every drawn id replaced by the place at which it first appears, and every time of completion by nought."""
    seen: dict[bytes, bytes] = {}
    drawn = DRAWN.sub(lambda found: seen.setdefault(found[0], b"id-%d" % (len(seen) + 1)), data)
    return COMPLETED.sub(b"0", drawn)
