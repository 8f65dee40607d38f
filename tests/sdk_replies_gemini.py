"""Replies as google-genai reads them, in the shape of the other SDKs, and the readers of all clients."""

import base64
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

from google import genai
from google.genai import types

import sdk_replies
from dragoman.translate.hub.opaque import unseal_thoughts
from dragoman.translate.protocols.gemini.encode import WITHHELD
from scripting.replies import Refusal, ScriptedReply, Stop, Text, Thinking, Tokens, ToolCall, limit_to_protocol
from sdk_replies import ENVELOPE, NO_TLS, ORDER, STOPS, Broke, Kwargs, Reply, Sdk, SdkReply


@lru_cache(maxsize=8)
def google_client(url: str, key: str) -> genai.Client:
    clients: Kwargs = {"client_args": {"verify": NO_TLS}, "async_client_args": {"verify": NO_TLS}}
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=url, timeout=60_000, **clients))


def gemini_whole(sdk: Sdk, request: Kwargs) -> SdkReply:
    return _read([google_client(sdk.url, sdk.key).models.generate_content(**request)])


def gemini_stream(sdk: Sdk, request: Kwargs) -> SdkReply | Broke:
    chunks: list[types.GenerateContentResponse] = []
    try:
        chunks += google_client(sdk.url, sdk.key).models.generate_content_stream(**request)
    except Exception as error:
        return Broke(_read(chunks).text, error)
    return _read(chunks)


def gemini_chat(sdk: Sdk, request: Kwargs) -> SdkReply | Broke:
    """Through the SDK's chat, which must remember the turn that it has just read."""
    chat = google_client(sdk.url, sdk.key).chats.create(model=request["model"], config=request.get("config"))
    contents = request["contents"]
    message = contents if isinstance(contents, str) else contents[0]["parts"]
    chunks: list[types.GenerateContentResponse] = []
    try:
        for chunk in chat.send_message_stream(message):
            chunks.append(chunk)
    except Exception as error:
        return Broke(_read(chunks).text, error)
    reply = _read(chunks)
    last = chunks[-1].candidates
    if last and last[0].content is not None:  # what passes from an upstream may end without
        turn = [part for content in chat.get_history(curated=True)[1:] for part in content.parts or ()]
        assert "".join(part.text or "" for part in turn if not part.thought) == reply.text
    return reply


def _read(chunks: Iterable[types.GenerateContentResponse]) -> SdkReply:
    parts: list[types.Part] = []
    stop, usage, blocked = "", None, ""
    for chunk in chunks:
        usage = chunk.usage_metadata or usage
        feedback = chunk.prompt_feedback
        if feedback is not None and feedback.block_reason is not None:
            blocked, stop = feedback.block_reason_message or "", feedback.block_reason.value
        for candidate in chunk.candidates or ():
            parts += (candidate.content and candidate.content.parts) or ()
            stop = candidate.finish_reason.value if candidate.finish_reason is not None else stop
    visible = [part for part in parts if part.text or part.function_call is not None]
    kinds = ["call" if part.function_call else "thinking" if part.thought else "text" for part in visible]
    joined = [kind for place, kind in enumerate(kinds) if kind == "call" or place == 0 or kinds[place - 1] != kind]
    calls = [part.function_call for part in parts if part.function_call is not None]
    return SdkReply(
        text=blocked or "".join(part.text or "" for part in parts if not part.thought),
        thinking="".join(part.text or "" for part in parts if part.thought),
        seals=_seals(parts),
        calls=tuple((call.id or "", call.name or "", call.args or {}) for call in calls),
        stop=stop,
        tokens=_tokens(usage),
        order=("text",) if blocked else tuple(joined),
    )


def _seals(parts: Iterable[types.Part]) -> tuple[str, ...]:
    """Return the seals of the reasoning: our envelopes hold it once for the text and once for the call."""
    seals: dict[object, str] = {}
    for part in parts:
        if part.thought_signature:
            value = base64.b64encode(part.thought_signature).decode()
            thoughts = unseal_thoughts(value)
            if thoughts is None:
                seals[value] = value
            else:
                seals |= {thought: ENVELOPE for thought in thoughts if thought.opaque is not None}
    return tuple(seals.values())


def _tokens(usage: types.GenerateContentResponseUsageMetadata | None) -> Tokens | None:
    if usage is None or usage.candidates_token_count is None:
        return None
    thoughts, read = usage.thoughts_token_count or 0, usage.cached_content_token_count or 0
    output = usage.candidates_token_count + thoughts
    assert usage.total_token_count == (usage.prompt_token_count or 0) + output
    return Tokens(usage.prompt_token_count or 0, output, read, 0, thoughts)


def expect_for(client: str, upstream: str, scripted: ScriptedReply) -> SdkReply:
    """Return what a client must read; Gemini's reads refusals and withheld replies as text."""
    if client != "gemini":
        return sdk_replies.expect_for(client, upstream, scripted)
    sent = limit_to_protocol(scripted, upstream)
    text = "".join(part.text for part in sent.parts if isinstance(part, Text | Refusal))
    stop = Stop.FILTERED if sent.parts_of(Refusal) else sent.stop
    order = [ORDER[type(part)] for part in sent.parts if not isinstance(part, Thinking) or part.text]
    if stop is Stop.FILTERED and not text:
        text, order = sent.explanation or WITHHELD, [*order, "text"]
    seals = tuple(part.seal for part in sent.parts_of(Thinking) if part.seal)
    return SdkReply(
        text=text,
        thinking="".join(part.text for part in sent.parts_of(Thinking)),
        seals=seals if client == upstream else (ENVELOPE,) * len(seals),
        calls=tuple(
            (part.id, part.name, sdk_replies.read_arguments(part.arguments) or {}) for part in sent.parts_of(ToolCall)
        ),
        stop=STOPS[client][stop],
        tokens=replace(sent.tokens, written=0),
        order=tuple(order),
    )


WHOLE: dict[str, Callable[[Sdk, Kwargs], SdkReply]] = {**sdk_replies.WHOLE, "gemini": gemini_whole}
STREAMS: dict[str, tuple[Callable[[Sdk, Kwargs], Reply], ...]] = {
    **sdk_replies.STREAMS,
    "gemini": (gemini_stream, gemini_chat),
}
