"""Responses that the gateway makes itself, without a model's reply: compactions, and requests that generate nothing."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from dragoman.framing.sse import encode_event
from dragoman.hub.ports import KeptItem, KeptReply
from dragoman.protocols.responses.encode_snapshot import Snapshot
from dragoman.protocols.responses.wire import Item

_DONE = b"data: [DONE]\n\n"


def keep_made(snapshot: Snapshot, items: Sequence[Item], usage: Raw | None, completed: int) -> KeptReply:
    """Return what is stored of such a response."""
    kept = tuple(KeptItem(str(item["id"]), msgspec.json.encode(item)) for item in items)
    head = snapshot.stored_head("completed", usage, completed=completed)
    return KeptReply("completed", head, snapshot.settings, kept)


def encode_made(snapshot: Snapshot, items: Sequence[Item], usage: Raw | None, completed: int) -> bytes:
    """Return the response object."""
    output = [Raw(msgspec.json.encode(item)) for item in items]
    return bytes(snapshot.response("completed", output, usage, completed=completed))


def stream_made(snapshot: Snapshot, items: Sequence[Item], usage: Raw | None, completed: int, *, done: bool) -> bytes:
    """Return the same as a stream of events; `done`: with [DONE] at its end."""
    begun = snapshot.response("in_progress")
    events: list[tuple[str, Item]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(items):
        events.append(("response.output_item.added", {"output_index": index, "item": item}))
        events.append(("response.output_item.done", {"output_index": index, "item": item}))
    events.append(("response.completed", {"response": Raw(encode_made(snapshot, items, usage, completed))}))
    frames = [
        encode_event(msgspec.json.encode({"type": type_, **fields, "sequence_number": number}), type_.encode())
        for number, (type_, fields) in enumerate(events)
    ]
    return b"".join([*frames, _DONE] if done else frames)
