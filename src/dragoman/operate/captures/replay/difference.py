"""Compare two captures of one request, the recorded and the replayed one, and report what differs."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

import msgspec
from msgspec import Struct

from dragoman.proxy.capture.format import Capture, UpstreamRequest, event_json, parse_event
from dragoman.translate.hub.request import escape_key
from dragoman.translate.hub.usage import UsageSource
from dragoman.translate.protocols import PROTOCOLS

# Random ids: two captures agree if the same ids stand in the same places.
RANDOM_ID = re.compile(
    rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<![0-9A-Za-z])[0-9a-f]{24,64}(?![0-9A-Za-z])"
)
COMPLETED = re.compile(rb'(?<="completed_at":)\d+')  # depends on the clock
# Where an estimate appears: token counts of every protocol, and the length of the body that contains them.
ESTIMATES = re.compile(
    rb'(?<=")((?:prompt|completion|total|input|output|reasoning|thinking|cached|cache_write|cache_creation_input'
    rb'|cache_read_input)_tokens"\s*:\s*)\d+'
)
CONTENT_LENGTH = "content-length"
OWN_ID = "x-dragoman-request-id"
WHY = "x-dragoman-why"  # not compared: a newer version may word reasons otherwise
ESTIMATE_HEADER = "x-dragoman-estimate"
LONG = 1000  # lines: in longer texts, lines that repeat often are not used to align the two
FRAME_END = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)|(?<=\r\r)")


class Difference(Struct, frozen=True):
    """One difference; `was` or `now` is None where something was added or removed."""

    place: str
    was: str | None
    now: str | None


class ComparedPart(Struct, frozen=True):
    """One aspect of an exchange with its differences."""

    name: str
    size: str
    changes: tuple[Difference, ...]


def compare_captures(recorded: Capture, replayed: Capture) -> list[ComparedPart]:
    return [
        *_compare_requests(recorded, replayed),
        ComparedPart(
            "hub events",
            f"{len(replayed.events)} events",
            tuple(_compare_lines(_events(recorded), _events(replayed), "event")),
        ),
        ComparedPart(
            "ledger",
            f"{len(replayed.losses)} losses",
            tuple(_compare_lines(_losses(recorded), _losses(replayed), "loss")),
        ),
        _compare_head(recorded, replayed),
        _compare_body(recorded, replayed),
        ComparedPart(
            "outcome",
            replayed.outcome,
            tuple(_compare_lines([_describe_outcome(recorded)], [_describe_outcome(replayed)], "")),
        ),
    ]


def _compare_requests(recorded: Capture, replayed: Capture) -> Iterable[ComparedPart]:
    for index in range(max(len(recorded.upstream_requests), len(replayed.upstream_requests))):
        old = recorded.upstream_requests[index] if index < len(recorded.upstream_requests) else None
        new = replayed.upstream_requests[index] if index < len(replayed.upstream_requests) else None
        what = old or new
        assert what is not None
        size = f"{len((new or what).body)} bytes"
        yield ComparedPart(f"request {index + 1} to {what.route}", size, tuple(_compare_request(old, new)))


def _compare_request(old: UpstreamRequest | None, new: UpstreamRequest | None) -> list[Difference]:
    if old is None or new is None:
        return [Difference("", _request_line(old), _request_line(new))]
    changes = list(_compare_lines([_request_line(old) or ""], [_request_line(new) or ""], ""))
    changes += _compare_lines(_header_lines(old.headers), _header_lines(new.headers), "header")
    return changes + list(_compare_texts(old.body, new.body))


def _compare_head(recorded: Capture, replayed: Capture) -> ComparedPart:
    ignored = [WHY, *([CONTENT_LENGTH] if _differs_by_estimates(recorded) else [])]
    if recorded.response is not None and OWN_ID not in dict(recorded.response.headers):
        ignored.append(OWN_ID)  # of a version that did not send it
    old, new = _head_lines(recorded, ignored), _head_lines(replayed, ignored)
    return ComparedPart("head sent to the client", new[0] if new else "none", tuple(_compare_lines(old, new, "")))


def _head_lines(capture: Capture, ignored: Sequence[str]) -> list[str]:
    response = capture.response
    return [] if response is None else [f"status {response.status}", *_header_lines(response.headers, ignored)]


def _compare_body(recorded: Capture, replayed: Capture) -> ComparedPart:
    old, new = _response_body(recorded), _response_body(replayed)
    size = f"{len(new)} bytes"
    if _differs_by_estimates(recorded):
        old, new = ESTIMATES.sub(rb"\g<1>0", old), ESTIMATES.sub(rb"\g<1>0", new)
        size += ", without estimated tokens"
    if _is_stream(recorded) or _is_stream(replayed):
        changes = list(_compare_lines(_frames(old), _frames(new), "frame"))
    else:
        changes = list(_compare_texts(old, new))
    return ComparedPart("bytes sent to the client", size, tuple(changes))


def _differs_by_estimates(capture: Capture) -> bool:
    """Return whether the response has token counts that were estimated from text which is masked in the capture."""
    if not capture.masked:
        return False
    if capture.response is not None and any(name == ESTIMATE_HEADER for name, _ in capture.response.headers):
        return True
    if capture.passthrough:
        return False
    several = len({event.request for event in capture.events}) > 1  # their usage is added up
    return several or not any(_reports_usage(timed.event) for timed in capture.events)


def _reports_usage(event: str) -> bool:
    fields = msgspec.json.decode(event)
    usage = fields.get("usage") if fields["type"] == "used" else None
    return usage is not None and usage["source"] == UsageSource.REPORTED.value


def _response_body(capture: Capture) -> bytes:
    """Return the response body without keep-alives, whose number depends on the clock."""
    if capture.response is None:
        return b""
    written = [chunk.data for chunk in capture.response.chunks]
    protocol = PROTOCOLS.get(capture.client_protocol)
    if protocol is None or protocol.client is None:
        return b"".join(written)
    client = protocol.client
    return b"".join([data for data in written if data != client.keep_alive and not client.is_keep_alive(data)])


def _is_stream(capture: Capture) -> bool:
    fields = dict(capture.response.headers) if capture.response is not None else {}
    return fields.get("content-type", "").startswith("text/event-stream")


def _events(capture: Capture) -> list[str]:
    """Return the events in today's form: an older capture lacks fields that were added since."""
    return [_number_ids(_in_current_form(timed.event).encode()).decode() for timed in capture.events]


def _in_current_form(event: str) -> str:
    try:
        return event_json(parse_event(event))
    except msgspec.MsgspecError:
        return event


def _losses(capture: Capture) -> list[str]:
    """Return what was lost. Reasons are not compared: a newer version may word them otherwise."""
    return [f"{loss.how.value} {loss.path}" for loss in capture.losses]


def _describe_outcome(capture: Capture) -> str:
    words = [
        capture.outcome,
        *([capture.error_code] if capture.error_code else []),
        *(f"cut call {name}" for name in capture.cut_calls),
    ]
    return ", ".join([*words, *(f"guard: {trip}" for trip in capture.guard_trips)])


def _request_line(request: UpstreamRequest | None) -> str | None:
    return None if request is None else _number_ids(f"{request.method} {request.url}".encode()).decode()


def _header_lines(headers: Sequence[tuple[str, str]], ignored: Sequence[str] = ()) -> list[str]:
    kept = [(name, value) for name, value in sorted(headers) if name not in ignored]
    return [_number_ids(f"{name}: {value}".encode()).decode() for name, value in kept]


def _frames(data: bytes) -> list[str]:
    return [frame.decode(errors="replace") for frame in FRAME_END.split(_number_ids(data)) if frame]


def _compare_texts(old: bytes, new: bytes) -> Iterable[Difference]:
    """Compare two documents: field by field where they are JSON."""
    old, new = _number_ids(old), _number_ids(new)
    if old == new:
        return []
    try:
        changes = list(_compare_values(msgspec.json.decode(old), msgspec.json.decode(new), ""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        changes = []
    return changes or [Difference("", old.decode(errors="replace"), new.decode(errors="replace"))]


def _compare_values(old: object, new: object, at: str) -> Iterable[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            pointer = f"{at}/{escape_key(str(name))}"
            if name not in old or name not in new:
                yield Difference(pointer, _encode_field(old, name), _encode_field(new, name))
            else:
                yield from _compare_values(old[name], new[name], pointer)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _compare_values(before, after, f"{at}/{index}")
    elif old != new:
        yield Difference(at, _json(old), _json(new))


def _encode_field(holder: dict[str, object], name: str) -> str | None:
    return _json(holder[name]) if name in holder else None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _compare_lines(old: Sequence[str], new: Sequence[str], word: str) -> Iterable[Difference]:
    """Compare two lists of lines. What is equal at both ends is skipped first: matching many lines is slow."""
    head = _common_prefix(old, new)
    tail = _common_prefix(old[head:][::-1], new[head:][::-1])
    before, after = old[head : len(old) - tail], new[head : len(new) - tail]
    matcher = SequenceMatcher(None, before, after, autojunk=max(len(before), len(after)) > LONG)
    for tag, start, end, begin, stop in matcher.get_opcodes():
        if tag == "equal":
            continue
        for step in range(max(end - start, stop - begin)):
            was = before[start + step] if start + step < end else None
            now = after[begin + step] if begin + step < stop else None
            index = head + (begin + step if now is not None else start + step) + 1
            if was != now:
                yield Difference(f"{word} {index}".strip() if word else "", was, now)


def _common_prefix(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many lines are equal before the first difference."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((index for index, (was, now) in pairs if was != now), min(len(old), len(new)))


def _number_ids(data: bytes) -> bytes:
    """Replace each random id by the number of its first appearance, and each time of completion by 0."""
    seen: dict[bytes, bytes] = {}
    numbered = RANDOM_ID.sub(lambda match: seen.setdefault(match[0], b"id-%d" % (len(seen) + 1)), data)
    return COMPLETED.sub(b"0", numbered)
