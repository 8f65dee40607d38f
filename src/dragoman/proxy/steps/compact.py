"""Compact a context: one model call writes a summary, which an item then stands for."""

import msgspec
from msgspec import Raw, Struct

from dragoman.net.headers import JSON, Header
from dragoman.net.http_request import make_post
from dragoman.net.sink import CollectorSink, ReplySink
from dragoman.proxy.call import Call, Compacts
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.reply_bounds import charge_bytes
from dragoman.proxy.response_headers import format_rates, id_headers
from dragoman.proxy.steps.restore_state import record_state
from dragoman.state.context import mint, owner_digest
from dragoman.state.stored_call import StoredCall
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.protocols.responses.state_items import (
    TRIGGER,
    Compaction,
    complete_item,
    make_summary_request,
    seal_compaction,
    type_of,
)
from dragoman.translate.protocols.responses.wire import Item

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


class ContextSummary(Struct, frozen=True):
    item: Item  # the compaction
    usage: Raw
    headers: list[Header]  # who wrote it, what was lost on the way, and what is left of limits


async def compact(gateway: Gateway, call: Call, state: StoredCall | None, sink: ReplySink) -> None:
    """Compact the context of a call, and answer as it asks. Raises RequestError."""
    if state is None:
        message = "The capture does not have the context of this request: it was made by an older version."
        raise RequestError(Failure(Kind.BUG, message))
    if call.compacts is Compacts.BY_PATH:
        await _answer_path(gateway, call, state, sink)
    else:
        await _answer_trigger(gateway, call, state, sink)


async def _answer_trigger(gateway: Gateway, call: Call, state: StoredCall, sink: ReplySink) -> None:
    """Answer a request that ends with a trigger: its response is one compaction."""
    state.context = state.context.without_type(TRIGGER)
    summary = await _summarise(gateway, call, state)
    call.record.stream = call.stream
    if call.stream:
        done = gateway.runtime.config.server.responses_done
        data = state.make_events((summary.item,), summary.usage, done=done)
    else:
        data = state.make_body((summary.item,), summary.usage)
    if not await state.commit():
        data = state.mark_unstored(data)
    headers = [*id_headers(call.client, call.id, []), *summary.headers]
    if call.stream:
        sink.begin(200, [(b"content-type", call.stream_type), *headers])
        sink.end(data)
    else:
        sink.respond(200, [JSON, *headers], data)


async def _answer_path(gateway: Gateway, call: Call, state: StoredCall, sink: ReplySink) -> None:
    """Answer POST /responses/compact: the next input, which is the user's messages and one compaction."""
    summary = await _summarise(gateway, call, state)
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
    sink.respond(200, head, msgspec.json.encode(body))


async def _summarise(gateway: Gateway, call: Call, state: StoredCall) -> ContextSummary:
    """Have the model of the request summarise its context. Raises RequestError if it does not."""
    context = state.context
    record_state(call, state)
    if context.keeper:
        message = f"Provider {context.keeper!r} keeps this response, so its context cannot be compacted here."
        raise BadRequest("/previous_response_id", f"{message} Send the whole input instead.")
    request, collected = make_post(call.path, call.headers.fields, call.buffered.budget), CollectorSink()
    body = msgspec.json.encode(make_summary_request(state.raw, context.whole))
    inner = Call(call.protocol, request, call.caller, call.record)
    inner.runtime, inner.routes, inner.policy, inner.lease = call.runtime, call.routes, call.policy, call.lease
    try:
        charge_bytes(request.buffered, len(body))
        inner.take_body(body)
        await gateway.answer(inner, collected)
        reply = msgspec.json.decode(collected.body, type=_Reply)
    finally:
        request.buffered.release_to(0)
    parts = [part for item in reply.output if item.type == "message" for part in item.content or []]
    text = "".join(part.text for part in parts if part.type == "output_text")
    if not text.strip():
        raise RequestError(Failure(Kind.UPSTREAM, "The model wrote no summary, so the context is not compacted."))
    token = seal_compaction(Compaction(text, call.model, owner_digest(state.owner)))
    item: Item = {"id": mint("cmp_"), "type": "compaction", "encrypted_content": token}
    rates = [] if call.lease is None else format_rates(call.client, call.lease.rates, [])
    headers = [*(field for field in collected.headers if field[0].startswith(OWN_HEADERS)), *rates]
    return ContextSummary(item, reply.usage.copy(), headers)  # a copy: it refers to the whole reply
