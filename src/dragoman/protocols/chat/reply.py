"""What a reply looks like in Chat: a whole reply's body, and the pieces that its stream is made of as well."""

from collections.abc import Iterable, Iterator

import msgspec

from dragoman.hub.events import (
    Block,
    CallBlock,
    Ended,
    Event,
    Failed,
    HostedBlock,
    RefusalBlock,
    Stop,
    TextBlock,
    ThinkingBlock,
)
from dragoman.hub.failure import RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Form, Opaque, encode_envelope
from dragoman.hub.ports import ReplyContext
from dragoman.hub.reply import Reply, collect
from dragoman.hub.request import Citation
from dragoman.hub.usage import Usage
from dragoman.protocols.chat.wire import FINISHES

# Where a kind of block stands in a Chat message; whatever comes after a later one has lost its place.
_ORDER: dict[type[Block], int] = {ThinkingBlock: 0, TextBlock: 1, RefusalBlock: 1, CallBlock: 2}


class Losses:
    """Tells the ledger which blocks a Chat message cannot show as they were."""

    __slots__ = ("_last", "_ledger", "_text_seen")

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last = 0
        self._text_seen = False

    def block(self, number: int, what: Block) -> None:
        at = f"/content/{number}"
        if isinstance(what, HostedBlock):
            self._ledger.dropped(at, f"Chat cannot tell what {what.kind} did")
            return
        if isinstance(what, CallBlock) and what.namespace:
            self._ledger.dropped(f"{at}/namespace", "Chat's tools have no namespaces")
        place = _ORDER[type(what)]
        if place < self._last:
            self._ledger.approximated(at, "Chat does not tell the order of text, thoughts and calls")
        elif isinstance(what, TextBlock) and self._text_seen:
            self._ledger.approximated(at, "Chat has one text per reply: this is joined to what stood before")
        self._last = max(self._last, place)
        self._text_seen |= isinstance(what, TextBlock)

    def citation(self, number: int, citation: Citation) -> None:
        at = f"/content/{number}/citations"
        if not citation.url:
            self._ledger.dropped(at, "Chat cites nothing but addresses")
        elif citation.start is None or citation.end is None or citation.quoted:
            self._ledger.approximated(at, "Chat cites an address for a range of characters")

    def end(self, end: Ended, explained: bool) -> None:
        if end.category:
            self._ledger.dropped("/stop_details/category", "Chat has no categories of refusals")
        if end.explanation and not explained:
            self._ledger.dropped("/stop_details/explanation", "Chat explains no refusal beside a text")
        if end.sequence is not None:
            self._ledger.dropped("/stop_sequence", "Chat does not tell which stop sequence was hit")
        if end.stop is Stop.PAUSE:
            self._ledger.approximated("/stop_reason", "Chat cannot pause: this looks like a natural end")
        elif end.stop is Stop.CONTEXT_FULL:
            self._ledger.approximated("/stop_reason", "Chat does not tell a full context from the cap on tokens")


def whole(events: Iterable[Event], asked: ReplyContext, ledger: Ledger) -> bytes:
    """The whole reply; a failure is raised, for it has a status and a body of its own."""
    reply = collect(events)
    if isinstance(reply.end, Failed):
        raise RequestError(reply.end.failure)
    losses = Losses(ledger)
    for number, piece in enumerate(reply.pieces):
        losses.block(number, piece.what)
        for citation in piece.citations:
            losses.citation(number, citation)
    message = _message(reply, reply.end)
    losses.end(reply.end, message["refusal"] is not None and message["refusal"] == reply.end.explanation)
    calls = "tool_calls" in message
    body: dict[str, object] = {
        "id": reply_id(reply.id, asked),
        "object": "chat.completion",
        "created": asked.created,
        "model": asked.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": _logprobs(reply),
                "finish_reason": finish_reason(reply.end.stop, calls),
            }
        ],
    }
    if reply.usage is not None:
        body["usage"] = tokens(reply.usage)
        if reply.usage.service_tier is not None:
            body["service_tier"] = reply.usage.service_tier
    return msgspec.json.encode(body)


def _message(reply: Reply, end: Ended) -> dict[str, object]:
    text = _joined(reply, TextBlock)
    thoughts = _joined(reply, ThinkingBlock)
    refusal = _joined(reply, RefusalBlock) or (None if text else end.explanation) or None
    calls = [_call(piece.what, piece.text) for piece in reply.pieces if isinstance(piece.what, CallBlock)]
    sealed = [(piece.opaque, piece.text) for piece in reply.pieces if piece.opaque is not None]
    message: dict[str, object] = {
        "role": "assistant",
        "content": text if text or not (calls or refusal) else None,
        "refusal": refusal,
        "annotations": list(_annotations(reply)),
    }
    if thoughts:
        message["reasoning_content"] = thoughts
    if sealed:
        message["reasoning_details"] = [detail_entry(index, *what) for index, what in enumerate(sealed)]
    if calls:
        message["tool_calls"] = calls
    return message


def _joined(reply: Reply, kind: type[Block]) -> str:
    return "".join(piece.text for piece in reply.pieces if isinstance(piece.what, kind))


def _call(what: CallBlock, text: str) -> dict[str, object]:
    if what.custom:
        return {"id": what.id, "type": "custom", "custom": {"name": what.name, "input": text}}
    return {"id": what.id, "type": "function", "function": {"name": what.name, "arguments": text or "{}"}}


def detail_entry(index: int, opaque: Opaque, text: str) -> dict[str, object]:
    """The client's opaque slot. What a signature vouches for rides along: blocks are joined in reasoning_content."""
    token = encode_envelope(opaque, text if opaque.form is not Form.REDACTED else "")
    return {"type": "reasoning.encrypted", "data": token, "format": "unknown", "index": index}


def _annotations(reply: Reply) -> Iterator[dict[str, object]]:
    start = 0
    for piece in reply.pieces:
        if isinstance(piece.what, TextBlock):
            for citation in piece.citations:
                if citation.url:
                    yield annotation(citation, start, len(piece.text))
            start += len(piece.text)


def annotation(citation: Citation, start: int, length: int) -> dict[str, object]:
    cited = {
        "url": citation.url,
        "title": citation.title or citation.url,
        "start_index": start + (citation.start or 0),
        "end_index": start + (length if citation.end is None else citation.end),
    }
    return {"type": "url_citation", "url_citation": cited}


def _logprobs(reply: Reply) -> dict[str, object] | None:
    told: dict[str, object] = {"content": _token_list(reply, TextBlock), "refusal": _token_list(reply, RefusalBlock)}
    return told if any(tokens is not None for tokens in told.values()) else None


def _token_list(reply: Reply, kind: type[Block]) -> list[msgspec.Raw] | None:
    tokens: list[msgspec.Raw] = []
    for piece in reply.pieces:
        if isinstance(piece.what, kind) and piece.logprobs is not None:
            tokens += msgspec.json.decode(piece.logprobs, type=list[msgspec.Raw])
    return tokens or None


def reply_id(upstream: str, asked: ReplyContext) -> str:
    return upstream if upstream.startswith("chatcmpl") else asked.mint("chatcmpl-")


def finish_reason(stop: Stop, calls: bool) -> str:
    """The reason, made to agree with the calls: agents run tools by it."""
    if stop in (Stop.END, Stop.TOOL):
        stop = Stop.TOOL if calls else Stop.END
    return FINISHES[stop]


def tokens(usage: Usage) -> dict[str, object]:
    """Credits are no field of OpenAI's; clients of credit-counting gateways know them by this name."""
    told: dict[str, object] = {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
    return told if usage.credits is None else {**told, "credits_used": usage.credits}
