"""Encode the response object that lifecycle events repeat and that a whole reply consists of.

Some responses are made by the gateway itself, without a model's reply: compactions, requests that generate nothing, and
responses that are queued, cancelled or interrupted.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw, Struct

from dragoman.translate.framing.sse import encode_event
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.ports import KeptItem, ReplyContext, StoredReply
from dragoman.translate.hub.request import Json
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.responses.errors import build_stream_error
from dragoman.translate.protocols.responses.wire import Item

# Every field that Open Responses requires; the request's own values replace these.
_DEFAULTS: dict[str, Json] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
NO_STATE: dict[str, Json] = {"previous_response_id": None, "store": False}
_FUNCTION_DEFAULTS: dict[str, Json] = {"description": None, "parameters": None, "strict": True}
_NO_IMAGES = {
    "input_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
    "output_tokens": 0,
    "total_tokens": 0,
}
QUEUED_EVENTS = 2
_DONE = b"data: [DONE]\n\n"


class ResponseIdentity(Struct, frozen=True):
    id: str
    model: str  # as the client named it
    created: int  # seconds since the epoch


class ResponseProgress(Struct, frozen=True):
    """How far a response is, and what is known of it only at its end."""

    status: str
    usage: Usage | Raw | None = None
    error: dict[str, str | None] | None = None
    reason: str | None = None  # why it is incomplete
    completed: int | None = None  # seconds since the epoch


class Snapshot:
    """The response object of one reply; the fields that depend on the request are encoded once."""

    __slots__ = ("_created", "_state", "_tier", "id", "settings")

    def __init__(
        self, identity: ResponseIdentity, requested: dict[str, Json], state: dict[str, Json] = NO_STATE
    ) -> None:
        self.id = identity.id
        self._state = state
        self._created = identity.created
        tier = requested.get("service_tier")
        self._tier = tier if isinstance(tier, str) and tier != "auto" else "default"
        given = {key: value for key, value in requested.items() if key in _DEFAULTS and value is not None}
        request_fields = _DEFAULTS | given
        request_fields["tools"] = [_complete_tool(tool) for tool in _as_list(request_fields["tools"])]
        if isinstance(request_fields["text"], dict):
            request_fields["text"] = {"format": {"type": "text"}, **request_fields["text"]}
        self.settings = msgspec.json.encode({"model": identity.model, **request_fields})

    def response(self, progress: ResponseProgress, output: Iterable[Raw] = ()) -> Raw:
        """Return the response object. `store` is its last field, so that it can be corrected in encoded text."""
        head = self.head(progress, output)
        state = msgspec.json.encode(self._state)
        return Raw(b"%b,%b,%b" % (head[:-1], self.settings[1:-1], state[1:]))

    def stored_head(self, progress: ResponseProgress) -> bytes:
        """Return the fields of this response alone, without its output."""
        head = self.head(progress, ())
        return b"%b,%b" % (head[:-1], msgspec.json.encode(self._state)[1:])

    def head(self, progress: ResponseProgress, output: Iterable[Raw]) -> bytes:
        usage, error, reason = progress.usage, progress.error, progress.reason
        fields: dict[str, Json] = {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": progress.completed,
            "status": progress.status,
            "error": error and {"code": error["code"], "message": error["message"]},
            "incomplete_details": reason and {"reason": reason},
            "output": list(output),
            "usage": _encode_usage(usage) if isinstance(usage, Usage) else usage,
            "service_tier": (isinstance(usage, Usage) and usage.service_tier) or self._tier,
        }
        if isinstance(usage, Usage) and usage.web_searches:
            fields["tool_usage"] = {"image_gen": _NO_IMAGES, "web_search": {"num_requests": usage.web_searches}}
        return msgspec.json.encode(fields)


def make_snapshot(id_: str, requested: ReplyContext) -> Snapshot:
    state = NO_STATE if requested.state is None else requested.state.fields
    identity = ResponseIdentity(id_, requested.model, requested.created)
    return Snapshot(identity, requested.request.raw, state)


def render_stored(head: bytes, settings: bytes, output: Iterable[Raw], status: str) -> bytes:
    """Return the response object again from what was stored of it."""
    fields = msgspec.json.decode(head, type=dict[str, Raw])
    fields["status"] = Raw(msgspec.json.encode(status))
    fields["output"] = Raw(msgspec.json.encode(list(output)))
    return msgspec.json.encode(fields | msgspec.json.decode(settings or b"{}", type=dict[str, Raw]))


def _encode_usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _complete_tool(tool: Json) -> Json:
    return {**_FUNCTION_DEFAULTS, **tool} if isinstance(tool, dict) and tool.get("type") == "function" else tool


class MadeResponse(Struct, frozen=True):
    """A response that the gateway makes itself."""

    snapshot: Snapshot
    items: Sequence[Item]
    usage: Usage | Raw
    completed: int  # seconds since the epoch

    @property
    def progress(self) -> ResponseProgress:
        return ResponseProgress("completed", self.usage, completed=self.completed)


def make_stored_reply(made: MadeResponse) -> StoredReply:
    """Return what is stored of a response."""
    kept = tuple(KeptItem(str(item["id"]), msgspec.json.encode(item)) for item in made.items)
    return StoredReply("completed", made.snapshot.stored_head(made.progress), made.snapshot.settings, kept)


def encode_made(made: MadeResponse) -> bytes:
    """Return the response object."""
    return bytes(made.snapshot.response(made.progress, [Raw(msgspec.json.encode(item)) for item in made.items]))


def encode_stream(made: MadeResponse, *, done: bool) -> bytes:
    """Return the same as a stream of events; `done`: with [DONE] at its end."""
    begun = made.snapshot.response(ResponseProgress("in_progress"))
    events: list[tuple[str, Item]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(made.items):
        events.append(("response.output_item.added", {"output_index": index, "item": item}))
        events.append(("response.output_item.done", {"output_index": index, "item": item}))
    events.append(("response.completed", {"response": Raw(encode_made(made))}))
    frames = [_encode_event(type_, fields, number) for number, (type_, fields) in enumerate(events)]
    return b"".join([*frames, _DONE] if done else frames)


def encode_queued_stream(snapshot: Snapshot) -> bytes:
    """Return the QUEUED_EVENTS events that announce a response that is queued."""
    queued: Item = {"response": snapshot.response(ResponseProgress("queued"))}
    return _encode_event("response.created", queued, 0) + _encode_event("response.queued", queued, 1)


def encode_stream_end(response: bytes, number: int) -> bytes:
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
