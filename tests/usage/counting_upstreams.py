"""Upstreams of every protocol, whose replies and counts are computed from the number in the request."""

import re
from collections import Counter
from random import Random

import msgspec
from msgspec import Struct

from fakes.eventstream import event
from fakes.kiro import FakeKiro, make_framed, refusal, words
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest

NUMBER = re.compile(rb"n=(\d+)=")
JSON = "application/json"
TEXT = "Forty-two, as ever."
MODELS = {"chat": "gpt-5", "responses": "gpt-5-mini", "messages": "claude-sonnet-4-5", "kiro": "claude-sonnet-4.5"}

REFUSED, LIMITED, STUMBLES, CUT = 3, 7, 11, 13  # remainders of the number divided by 20


class Counts(Struct, frozen=True):
    """The usage that a reply reports; `fresh` is the input that was not cached."""

    fresh: int
    cached: int
    written: int
    output: int
    reasoning: int
    credits: float


def counts_of(number: int) -> Counts:
    random = Random(number)
    output = random.randrange(1, 5000)
    return Counts(
        fresh=random.randrange(1, 200_000),
        cached=random.choice((0, random.randrange(100_000))),
        written=random.choice((0, random.randrange(50_000))),
        output=output,
        reasoning=random.choice((0, random.randrange(output))),
        credits=random.randrange(1, 10**6) / 10**4,
    )


def number_of(body: bytes) -> int:
    found = NUMBER.search(body)
    assert found is not None, body
    return int(found[1])


class CountingUpstream(FakeUpstream):
    """Chat, Responses and Messages at one address."""

    def __init__(self) -> None:
        super().__init__()
        self.choose = self._choose
        self._seen: Counter[int] = Counter()

    def _choose(self, sent_request: ReceivedRequest) -> Answer:
        self.requests.clear()  # saves memory in a test of ten thousand requests
        number = number_of(sent_request.body)
        self._seen[number] += 1
        protocol = sent_request.path.rpartition("/")[2].replace("completions", "chat")
        error = _error(number, self._seen[number])
        if error is not None:
            return error
        request = msgspec.json.decode(sent_request.body)
        counts = counts_of(number)
        if not request.get("stream"):
            return Answer(msgspec.json.encode(_WHOLE[protocol](counts)), content_type=JSON, chunked=False)
        body = _STREAMED[protocol](counts, request)
        if number % 20 == CUT:
            body = body[: body.rindex(b"\n\n", 0, body.index(b"as ever")) + 2]
        return Answer(body)


def _error(number: int, times: int) -> Answer | None:
    wrong = number % 20
    if wrong == REFUSED:
        body = {"type": "error", "error": {"type": "invalid_request_error", "message": "No."}}
        return Answer(msgspec.json.encode(body), 400, JSON, chunked=False)
    if wrong == LIMITED or (wrong == STUMBLES and times == 1):
        body = {"type": "error", "error": {"type": "rate_limit_error", "message": "Slowly."}}
        return Answer(msgspec.json.encode(body), 429, JSON, (("retry-after", "0"),), chunked=False)
    return None


class CountingKiro(FakeKiro):
    def _chat(self, sent_request: ReceivedRequest) -> Answer:
        self.requests.clear()
        number = number_of(sent_request.body)
        if number % 20 == REFUSED:
            return refusal(400, "Improperly formed request.")
        counts = counts_of(number)
        usage = {
            "uncachedInputTokens": counts.fresh,
            "cacheReadInputTokens": counts.cached,
            "cacheWriteInputTokens": counts.written,
            "outputTokens": counts.output,
        }
        return make_framed(
            words(TEXT),
            event("metadataEvent", {"stopReason": "END_TURN", "tokenUsage": usage}),
            event("meteringEvent", {"unit": "credit", "unitPlural": "credits", "usage": counts.credits}),
        )


def _chat_usage(counts: Counts) -> dict[str, object]:
    sent_request = counts.fresh + counts.cached + counts.written
    return {
        "prompt_tokens": sent_request,
        "completion_tokens": counts.output,
        "total_tokens": sent_request + counts.output,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
    }


def _chat(counts: Counts) -> dict[str, object]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": TEXT}}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": MODELS["chat"]}
    return {**head, "choices": [choice], "usage": _chat_usage(counts)}


def _chat_stream(counts: Counts, request: dict[str, object]) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": MODELS["chat"]}
    deltas = ({"role": "assistant", "content": "Forty-two, "}, {"content": "as ever."})
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if request.get("stream_options") == {"include_usage": True}:
        chunks.append({**head, "choices": [], "usage": _chat_usage(counts)})
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def _response(counts: Counts, status: str = "completed") -> dict[str, object]:
    sent_request = counts.fresh + counts.cached + counts.written
    part = {"type": "output_text", "text": TEXT, "annotations": []}
    message = {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [part]}
    usage = {
        "input_tokens": sent_request,
        "input_tokens_details": {"cached_tokens": counts.cached},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": sent_request + counts.output,
    }
    done = status == "completed"
    head = {"id": "r", "object": "response", "created_at": 1, "status": status, "model": MODELS["responses"]}
    return {**head, "output": [message] if done else [], "usage": usage if done else None, "error": None}


def _response_stream(counts: Counts, request: dict[str, object]) -> bytes:
    at: dict[str, object] = {"item_id": "m", "output_index": 0, "content_index": 0}
    item: dict[str, object] = {"type": "message", "id": "m", "role": "assistant", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    done = {**item, "status": "completed", "content": [{**part, "text": TEXT}]}
    events: list[dict[str, object]] = [
        {"type": "response.created", "response": _response(counts, "in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
        {"type": "response.content_part.added", **at, "part": part},
        {"type": "response.output_text.delta", **at, "delta": "Forty-two, "},
        {"type": "response.output_text.delta", **at, "delta": "as ever."},
        {"type": "response.output_text.done", **at, "text": TEXT},
        {"type": "response.content_part.done", **at, "part": {**part, "text": TEXT}},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": _response(counts)},
    ]
    return _events([{**one, "sequence_number": number} for number, one in enumerate(events)])


def _message_usage(counts: Counts, output: int) -> dict[str, object]:
    return {
        "input_tokens": counts.fresh,
        "cache_read_input_tokens": counts.cached,
        "cache_creation_input_tokens": counts.written,
        "output_tokens": output,
    }


def _message(counts: Counts) -> dict[str, object]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODELS["messages"]}
    end = {"stop_reason": "end_turn", "stop_sequence": None, "usage": _message_usage(counts, counts.output)}
    return {**head, "content": [{"type": "text", "text": TEXT}], **end}


def _message_stream(counts: Counts, request: dict[str, object]) -> bytes:
    start = {**_message(counts), "content": [], "stop_reason": None, "usage": _message_usage(counts, 1)}
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}}
    return _events(
        [
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
                for text in ("Forty-two, ", "as ever.")
            ),
            {"type": "content_block_stop", "index": 0},
            {**delta, "usage": {"output_tokens": counts.output}},
            {"type": "message_stop"},
        ]
    )


def _events(events: list[dict[str, object]]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (str(one["type"]).encode(), msgspec.json.encode(one)) for one in events
    )


_WHOLE = {"chat": _chat, "responses": _response, "messages": _message}
_STREAMED = {"chat": _chat_stream, "responses": _response_stream, "messages": _message_stream}
