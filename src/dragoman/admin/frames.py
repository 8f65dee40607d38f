"""Bytes as they travelled come in, cut anywhere; one short text for each of their frames goes out."""

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from dragoman.flow.capture.format import Chunk
from dragoman.framing.eventstream import CONTENT_TYPE, Message
from dragoman.framing.sse import Broken, SseFramer
from dragoman.framing.sse import Frame as SseFrame
from dragoman.protocols.kiro.decode import KiroFramer

EVENTS = "text/event-stream"

GAP = "(... not kept ...)"  # a piece without bytes stands for it

COMMON = frozenset(
    ("type", "object", "index", "created", "created_at", "logprobs", "role", "sequence_number", "obfuscation")
)
AT_LAST = frozenset(("id", "item_id", "model", "output_index", "content_index", "service_tier", "system_fingerprint"))
LABEL = re.compile(r'"([A-Za-z_]\w*)":')

Frame = tuple[float, str]  # when its last byte came, and what it says


def frames_of(chunks: Sequence[Chunk], content_type: str) -> list[Frame]:
    """Anything that is neither a stream of events nor of messages is one text per piece."""
    if content_type.startswith(CONTENT_TYPE):
        return list(_framed(chunks, KiroFramer))
    if content_type.startswith(EVENTS):
        return list(_framed(chunks, SseFramer))
    return [(chunk.at, chunk.data.decode(errors="replace") if chunk.data else GAP) for chunk in chunks]


def brief(text: str) -> str:
    """What tells frames apart, without what is the same in all of them."""
    name, space, data = text.partition(" ")
    if text.startswith("{"):
        name, space, data = "", "", text
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return text
    if not isinstance(value, dict):
        return text
    told = LABEL.sub(r"\1:", msgspec.json.encode(_pruned(_telling(value))).decode())
    return f"{name.removesuffix('Event').removeprefix('response.')}{space}{told[1:-1]}"


def _telling(value: dict[str, object]) -> dict[str, object]:
    """What is new in this frame first: a Chat chunk's choice, and names that are the same in all frames at last."""
    choices = value.get("choices")
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        value = {**choices[0], **{name: inner for name, inner in value.items() if name != "choices"}}
    return dict(sorted(value.items(), key=lambda item: item[0] in AT_LAST))


def _pruned(value: object) -> object:
    if isinstance(value, dict):
        kept = {name: _pruned(inner) for name, inner in value.items() if name not in COMMON and inner is not None}
        return {name: inner for name, inner in kept.items() if inner not in ({}, [])}
    return [_pruned(inner) for inner in value] if isinstance(value, list) else value


def _framed(chunks: Sequence[Chunk], begin: Callable[[], KiroFramer | SseFramer]) -> Iterable[Frame]:
    framer, at = begin(), 0.0
    for chunk in chunks:
        if not chunk.data:
            framer = begin()
            yield at, GAP
            continue
        at = chunk.at
        for frame in framer.feed(chunk.data):
            yield at, _told(frame)
    for frame in framer.finish():
        yield at, _told(frame)


def _told(frame: object) -> str:
    match frame:
        case SseFrame(event=event, data=data):
            return f"{event} {data.decode(errors='replace')}".strip()
        case Message(headers=headers, payload=payload):
            name = headers.get(":event-type") or headers.get(":exception-type") or headers.get(":message-type") or ""
            return f"{name!s} {payload.decode(errors='replace')}".strip()
        case Broken(why=why):
            return f"(broken: {why})"
        case _:
            return str(frame)
