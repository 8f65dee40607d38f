"""Encode hub events as a whole Chat reply."""

from collections.abc import Iterable, Iterator

import msgspec

from dragoman.translate.hub.answers import split_answers
from dragoman.translate.hub.events import (
    Block,
    CallBlock,
    Ended,
    Event,
    Failed,
    RefusalBlock,
    Reply,
    TextBlock,
    ThinkingBlock,
    collect,
)
from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque
from dragoman.translate.hub.ports import ReplyContext
from dragoman.translate.protocols.chat.encode import (
    LossRecorder,
    choose_finish_reason,
    choose_reply_id,
    encode_annotation,
    encode_call_signature,
    encode_opaque,
    encode_usage,
)

_NO_LOGPROBS = {"content": None, "refusal": None}


def encode_whole(events: Iterable[Event], context: ReplyContext, ledger: Ledger) -> bytes:
    """Return the whole reply; raises RequestError if it failed, because errors have a status of their own."""
    answers = [events] if (context.request.sampling.n or 1) == 1 else split_answers(events)
    replies = [collect(answer) for answer in answers]
    reply = replies[0]
    body: dict[str, object] = {
        "id": choose_reply_id(reply.id, context),
        "object": "chat.completion",
        "created": context.created,
        "model": context.model,
        "choices": [_encode_choice(answer, index, ledger) for index, answer in enumerate(replies)],
    }
    if reply.usage is not None:
        body["usage"] = encode_usage(reply.usage)
        if reply.usage.service_tier is not None:
            body["service_tier"] = reply.usage.service_tier
    return msgspec.json.encode(body)


def _encode_choice(reply: Reply, index: int, ledger: Ledger) -> dict[str, object]:
    if type(reply.end) is Failed:
        raise RequestError(reply.end.failure)
    losses = LossRecorder(ledger)
    for number, piece in enumerate(reply.pieces):
        losses.block(number, piece.what)
        for citation in piece.citations:
            losses.citation(number, citation)
    message = _encode_message(reply, reply.end)
    losses.end(reply.end, message["refusal"] is not None and message["refusal"] == reply.end.explanation)
    return {
        "index": index,
        "message": message,
        "logprobs": _encode_logprobs(reply),
        "finish_reason": choose_finish_reason(reply.end.stop, "tool_calls" in message),
    }


def _encode_message(reply: Reply, end: Ended) -> dict[str, object]:
    texts: dict[type[Block], list[str]] = {}
    calls: list[dict[str, object]] = []
    opaques: list[tuple[Opaque, str]] = []
    signature: Opaque | None = None
    for piece in reply.pieces:
        if type(piece.what) is CallBlock:
            calls.append(_encode_call(piece.what, piece.text) | encode_call_signature(signature))
            signature = None
        else:
            texts.setdefault(type(piece.what), []).append(piece.text)
            signature = piece.opaque or signature
        if piece.opaque is not None:
            opaques.append((piece.opaque, piece.text))
    text, thoughts = "".join(texts.get(TextBlock, ())), "".join(texts.get(ThinkingBlock, ()))
    refusal = "".join(texts.get(RefusalBlock, ())) or (None if text else end.explanation) or None
    message: dict[str, object] = {
        "role": "assistant",
        "content": text if text or not (calls or refusal) else None,
        "refusal": refusal,
        "annotations": list(_encode_annotations(reply)),
    }
    if thoughts:
        message["reasoning_content"] = thoughts
    if opaques:
        message["reasoning_details"] = [encode_opaque(index, *what) for index, what in enumerate(opaques)]
    if calls:
        message["tool_calls"] = calls
    return message


def _encode_call(what: CallBlock, text: str) -> dict[str, object]:
    if what.custom:
        return {"id": what.id, "type": "custom", "custom": {"name": what.name, "input": text}}
    return {"id": what.id, "type": "function", "function": {"name": what.name, "arguments": text or "{}"}}


def _encode_annotations(reply: Reply) -> Iterator[dict[str, object]]:
    start = 0
    for piece in reply.pieces:
        if isinstance(piece.what, TextBlock):
            for citation in piece.citations:
                if citation.url:
                    yield encode_annotation(citation, start, len(piece.text))
            start += len(piece.text)


def _encode_logprobs(reply: Reply) -> dict[str, object] | None:
    logprobs: dict[str, object] = {
        "content": _join_logprobs(reply, TextBlock),
        "refusal": _join_logprobs(reply, RefusalBlock),
    }
    return None if logprobs == _NO_LOGPROBS else logprobs


def _join_logprobs(reply: Reply, kind: type[Block]) -> list[msgspec.Raw] | None:
    tokens: list[msgspec.Raw] = []
    for piece in reply.pieces:
        if isinstance(piece.what, kind) and piece.logprobs is not None:
            tokens += msgspec.json.decode(piece.logprobs, type=list[msgspec.Raw])
    return tokens or None
