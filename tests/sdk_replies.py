"""Replies as the official SDK of each protocol reads them, in one common shape."""

import ssl
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import anthropic
import httpx2
import msgspec
import openai
from anthropic.types import Message
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import Response, ResponseUsage

from dragoman.translate.hub.opaque import UNSIGNED
from scripting.replies import Refusal, ScriptedReply, Stop, Text, Thinking, Tokens, ToolCall, limit_to_protocol
from wire_json import JsonObject

ENVELOPE = "<envelope>"
Kwargs = JsonObject
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # each client would read the system's certificates, in 25 ms


@dataclass(frozen=True)
class SdkReply:
    text: str = ""
    refusal: str = ""
    thinking: str = ""
    seals: tuple[str, ...] = ()
    calls: tuple[tuple[str, str, object], ...] = ()  # id, name, arguments: read, or "" as it came
    stop: str = ""
    sequence: str | None = None
    tokens: Tokens | None = None
    order: tuple[str, ...] = ()  # of the blocks, where the protocol has one


@dataclass(frozen=True)
class Broke:
    """The SDK raised; `text` is what it had read before."""

    text: str
    error: Exception


@dataclass(frozen=True)
class Halted:
    """The Chat stream helper raises after a cap or a filter; it has read the text and the finish reason."""

    text: str
    stop: str


Reply = SdkReply | Broke | Halted
StatusError = openai.APIStatusError | anthropic.APIStatusError


def status_error(reply: Reply) -> StatusError:
    """The SDK's exception for an HTTP status; anything else fails the test."""
    assert isinstance(reply, Broke), reply
    assert isinstance(reply.error, StatusError), reply.error
    return reply.error


@dataclass
class Sdk:
    """The two SDKs, pointed at one gateway; the headers of the last answer are kept."""

    url: str
    key: str
    timeout_s: float = 60.0
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hooks: Kwargs = {"event_hooks": {"response": [self._keep]}, "verify": NO_TLS}
        common: Kwargs = {"api_key": self.key, "max_retries": 0, "timeout": self.timeout_s}
        self.openai = openai.OpenAI(base_url=self.url + "/v1", http_client=openai.DefaultHttpxClient(**hooks), **common)
        self.anthropic = anthropic.Anthropic(
            base_url=self.url, http_client=anthropic.DefaultHttpxClient(**hooks), **common
        )

    def close(self) -> None:
        self.openai.close()
        self.anthropic.close()

    def _keep(self, response: httpx2.Response) -> None:
        self.headers = dict(response.headers)


def chat_whole(sdk: Sdk, request: Kwargs) -> SdkReply:
    reply = sdk.openai.chat.completions.create(**request)
    return _chat(reply.choices[0].message, reply.choices[0].finish_reason, reply.usage)


def chat_stream(sdk: Sdk, request: Kwargs) -> Reply:
    """Through the SDK's stream helper; it takes strict tools only, so it is given none."""
    request = {name: value for name, value in request.items() if name != "tools"}
    text: list[str] = []
    try:
        with sdk.openai.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
            for event in stream:
                if event.type == "content.delta":
                    text.append(event.delta)
            reply = stream.get_final_completion()
    except openai.LengthFinishReasonError:
        return Halted("".join(text), "length")
    except openai.ContentFilterFinishReasonError:
        return Halted("".join(text), "content_filter")
    except Exception as error:
        return Broke("".join(text), error)
    return _chat(reply.choices[0].message, reply.choices[0].finish_reason, reply.usage)


def chat_chunks(sdk: Sdk, request: Kwargs) -> SdkReply | Broke:
    """Chunk by chunk, put together as simple clients do it."""
    fields: dict[str, str] = {"content": "", "refusal": "", "reasoning_content": ""}
    calls: dict[int, list[str]] = {}
    details: list[JsonObject] = []
    finish, usage = None, None
    try:
        for chunk in sdk.openai.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                found = choice.delta.model_dump()
                for name in fields:
                    fields[name] += found.get(name) or ""
                details += found.get("reasoning_details") or ()
                for call in choice.delta.tool_calls or ():
                    known = calls.setdefault(call.index, ["", "", ""])
                    known[0] += call.id or ""
                    if call.function is not None:
                        known[1] += call.function.name or ""
                        known[2] += call.function.arguments or ""
    except Exception as error:
        return Broke(fields["content"], error)
    return SdkReply(
        text=fields["content"],
        refusal=fields["refusal"],
        thinking=fields["reasoning_content"],
        seals=_detail_seals(details),
        calls=tuple((id, name, read_arguments(arguments)) for _, (id, name, arguments) in sorted(calls.items())),
        stop=finish or "",
        tokens=_chat_tokens(usage),
    )


def _chat(message: ChatCompletionMessage, finish: str, usage: CompletionUsage | None) -> SdkReply:
    extra = message.model_dump()
    functions = [call for call in message.tool_calls or () if call.type == "function"]
    assert len(functions) == len(message.tool_calls or ())
    return SdkReply(
        text=message.content or "",
        refusal=message.refusal or "",
        thinking=extra.get("reasoning_content") or "",
        seals=_detail_seals(extra.get("reasoning_details") or ()),
        calls=tuple((call.id, call.function.name, read_arguments(call.function.arguments)) for call in functions),
        stop=finish,
        tokens=_chat_tokens(usage),
    )


def _chat_tokens(usage: CompletionUsage | None) -> Tokens:
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None
    read, reply_text = usage.prompt_tokens_details.model_dump(), usage.completion_tokens_details.model_dump()
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return Tokens(
        usage.prompt_tokens,
        usage.completion_tokens,
        read.get("cached_tokens") or 0,
        read.get("cache_write_tokens") or 0,
        reply_text.get("reasoning_tokens") or 0,
    )


def _detail_seals(details: Iterable[JsonObject]) -> tuple[str, ...]:
    return tuple(_seal(detail.get("signature") or detail.get("data")) for detail in details)


def responses_whole(sdk: Sdk, request: Kwargs) -> SdkReply:
    return _response(sdk.openai.responses.create(**request))


def responses_stream(sdk: Sdk, request: Kwargs) -> SdkReply | Broke:
    text: list[str] = []
    try:
        with sdk.openai.responses.stream(**request) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    text.append(event.delta)
                elif event.type in ("response.completed", "response.incomplete", "response.failed"):
                    ended = event.response
            final = stream.get_final_response() if ended.status == "completed" else ended
    except Exception as error:
        return Broke("".join(text), error)
    client_reply = _response(final)
    assert "".join(text) == client_reply.text
    return client_reply


def _response(reply: Response) -> SdkReply:
    texts: dict[str, list[str]] = {"output_text": [], "refusal": [], "reasoning": []}
    seals: list[str] = []
    calls: list[tuple[str, str, object]] = []
    order: list[str] = []
    for item in reply.output:
        order.append({"message": "text", "reasoning": "thinking", "function_call": "call"}[item.type])
        match item.type:
            case "message":
                for part in item.content:
                    texts[part.type].append(part.text if part.type == "output_text" else part.refusal)
            case "reasoning":
                texts["reasoning"] += [part.text for part in item.summary or item.content or ()]
                seals += [_seal(item.encrypted_content)] if item.encrypted_content else []
            case "function_call":
                calls.append((item.call_id, item.name, read_arguments(item.arguments)))
    reason = reply.incomplete_details.reason if reply.incomplete_details else None
    return SdkReply(
        text="".join(texts["output_text"]),
        refusal="".join(texts["refusal"]),
        thinking="".join(texts["reasoning"]),
        seals=tuple(seals),
        calls=tuple(calls),
        stop=f"{reply.status} {reason}" if reason else str(reply.status),
        tokens=_response_tokens(reply.usage),
        order=tuple(order),
    )


def _response_tokens(usage: ResponseUsage | None) -> Tokens:
    assert usage is not None
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    return Tokens(
        usage.input_tokens,
        usage.output_tokens,
        usage.input_tokens_details.cached_tokens,
        usage.input_tokens_details.cache_write_tokens,
        usage.output_tokens_details.reasoning_tokens,
    )


def messages_whole(sdk: Sdk, request: Kwargs) -> SdkReply:
    return _message(sdk.anthropic.messages.create(**request))


def messages_stream(sdk: Sdk, request: Kwargs) -> SdkReply | Broke:
    text: list[str] = []
    try:
        with sdk.anthropic.messages.stream(**request) as stream:
            for event in stream:
                if event.type == "text":
                    text.append(event.text)
            final = stream.get_final_message()
    except Exception as error:
        return Broke("".join(text), error)
    client_reply = _message(final)
    assert "".join(text) == client_reply.text
    return client_reply


def _message(reply: Message) -> SdkReply:
    texts: list[str] = []
    thoughts: list[str] = []
    seals: list[str] = []
    calls: list[tuple[str, str, object]] = []
    order: list[str] = []
    for block in reply.content:
        match block.type:
            case "text":
                order.append("text")
                texts.append(block.text)
            case "thinking":
                order.append("thinking")
                thoughts.append(block.thinking)
                seals += [_seal(block.signature)] if block.signature not in ("", UNSIGNED) else []
            case "redacted_thinking":
                order.append("thinking")
                seals.append(_seal(block.data))
            case "tool_use":
                order.append("call")
                calls.append((block.id, block.name, block.input))
    return SdkReply(
        text="".join(texts),
        thinking="".join(thoughts),
        seals=tuple(seals),
        calls=tuple(calls),
        stop=str(reply.stop_reason),
        sequence=reply.stop_sequence,
        tokens=_message_tokens(reply.usage),
        order=tuple(order),
    )


def _message_tokens(usage: anthropic.types.Usage) -> Tokens:
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    details = usage.output_tokens_details
    reasoning = details.thinking_tokens if details else 0
    return Tokens(usage.input_tokens + read + written, usage.output_tokens, read, written, reasoning)


def read_arguments(arguments: str) -> object:
    return msgspec.json.decode(arguments) if arguments else ""


def _seal(value: object) -> str:
    assert isinstance(value, str)
    return ENVELOPE if value.startswith("dgm1.") else value


WHOLE: dict[str, Callable[[Sdk, Kwargs], SdkReply]] = {
    "chat": chat_whole,
    "responses": responses_whole,
    "messages": messages_whole,
}
STREAMS: dict[str, tuple[Callable[[Sdk, Kwargs], Reply], ...]] = {
    "chat": (chat_stream, chat_chunks),
    "responses": (responses_stream,),
    "messages": (messages_stream,),
}

STOPS = {
    "chat": {
        Stop.NATURAL: "stop",
        Stop.STOP_STRING: "stop",
        Stop.CAP: "length",
        Stop.CONTEXT_FULL: "length",
        Stop.TOOL: "tool_calls",
        Stop.FILTERED: "content_filter",
        Stop.PAUSE: "stop",
    },
    "responses": {
        Stop.NATURAL: "completed",
        Stop.STOP_STRING: "completed",
        Stop.CAP: "incomplete max_output_tokens",
        Stop.CONTEXT_FULL: "incomplete max_output_tokens",
        Stop.TOOL: "completed",
        Stop.FILTERED: "incomplete content_filter",
        Stop.PAUSE: "completed",
    },
    "messages": {
        Stop.NATURAL: "end_turn",
        Stop.STOP_STRING: "stop_sequence",
        Stop.CAP: "max_tokens",
        Stop.CONTEXT_FULL: "model_context_window_exceeded",
        Stop.TOOL: "tool_use",
        Stop.FILTERED: "refusal",
        Stop.PAUSE: "pause_turn",
    },
    "gemini": {
        Stop.NATURAL: "STOP",
        Stop.STOP_STRING: "STOP",
        Stop.CAP: "MAX_TOKENS",
        Stop.CONTEXT_FULL: "MAX_TOKENS",
        Stop.TOOL: "STOP",
        Stop.FILTERED: "SAFETY",
        Stop.PAUSE: "STOP",
    },
}
ORDER = {Text: "text", Refusal: "text", Thinking: "thinking", ToolCall: "call"}


def expect_for(client: str, upstream: str, scripted: ScriptedReply) -> SdkReply:
    """Return what a client of this protocol must read of what an upstream of that protocol can send."""
    reply_text = limit_to_protocol(scripted, upstream)
    same = client == upstream
    text, refusal = _join_text(reply_text, Text), _join_text(reply_text, Refusal)
    stop = reply_text.stop
    order = tuple(ORDER[type(part)] for part in reply_text.parts)
    if client == "messages":
        text, refusal, stop = text + refusal, "", Stop.FILTERED if refusal else stop
    elif reply_text.stop is Stop.FILTERED and reply_text.explanation and not text:
        refusal, order = reply_text.explanation, (*order, "text")
    seals = tuple(part.seal for part in reply_text.parts_of(Thinking) if part.seal)
    none = "" if same and client != "messages" else {}
    calls = tuple(
        (part.id, part.name, read_arguments(part.arguments) or none) for part in reply_text.parts_of(ToolCall)
    )
    return SdkReply(
        text=text,
        refusal=refusal,
        thinking=_join_text(reply_text, Thinking),
        seals=seals if same else (ENVELOPE,) * len(seals),
        calls=calls,
        stop=STOPS[client][stop],
        sequence=reply_text.sequence if client == "messages" else None,
        tokens=reply_text.tokens,
        order=() if client == "chat" else order,
    )


def _join_text(scripted: ScriptedReply, kind: type[Text] | type[Refusal] | type[Thinking]) -> str:
    return "".join(part.text for part in scripted.parts_of(kind))


def ask_all(url: str, key: str, requests: Sequence[tuple[str, Kwargs]]) -> list[tuple[Reply, dict[str, str]]]:
    """Stream all these requests of clients at the same time; return each reply with the headers of its answer."""
    sdks = [Sdk(url, key) for _ in requests]
    with ThreadPoolExecutor(len(requests)) as pool:
        replies = list(pool.map(lambda sdk, request: STREAMS[request[0]][0](sdk, request[1]), sdks, requests))
    for sdk in sdks:
        sdk.close()
    return [(reply, sdk.headers) for sdk, reply in zip(sdks, replies, strict=True)]
