"""The replies of the fake upstream, one for each client, and what a client must have at the end."""

import re
from random import Random

import msgspec

from bench.wire import stream_events

ARRAY = "gemini-array"  # a Gemini stream without `alt=sse`
COMMENT, PING = b": alive\n\n", b'event: ping\ndata: {"type": "ping"}\n\n'
SIGNS = {"chat": (COMMENT,), "messages": (PING, COMMENT), "responses": (COMMENT,), "gemini": (), ARRAY: ()}
WORDS_OF_RESPONSES = 40
_SIGN = re.compile(rb"(?:\A|(?<=\n\n))(?:event: ping\ndata: [^\n]*|:[^\n]*)\n\n")
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n")
_NOT_COUNTED = (b":", b"event: ping", b"data: [DONE]")

encode = msgspec.json.encode


def make_reply(protocol: str, number: int) -> list[bytes]:
    """Return the events of the reply to a client; all of them name the client."""
    mark = b"client-%04d" % number
    if protocol == "responses":
        return [event.replace(b"bench", mark) for event in _responses_events()]
    events = [event.replace(b"bench", mark) for event in stream_events("gemini" if protocol == ARRAY else protocol)]
    if protocol != ARRAY:
        return events
    elements = [event.removeprefix(b"data: ").strip() for event in events]
    return [(b",\r\n" if place else b"[") + element for place, element in enumerate(elements)] + [b"\r\n]"]


def add_signs(protocol: str, events: list[bytes], chance: Random) -> list[bytes]:
    """Return the events with signs of life between some of them."""
    pieces: list[bytes] = []
    for event in events:
        if SIGNS[protocol] and chance.random() < 0.2:
            pieces.append(chance.choice(SIGNS[protocol]))
        pieces.append(event)
    return pieces


def without_signs(body: bytes) -> bytes:
    return _SIGN.sub(b"", body)


def whole_part(protocol: str, body: bytes) -> tuple[int, bytes]:
    """Return how many events are whole, and the bytes up to the end of the last one."""
    if protocol == ARRAY:
        return _whole_elements(body)
    count = end = at = 0
    for blank in _BLANK_LINE.finditer(body):
        if not body.startswith(_NOT_COUNTED, at):
            count, end = count + 1, blank.end()
        at = blank.end()
    return count, body[:end]


def _whole_elements(body: bytes) -> tuple[int, bytes]:
    count = end = depth = 0
    in_string = escaped = False
    for place, byte in enumerate(body):
        if escaped:
            escaped = False
        elif in_string:
            escaped, in_string = byte == ord("\\"), byte != ord('"')
        elif byte == ord('"'):
            in_string = True
        elif byte == ord("{"):
            depth += 1
        elif byte == ord("}"):
            depth -= 1
            if not depth:
                count, end = count + 1, place + 1
    return count, body[:end]


def _responses_events() -> list[bytes]:
    words = [f"word-{number} " for number in range(WORDS_OF_RESPONSES)]
    response = {"id": "resp_bench", "object": "response", "created_at": 1763190000, "model": "bench", "store": False}
    text = {"type": "output_text", "text": "".join(words), "annotations": []}
    item = {"id": "msg_bench", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    usage = {"input_tokens": 91, "output_tokens": 62, "total_tokens": 153}
    done = {"status": "completed", "output": [item], "usage": usage}
    place = {"item_id": "msg_bench", "output_index": 0, "content_index": 0}
    events: list[dict[str, object]] = [
        {"type": "response.created", "response": response | {"status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"content": []}},
        {"type": "response.content_part.added", **place, "part": text | {"text": ""}},
        *({"type": "response.output_text.delta", **place, "delta": word} for word in words),
        {"type": "response.output_text.done", **place, "text": "".join(words)},
        {"type": "response.content_part.done", **place, "part": text},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response | done},
    ]
    return [
        b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), encode(event | {"sequence_number": number}))
        for number, event in enumerate(events)
    ]
