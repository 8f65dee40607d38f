"""Write a reply as a Gemini server would send it, from the vendor's reference."""

import json
from collections.abc import Iterator

import msgspec

from scripting.replies import Ending, Refusal, ScriptedReply, Stop, Text, Thinking, Tokens, ToolCall, pieces

FINISH = {Stop.NATURAL: "STOP", Stop.CAP: "MAX_TOKENS", Stop.TOOL: "STOP", Stop.FILTERED: "SAFETY"}
HEAD = {"modelVersion": "vendor-model", "responseId": "fake1"}
ERROR = {"code": 500, "message": "The engine overheated.", "status": "INTERNAL"}
Wire = dict[str, object]


def encode_stream(scripted: ScriptedReply) -> bytes:
    # All but ASCII is escaped: the vendor's own SDK fails on a line separator inside of a string.
    return b"".join(b"data: %b\r\n\r\n" % json.dumps(chunk).encode() for chunk in _chunks(scripted))


def encode_whole(scripted: ScriptedReply) -> bytes:
    if _is_blocked(scripted):
        return msgspec.json.encode(_make_blocked(scripted))
    return msgspec.json.encode(_chunk(list(_parts(scripted, cut=False)), scripted, FINISH[scripted.stop]))


def _chunks(scripted: ScriptedReply) -> Iterator[Wire]:
    if _is_blocked(scripted):
        yield _make_blocked(scripted)
        return
    for part in _parts(scripted, cut=True):
        yield _chunk([part], None, None)
    if scripted.ending is Ending.ERROR:
        yield {"error": ERROR}
    elif scripted.ending is Ending.PROPER:
        yield _chunk([], scripted, FINISH[scripted.stop])


def _is_blocked(scripted: ScriptedReply) -> bool:
    return scripted.stop is Stop.FILTERED and not scripted.parts


def _make_blocked(scripted: ScriptedReply) -> Wire:
    feedback = {"blockReason": "SAFETY", "blockReasonMessage": scripted.explanation}
    return {"promptFeedback": feedback, "usageMetadata": _usage(scripted.tokens), **HEAD}


def _parts(scripted: ScriptedReply, cut: bool) -> Iterator[Wire]:
    seal = ""
    for part in scripted.parts:
        match part:
            case Thinking(text):
                yield from ({"text": piece, "thought": True} for piece in _pieces(text, cut))
                seal = part.seal
            case Text(text) | Refusal(text):
                for piece in _pieces(text, cut):
                    yield {"text": piece, **_make_signature(seal)}
                    seal = ""
            case ToolCall():
                call: Wire = {"id": part.id, "name": part.name}
                if part.arguments:
                    call["args"] = msgspec.json.decode(part.arguments)
                yield {"functionCall": call, **_make_signature(seal)}
                seal = ""


def _pieces(text: str, cut: bool) -> list[str]:
    return pieces(text) if cut else [text] if text else []


def _make_signature(seal: str) -> Wire:
    return {"thoughtSignature": seal} if seal else {}


def _chunk(parts: list[Wire], scripted: ScriptedReply | None, finish: str | None) -> Wire:
    candidate: Wire = {"content": {"role": "model", "parts": parts}, "index": 0} if parts else {"index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    usage = _usage(scripted.tokens) if scripted is not None else {"promptTokenCount": 11, "totalTokenCount": 11}
    return {"candidates": [candidate], "usageMetadata": usage, **HEAD}


def _usage(tokens: Tokens) -> Wire:
    visible = tokens.output - tokens.reasoning
    counts = {"promptTokenCount": tokens.input, "candidatesTokenCount": visible}
    extra = {"cachedContentTokenCount": tokens.cached, "thoughtsTokenCount": tokens.reasoning}
    return {
        **counts,
        **{name: count for name, count in extra.items() if count},
        "totalTokenCount": tokens.input + tokens.output,
    }
