"""Replies to encode, and the SDK that reads them."""

from collections.abc import Iterable
from pathlib import Path

import httpx2
import msgspec
import openai
from openai.types.chat import ChatCompletion, ParsedChatCompletion

from dragoman.translate.hub.events import (
    Block,
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    OpaqueAdded,
    Opened,
    RefusalBlock,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    UsageReported,
)
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.ports import ReplyContext
from dragoman.translate.hub.request import Citation, ReplyExtras, Request
from dragoman.translate.hub.usage import Usage
from dragoman.translate.protocols.chat.encode import Encoder
from laws import run
from wire_json import JsonObject

FIXTURES = Path(__file__).parents[3] / "fixtures" / "chat"
LP = msgspec.Raw(b'[{"token":"Hi","logprob":-0.1,"bytes":null,"top_logprobs":[]}]')
SIGNED = Opaque("anthropic", OpaqueForm.SIGNATURE, "c2lnbmF0dXJl", "claude")
REDACTED = Opaque("anthropic", OpaqueForm.REDACTED, "cmVkYWN0ZWQ=", "claude")
USAGE = Usage(input=20, output=7, cache_read=8, cache_write=4, reasoning=3)


def make_context(include_usage: bool = True) -> ReplyContext:
    request = Request(
        protocol="chat", model="gpt-x", turns=(), stream=True, extras=ReplyExtras(include_usage=include_usage)
    )
    return ReplyContext(request, "gpt-x", 1700000000, lambda prefix: prefix + "minted", lambda: 1700000001)


def encode(events: Iterable[Event], ledger: Ledger | None = None, include_usage: bool = True) -> list[bytes]:
    return run(Encoder(make_context(include_usage), Ledger() if ledger is None else ledger), events)


def chunks(frames: list[bytes]) -> list[JsonObject]:
    return [msgspec.json.decode(frame.removeprefix(b"data: ")) for frame in frames if b"[DONE]" not in frame]


def deltas(frames: list[bytes]) -> list[JsonObject]:
    return [choice["delta"] for chunk in chunks(frames) for choice in chunk["choices"]]


def block(number: int, what: Block, *inside: object) -> list[Event]:
    """A block with its deltas, seals and citations."""
    events: list[Event] = [Opened(number, what)]
    for item in inside:
        match item:
            case str():
                events.append(Delta(number, item))
            case Opaque():
                events.append(OpaqueAdded(number, item))
            case Citation():
                events.append(CitationAdded(number, item))
            case Delta():
                events.append(item)
    return [*events, Closed(number)]


def reply(*blocks: list[Event], end: Event | None = None, usage: Usage | None = USAGE) -> list[Event]:
    events: list[Event] = [Started("chatcmpl-up", "up")]
    for inside in blocks:
        events += inside
    if usage is not None:
        events.append(UsageReported(usage))
    return [*events, end or Ended(Stop.END)]


REPLIES: dict[str, list[Event]] = {
    "text": reply(block(0, TextBlock(), "Hello", ", 😀 \u2028 world")),
    "thinking": reply(block(0, ThinkingBlock(), "Hm", "m.", SIGNED), block(1, TextBlock(), "Yes.")),
    "redacted": reply(
        block(0, ThinkingBlock(), REDACTED), block(1, ThinkingBlock(), "b", SIGNED), block(2, TextBlock(), "Yes.")
    ),
    "tools": reply(
        block(0, TextBlock(), "I look."),
        [
            Opened(1, CallBlock("call_a", "read")),
            Opened(2, CallBlock("call_b", "list")),
            Delta(1, '{"a":'),
            Delta(2, '{"b"'),
            Delta(1, "1}"),
            Delta(2, ":2}"),
            Closed(1),
            Closed(2),
        ],
        end=Ended(Stop.TOOL),
    ),
    "empty_arguments": reply(block(0, CallBlock("call_a", "now")), end=Ended(Stop.TOOL)),
    "refusal": reply(block(0, RefusalBlock(), "I can", "not.")),
    "filtered": reply(block(0, TextBlock(), "It is"), end=Ended(Stop.FILTERED)),
    "length": reply(block(0, CallBlock("call_a", "write"), '{"x": "lo'), end=Ended(Stop.LENGTH)),
    "logprobs": reply(block(0, TextBlock(), Delta(0, "Hi", LP), Delta(0, "!", LP))),
    "nothing": reply(),
    "cited": reply(
        block(0, TextBlock(), "One. "),
        block(1, TextBlock(), "Two.", Citation(url="https://a.example/", title="A", start=0, end=3),
              Citation(url="https://b.example/")),
    ),
}  # fmt: skip


def sdk(answer: bytes, kind: str = "text/event-stream", status: int = 200) -> openai.OpenAI:
    """OpenAI's client, whose every request is answered with these bytes."""
    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(status, headers={"content-type": kind}, content=answer)
    )
    return openai.OpenAI(
        api_key="sk-fake-key",
        base_url="http://127.0.0.1/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=transport),
    )


def accumulate(frames: list[bytes]) -> ParsedChatCompletion[object]:
    with sdk(b"".join(frames)).chat.completions.stream(model="gpt-x", messages=[]) as stream:
        for _ in stream:
            pass
        # The final completion is refused by the SDK itself after `length` and `content_filter`.
        return stream.current_completion_snapshot


def read_completion(body: bytes) -> ChatCompletion:
    return sdk(body, "application/json").chat.completions.create(model="gpt-x", messages=[])


def summarise(completion: ChatCompletion | ParsedChatCompletion[None]) -> JsonObject:
    """What a client reads of a completion, however it came."""
    choice = completion.choices[0]
    message = choice.message
    calls = [call.function for call in message.tool_calls or [] if call.type == "function"]
    extra = message.model_extra or {}
    return {
        "id": completion.id,
        "model": completion.model,
        "finish": choice.finish_reason,
        "role": message.role,
        "text": message.content or "",
        "refusal": message.refusal,
        "thoughts": extra.get("reasoning_content"),
        "details": extra.get("reasoning_details"),
        "calls": [(call.name, call.arguments) for call in calls],
        "annotations": [note.to_dict() for note in message.annotations or []],
        "logprobs": len(choice.logprobs.content or []) if choice.logprobs else 0,
        "usage": completion.usage and completion.usage.to_dict(),
    }
