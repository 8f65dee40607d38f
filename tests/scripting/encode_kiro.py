"""Write a reply as Kiro would send it, in frames of an AWS event stream."""

from fakes.eventstream import event, exception
from fakes.kiro import EVENT_STREAM, tail, tool, words
from scripting.replies import (
    Ending,
    Part,
    ScriptedReply,
    Stop,
    Text,
    Thinking,
    Tokens,
    ToolCall,
    group_calls,
    interleave,
    pieces,
)

__all__ = ["EVENT_STREAM", "encode_stream"]
STOPS = {
    Stop.NATURAL: "END_TURN",
    Stop.TOOL: "TOOL_USE",
    Stop.CAP: "MAX_TOKENS",
    Stop.CONTEXT_FULL: "MODEL_CONTEXT_WINDOW_EXCEEDED",
    Stop.FILTERED: "CONTENT_FILTERED",
    Stop.PAUSE: "PAUSE_TURN",
}


def encode_stream(scripted: ScriptedReply) -> bytes:
    frames = b"".join(_frames(parts) for parts in group_calls(scripted.parts))
    match scripted.ending:
        case Ending.PROPER:
            return frames + tail(STOPS[scripted.stop], **_usage(scripted.tokens))
        case Ending.ERROR:
            return frames + exception("InternalServerException", {"message": "The engine overheated."})
        case Ending.NONE:
            return frames


def _frames(parts: list[Part]) -> bytes:
    match parts[0]:
        case Text(text, size):
            return b"".join(words(piece) for piece in pieces(text, size))
        case Thinking("", seal):
            return event("reasoningContentEvent", {"redactedContent": seal})
        case Thinking(text, seal):
            thought = event("reasoningContentEvent", {"text": text})
            return thought + event("reasoningContentEvent", {"signature": seal}) if seal else thought
        case ToolCall():
            return _call_frames([part for part in parts if isinstance(part, ToolCall)])
        case _:
            raise AssertionError(f"Kiro cannot send {parts[0]}")


def _call_frames(calls: list[ToolCall]) -> bytes:
    """Return calls whose arguments come in turns."""
    frames = [tool(call.id, call.name) for call in calls]
    frames += [tool(calls[place].id, calls[place].name, input=piece) for place, piece in interleave([*calls])]
    return b"".join([*frames, *(tool(call.id, call.name, stop=True) for call in calls)])


def _usage(tokens: Tokens) -> dict[str, int]:
    return {
        "uncachedInputTokens": tokens.input - tokens.cached - tokens.written,
        "cacheReadInputTokens": tokens.cached,
        "cacheWriteInputTokens": tokens.written,
        "outputTokens": tokens.output,
        "totalTokens": tokens.input + tokens.output,
    }
