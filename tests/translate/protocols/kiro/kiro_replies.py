"""Short ways to write Kiro's replies as bytes, to read them, and to have the official SDKs judge what clients get."""

from collections.abc import Sequence
from itertools import count

import anthropic
import httpx2
import msgspec
import openai

from dragoman.translate.hub.events import CallBlock, Delta, Ended, Event, Failed, Opened, Reply, TruncatedCall, collect
from dragoman.translate.hub.failure import Failure
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer, ReplyContext, Stage
from dragoman.translate.hub.request import Request
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.protocols.kiro.decode import Decoder, KiroFramer
from dragoman.translate.protocols.kiro.wire import KiroOptions
from dragoman.translate.stages.estimate_usage import EstimateUsage
from dragoman.translate.stages.guard import Guard, SerialiseBlocks
from dragoman.translate.stages.text_calls import TextCalls
from dragoman.translate.stages.thinking_tags import Mode, ThinkingTags
from fakes.eventstream import event
from laws import run

CLIENTS = ("chat", "messages", "responses")
ISSUER = Issuer("kiro", "claude-sonnet-4.5", 200_000)
LENIENT = Issuer("kiro", "claude-sonnet-4.5", 200_000, KiroOptions(missing_tail_is_truncation=False))


def text_event(*texts: str) -> bytes:
    return b"".join(event("assistantResponseEvent", {"content": text}) for text in texts)


def make_reasoning(**fields: str) -> bytes:
    return event("reasoningContentEvent", fields)


def uses(id: str | None = "tooluse_a", name: str | None = None, **fields: object) -> bytes:
    named = {"toolUseId": id, "name": name, **fields}
    return event("toolUseEvent", {key: value for key, value in named.items() if value is not None})


def metadata(stop: str | None = "END_TURN", *counts: int) -> bytes:
    names = ("uncachedInputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "outputTokens")
    usage = {"tokenUsage": dict(zip(names, counts, strict=True))} if counts else {}
    return event("metadataEvent", {**usage, **({"stopReason": stop} if stop else {})})


def context(percentage: float) -> bytes:
    return event("contextUsageEvent", {"contextUsagePercentage": percentage})


def metering(credits: float) -> bytes:
    return event("meteringEvent", {"unit": "credit", "unitPlural": "credits", "usage": credits})


TAIL = metadata("END_TURN", 10, 2, 1, 5) + context(2.05) + metering(0.0148)


class Reader:
    """Framer and decoder as one machine: bytes in, events out."""

    def __init__(self, issuer: Issuer = ISSUER, ledger: Ledger | None = None) -> None:
        self._framer = KiroFramer()
        self._decoder = Decoder(issuer, Ledger() if ledger is None else ledger)

    def feed(self, chunk: bytes) -> list[Event]:
        return [event for message in self._framer.feed(chunk) for event in self._decoder.feed(message)]

    def finish(self) -> list[Event]:
        rest = [event for message in self._framer.finish() for event in self._decoder.feed(message)]
        return [*rest, *self._decoder.finish()]


def read(stream: bytes, issuer: Issuer = ISSUER, ledger: Ledger | None = None) -> list[Event]:
    return run(Reader(issuer, ledger), [stream])


def reply(stream: bytes, issuer: Issuer = ISSUER) -> Reply:
    return collect(read(stream, issuer))


def failure_of(events: Sequence[Event]) -> Failure:
    failed = events[-1]
    assert isinstance(failed, Failed)
    return failed.failure


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def calls_of(events: list[Event]) -> list[tuple[str, str, str]]:
    """Every call that a client could run: id, name, arguments."""
    opened = {event.block: event.what for event in events if isinstance(event, Opened)}
    return [
        (what.id, what.name, "".join(e.text for e in events if isinstance(e, Delta) and e.block == block))
        for block, what in opened.items()
        if isinstance(what, CallBlock)
    ]


def cut_of(events: list[Event]) -> tuple[TruncatedCall, ...]:
    assert isinstance(events[-1], Ended)
    return events[-1].cut


def stages(client: str, tools: tuple[str, ...], mode: Mode = Mode.AS_REASONING) -> list[Stage[Event, Event]]:
    made: list[Stage[Event, Event]] = [
        ThinkingTags(mode),
        TextCalls(dict.fromkeys(tools)),
        EstimateUsage(lambda text: len(text.split()), 9),
    ]
    facing = PROTOCOLS[client].client
    assert facing is not None
    if facing.serial_blocks:
        made.append(SerialiseBlocks())

    def trip(why: str) -> None:
        raise AssertionError(why)

    return [*made, Guard(trip)]


def make_context(client: str) -> ReplyContext:
    numbers = count(1)
    request = Request(protocol=client, model="asked-for", turns=(), stream=True)
    return ReplyContext(
        request, "asked-for", 1_794_700_000, lambda prefix: f"{prefix}{next(numbers):04}", lambda: 1_794_700_001
    )


class Translation:
    """Translate Kiro's bytes to a client's bytes, through every stage of a Kiro reply."""

    def __init__(self, client: str, tools: tuple[str, ...] = (), issuer: Issuer = ISSUER) -> None:
        facing = PROTOCOLS[client].client
        assert facing is not None
        ledger = Ledger()
        self._reader = Reader(issuer, ledger)
        self._stages = stages(client, tools)
        self._encoder = facing.encoder(make_context(client), ledger)
        self.decoded: list[Event] = []

    def feed(self, chunk: bytes) -> bytes:
        return self._push(self._reader.feed(chunk))

    def finish(self) -> bytes:
        out = self._push(self._reader.finish())
        for index, stage in enumerate(self._stages):
            out += self._push(list(stage.finish()), index + 1)
        return out + b"".join(self._encoder.finish())

    def _push(self, events: list[Event], first: int = 0) -> bytes:
        for stage in self._stages[first:]:
            events = [out for event in events for out in stage.feed(event)]
        self.decoded += events
        return b"".join(piece for event in events for piece in self._encoder.feed(event))


def translate(client: str, stream: bytes, tools: tuple[str, ...] = ()) -> bytes:
    line = Translation(client, tools)
    return line.feed(stream) + line.finish()


class SdkReply(msgspec.Struct):
    """What a client made of a reply."""

    text: str
    thinking: str
    calls: list[tuple[str, str, object]]  # id, name, arguments
    stop: str | None
    usage: tuple[int, int, int]  # input in all, output, read from the cache


def read_with_sdk(client: str, stream: bytes, tools: tuple[str, ...] = ()) -> SdkReply:
    """The reply as the official SDK's accumulator ends with it; raises the SDK's exception for an error event."""
    answer = httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, content=translate(client, stream, tools)
    )
    http = httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))
    return {"chat": _read_chat, "messages": _read_messages, "responses": _read_responses}[client](http)


def _read_chat(http: httpx2.Client) -> SdkReply:
    sdk = openai.OpenAI(api_key="sk-fake-0", base_url="http://127.0.0.1:9/v1", http_client=http, max_retries=0)
    with sdk.chat.completions.stream(model="m", messages=[], stream_options={"include_usage": True}) as stream:
        for _ in stream:
            pass
        completion = stream.current_completion_snapshot
    choice, usage = completion.choices[0], completion.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    calls = [
        (call.id, call.function.name, msgspec.json.decode(call.function.arguments))
        for call in choice.message.tool_calls or []
        if call.type == "function"
    ]
    return SdkReply(
        choice.message.content or "",
        (choice.message.model_extra or {}).get("reasoning_content") or "",
        calls,
        choice.finish_reason,
        (usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens or 0),
    )


def _read_messages(http: httpx2.Client) -> SdkReply:
    sdk = anthropic.Anthropic(api_key="sk-fake-0", base_url="http://127.0.0.1:9", http_client=http, max_retries=0)
    with sdk.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as stream:
        message = stream.get_final_message()
    usage = message.usage
    cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    return SdkReply(
        "".join(block.text for block in message.content if block.type == "text"),
        "".join(block.thinking for block in message.content if block.type == "thinking"),
        [(block.id, block.name, block.input) for block in message.content if block.type == "tool_use"],
        message.stop_reason,
        (usage.input_tokens + cached + written, usage.output_tokens, cached),
    )


def _read_responses(http: httpx2.Client) -> SdkReply:
    sdk = openai.OpenAI(api_key="sk-fake-0", base_url="http://127.0.0.1:9/v1", http_client=http, max_retries=0)
    last = None
    for decoded in sdk.responses.create(model="m", input="hi", stream=True):
        if decoded.type in ("response.completed", "response.incomplete"):
            last = decoded.response
        elif decoded.type == "response.failed":
            error = decoded.response.error
            assert error is not None
            raise openai.APIError(error.message, httpx2.Request("POST", "http://127.0.0.1"), body=None)
    assert last is not None
    assert last.usage is not None
    thoughts = [item for item in last.output if item.type == "reasoning"]
    return SdkReply(
        last.output_text,
        "".join(part.text for item in thoughts for part in (*item.summary, *(item.content or ()))),
        [
            (item.call_id, item.name, msgspec.json.decode(item.arguments))
            for item in last.output
            if item.type == "function_call"
        ],
        last.incomplete_details.reason if last.incomplete_details else last.status,
        (last.usage.input_tokens, last.usage.output_tokens, last.usage.input_tokens_details.cached_tokens),
    )
