"""Responses that the gateway makes itself, without a model's reply.

These are compactions, requests that generate nothing, and responses that are queued, cancelled or interrupted.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from dragoman.framing.sse import encode_event
from dragoman.hub.failure import Failure
from dragoman.hub.ports import KeptItem, KeptReply
from dragoman.protocols.responses.encode_snapshot import Snapshot
from dragoman.protocols.responses.errors import build_stream_error
from dragoman.protocols.responses.wire import Item

QUEUED_EVENTS = 2
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
    frames = [_encode_event(type_, fields, number) for number, (type_, fields) in enumerate(events)]
    return b"".join([*frames, _DONE] if done else frames)


def stream_queued(snapshot: Snapshot) -> bytes:
    """Return the QUEUED_EVENTS events that announce a response that is queued."""
    queued: Item = {"response": snapshot.response("queued")}
    return _encode_event("response.created", queued, 0) + _encode_event("response.queued", queued, 1)


def stream_ended(response: bytes, number: int) -> bytes:
    """Return the last event of a response that failed or was cancelled, for which there is no event of its own."""
    return _encode_event("response.failed", {"response": Raw(response)}, number)


def end_head(head: bytes, status: str, failure: Failure | None = None) -> bytes:
    """Return what is stored of a response that has ended without a reply, from what was stored of it before."""
    fields = msgspec.json.decode(head, type=dict[str, Raw])
    fields["status"] = Raw(msgspec.json.encode(status))
    if failure is not None:
        error = build_stream_error(failure)
        fields["error"] = Raw(msgspec.json.encode({"code": error["code"], "message": error["message"]}))
    return msgspec.json.encode(fields)


def _encode_event(type_: str, fields: Item, number: int) -> bytes:
    return encode_event(msgspec.json.encode({"type": type_, **fields, "sequence_number": number}), type_.encode())
