"""Compact a context: one model call writes a summary, which an item then stands for."""

import msgspec
from msgspec import Raw, Struct

from dragoman.flow.call import Call
from dragoman.flow.gateway import Gateway
from dragoman.flow.reply_bounds import charge_bytes
from dragoman.flow.response_headers import id_headers
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.hub.request import Json
from dragoman.net.headers import JSON, Header
from dragoman.net.http_request import make_post
from dragoman.net.sink import CollectorSink, ReplySink
from dragoman.protocols.responses.encode_response import Snapshot, encode_made, encode_stream, keep_made
from dragoman.protocols.responses.state_items import (
    TRIGGER,
    Compaction,
    complete_item,
    make_summary_request,
    seal_compaction,
    type_of,
)
from dragoman.protocols.responses.wire import Item
from dragoman.responses.context import mint, owner_digest
from dragoman.responses.kept_call import KeptCall
from dragoman.responses.service import now

OWN_HEADERS = b"x-dragoman-"


class _Part(Struct):
    type: str = ""
    text: str = ""


class _OutputItem(Struct):
    type: str = ""
    content: list[_Part] | None = None


class _Reply(Struct):
    output: list[_OutputItem] = []
    usage: Raw = Raw(b"null")


class Summary(Struct, frozen=True):
    item: Item  # the compaction
    usage: Raw
    headers: list[Header]  # who wrote it, and what was lost on the way


class Compactor:
    """Compacts the context of one call."""

    def __init__(self, gateway: Gateway, call: Call, sink: ReplySink, state: KeptCall, raw: dict[str, Json]) -> None:
        self._gateway = gateway
        self._call = call
        self._sink = sink
        self._state = state
        self._raw = raw

    async def answer_trigger(self) -> None:
        """Answer a request that ends with a trigger: its response is one compaction."""
        call, state, stream = self._call, self._state, self._call.stream
        state.context = state.context.without_type(TRIGGER)
        summary = await self._summarise()
        call.record.stream = stream
        snapshot = Snapshot(state.id, call.model, state.created, self._raw, state.fields)
        output, usage, time = [summary.item], summary.usage, now()
        state.reply.take(keep_made(snapshot, output, usage, time))
        is_kept = await state.commit()
        headers = [*id_headers(call.client, call.id, []), *summary.headers]
        if stream:
            done = self._gateway.runtime.config.server.responses_done
            data = encode_stream(snapshot, output, usage, time, done=done)
            self._sink.begin(200, [(b"content-type", call.stream_type), *headers])
            self._sink.end(data if is_kept else state.mark_unstored(data))
        else:
            data = encode_made(snapshot, output, usage, time)
            self._sink.respond(200, [JSON, *headers], data if is_kept else state.mark_unstored(data))

    async def answer_compact(self) -> None:
        """Answer POST /responses/compact: the next input, which is the user's messages and one compaction."""
        call, state = self._call, self._state
        summary = await self._summarise()
        user_messages = [
            complete_item(item, mint)
            for item in state.context.whole
            if isinstance(item, dict) and type_of(item) == "message" and item.get("role") == "user"
        ]
        body = {
            "id": mint("rcmp_"),
            "object": "response.compaction",
            "created_at": state.created,
            "output": [*user_messages, summary.item],
            "usage": summary.usage,
        }
        head = [JSON, *id_headers(call.client, call.id, []), *summary.headers]
        self._sink.respond(200, head, msgspec.json.encode(body))

    async def _summarise(self) -> Summary:
        """Have the model of the request summarise its context. Raises RequestError if it does not."""
        call, context = self._call, self._state.context
        self._sink.allow_leaving()
        note_state(call, self._state)
        if context.keeper:
            message = f"Provider {context.keeper!r} keeps this response, so its context cannot be compacted here."
            raise BadRequest("/previous_response_id", f"{message} Send the whole input instead.")
        inner, collected = make_post(call.path, call.headers.fields, call.buffered.budget), CollectorSink()
        body = msgspec.json.encode(make_summary_request(self._raw, context.whole))
        try:
            charge_bytes(inner.buffered, len(body))
            await self._gateway.answer(Call(call.protocol, body, inner, call.caller, call.record), collected)
            reply = msgspec.json.decode(collected.body, type=_Reply)
        finally:
            inner.buffered.release_to(0)
        parts = [part for item in reply.output if item.type == "message" for part in item.content or []]
        text = "".join(part.text for part in parts if part.type == "output_text")
        if not text.strip():
            raise RequestError(Failure(Kind.UPSTREAM, "The model wrote no summary, so the context is not compacted."))
        token = seal_compaction(Compaction(text, call.model, owner_digest(self._state.owner)))
        item: Item = {"id": mint("cmp_"), "type": "compaction", "encrypted_content": token}
        headers = [field for field in collected.headers if field[0].startswith(OWN_HEADERS)]
        return Summary(item, reply.usage.copy(), headers)  # a copy: it refers to the whole reply


def note_state(call: Call, state: KeptCall) -> None:
    """Note in the capture of a call what it refers to, where the gateway does not see it."""
    if call.record.recording is not None:
        from dragoman.flow.capture.recording_runtime import record_state  # few requests are captured

        record_state(state, call.record.recording)
