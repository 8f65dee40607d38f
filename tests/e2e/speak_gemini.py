"""Write a reply as a Gemini server would send it, from the vendor's reference."""

import json
from collections.abc import Iterator

import msgspec

from e2e.meaning import CallTool, Ending, Meant, Refuse, Say, Stop, Think, Tokens, pieces

FINISH = {Stop.NATURAL: "STOP", Stop.CAP: "MAX_TOKENS", Stop.TOOL: "STOP", Stop.FILTERED: "SAFETY"}
HEAD = {"modelVersion": "vendor-model", "responseId": "fake1"}
ERROR = {"code": 500, "message": "The engine overheated.", "status": "INTERNAL"}
Wire = dict[str, object]


def stream(meant: Meant) -> bytes:
    # All but ASCII is escaped: the vendor's own SDK fails on a line separator inside of a string.
    return b"".join(b"data: %b\r\n\r\n" % json.dumps(chunk).encode() for chunk in _chunks(meant))


def whole(meant: Meant) -> bytes:
    if _is_blocked(meant):
        return msgspec.json.encode(_make_blocked(meant))
    return msgspec.json.encode(_chunk(list(_parts(meant, cut=False)), meant, FINISH[meant.stop]))


def _chunks(meant: Meant) -> Iterator[Wire]:
    if _is_blocked(meant):
        yield _make_blocked(meant)
        return
    for part in _parts(meant, cut=True):
        yield _chunk([part], None, None)
    if meant.ending is Ending.ERROR:
        yield {"error": ERROR}
    elif meant.ending is Ending.PROPER:
        yield _chunk([], meant, FINISH[meant.stop])


def _is_blocked(meant: Meant) -> bool:
    return meant.stop is Stop.FILTERED and not meant.parts


def _make_blocked(meant: Meant) -> Wire:
    feedback = {"blockReason": "SAFETY", "blockReasonMessage": meant.explanation}
    return {"promptFeedback": feedback, "usageMetadata": _usage(meant.tokens), **HEAD}


def _parts(meant: Meant, cut: bool) -> Iterator[Wire]:
    seal = ""
    for part in meant.parts:
        match part:
            case Think(text):
                yield from ({"text": piece, "thought": True} for piece in _pieces(text, cut))
                seal = part.seal
            case Say(text) | Refuse(text):
                for piece in _pieces(text, cut):
                    yield {"text": piece, **_make_signature(seal)}
                    seal = ""
            case CallTool():
                call: Wire = {"id": part.id, "name": part.name}
                if part.arguments:
                    call["args"] = msgspec.json.decode(part.arguments)
                yield {"functionCall": call, **_make_signature(seal)}
                seal = ""


def _pieces(text: str, cut: bool) -> list[str]:
    return pieces(text) if cut else [text] if text else []


def _make_signature(seal: str) -> Wire:
    return {"thoughtSignature": seal} if seal else {}


def _chunk(parts: list[Wire], meant: Meant | None, finish: str | None) -> Wire:
    candidate: Wire = {"content": {"role": "model", "parts": parts}, "index": 0} if parts else {"index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    usage = _usage(meant.tokens) if meant is not None else {"promptTokenCount": 11, "totalTokenCount": 11}
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
