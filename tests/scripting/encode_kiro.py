"""Write a reply as Kiro would send it, in frames of an AWS event stream."""

from fakes.eventstream import event
from fakes.kiro import EVENT_STREAM, tail, tool, words
from scripting.replies import Ending, Part, ScriptedReply, Stop, Text, Thinking, ToolCall

__all__ = ["EVENT_STREAM", "encode_stream"]
STOPS = {Stop.NATURAL: "END_TURN", Stop.TOOL: "TOOL_USE", Stop.CAP: "MAX_TOKENS"}


def encode_stream(scripted: ScriptedReply) -> bytes:
    frames = b"".join(_frame(part) for part in scripted.parts)
    return frames + tail(STOPS[scripted.stop]) if scripted.ending is Ending.PROPER else frames


def _frame(part: Part) -> bytes:
    match part:
        case Text(text):
            return words(text)
        case Thinking(text, seal):
            thought = event("reasoningContentEvent", {"text": text})
            return thought + event("reasoningContentEvent", {"signature": seal}) if seal else thought
        case ToolCall(id, name, arguments):
            return tool(id, name, input=arguments) + tool(id, name, stop=True)
        case _:
            raise AssertionError(f"Kiro cannot send {part}")
