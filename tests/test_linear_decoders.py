"""Law 4 for decoders where size is a number of things: calls, blocks, items and citations cost linear time."""

from collections.abc import Callable, Iterable

import msgspec
import pytest

from dragoman.translate.framing.sse import Frame
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.protocols.chat.decode_blocks import Calls
from dragoman.translate.protocols.chat.wire import CallPiece
from dragoman.upstreams.codex.provider import OutputFiller
from fakes.eventstream import event as kiro_event
from laws import assert_linear_function, assert_linear_run
from test_linear import parallel_calls

ISSUER = Issuer("up", "model-1", 200_000)


def chat_deltas(deltas: Iterable[object]) -> Iterable[Frame]:
    for delta in deltas:
        yield frame({"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta}]})
    yield frame({"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    yield Frame("", b"[DONE]")


def frame(event: object) -> Frame:
    return Frame("", msgspec.json.encode(event))


def chat_call(place: int, **fields: object) -> dict[str, object]:
    return {"id": f"call_{place}", "function": {"name": "tool", "arguments": "{}"}, **fields}


def chat_frames(delta: Callable[[int], object]) -> Callable[[int], Iterable[Frame]]:
    return lambda size: chat_deltas(map(delta, range(size)))


def chat_at_once(size: int) -> Iterable[Frame]:
    return chat_deltas([{"tool_calls": [chat_call(place, index=place) for place in range(size)]}])


def messages_frames(size: int) -> Iterable[Frame]:
    """Calls that are all open at once."""
    yield frame({"type": "message_start", "message": {"id": "m", "model": "m"}})
    for place in range(size):
        block = {"type": "tool_use", "id": f"toolu_{place}", "name": "tool", "input": {}}
        yield frame({"type": "content_block_start", "index": place, "content_block": block})
    for place in range(size):
        delta = {"type": "input_json_delta", "partial_json": "{}"}
        yield frame({"type": "content_block_delta", "index": place, "delta": delta})
    yield from messages_end()


def messages_end() -> Iterable[Frame]:
    yield frame({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}})
    yield frame({"type": "message_stop"})


def messages_cited(size: int) -> Iterable[Frame]:
    yield frame({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}})
    for place in range(size):
        cited = {"type": "web_search_result_location", "url": f"https://example.com/{place}"}
        delta = {"type": "citations_delta", "citation": cited}
        yield frame({"type": "content_block_delta", "index": 0, "delta": delta})
    yield from messages_end()


def messages_searches(size: int) -> Iterable[Frame]:
    """Tools of the vendor whose results never come."""
    for place in range(size):
        block = {"type": "server_tool_use", "id": f"srvtoolu_{place}", "name": "web_search", "input": {}}
        yield frame({"type": "content_block_start", "index": place, "content_block": block})
    yield from messages_end()


def messages_reports(size: int) -> Iterable[Frame]:
    """Many passes in one report of usage, and then many reports."""
    passes = [{"type": "compaction", "input_tokens": 1}] * size
    yield frame({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"iterations": passes}})
    for _ in range(size):
        yield frame({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}})


def responses_item(place: int) -> dict[str, object]:
    return {"type": "function_call", "id": f"fc_{place}", "call_id": f"c_{place}", "name": "tool", "arguments": "{}"}


def responses_items(size: int) -> Iterable[Frame]:
    for place in range(size):
        yield frame(
            {"type": "response.output_item.added", "output_index": place, "item": responses_item(place)},
        )
    for place in range(size):
        yield frame({"type": "response.output_item.done", "output_index": place, "item": responses_item(place)})
    yield frame({"type": "response.completed", "response": {"status": "completed", "output": []}})


def responses_backwards(size: int) -> Iterable[Frame]:
    """Items in reverse order."""
    for place in reversed(range(size)):
        yield frame({"type": "response.output_item.done", "output_index": place, "item": responses_item(place)})
    yield frame({"type": "response.completed", "response": {"status": "completed", "output": []}})


def responses_snapshot(size: int) -> Iterable[Frame]:
    output = [responses_item(place) for place in range(size)]
    yield frame({"type": "response.completed", "response": {"status": "completed", "output": output}})


def responses_parts(size: int) -> Iterable[Frame]:
    for place in range(size):
        yield frame({"type": "response.output_text.delta", "output_index": 0, "content_index": place, "delta": "a"})
    yield frame({"type": "response.completed", "response": {"status": "completed", "output": []}})


def responses_cited(size: int) -> Iterable[Frame]:
    cited = {"type": "url_citation", "url": "https://example.com", "start_index": 0, "end_index": 1}
    for _ in range(size):
        yield frame({"type": "response.output_text.delta", "output_index": 0, "delta": "a"})
        yield frame({"type": "response.output_text.annotation.added", "output_index": 0, "annotation": cited})
    yield frame({"type": "response.completed", "response": {"status": "completed", "output": []}})


def kiro_uses(size: int) -> Iterable[bytes]:
    """Calls that all grow at once."""
    for piece, stop in (('{"a":', False), ("1}", True)):
        for place in range(size):
            use = {"toolUseId": f"tooluse_{place}", "name": f"tool{place}", "input": piece, "stop": stop}
            yield kiro_event("toolUseEvent", use)


def kiro_stops(size: int) -> Iterable[bytes]:
    """A call that repeatedly reports its end without having ended."""
    for _ in range(size):
        yield kiro_event("toolUseEvent", {"toolUseId": "tooluse_a", "name": "tool", "input": "{" * 99, "stop": True})


def kiro_sources(size: int) -> Iterable[bytes]:
    for place in range(size):
        yield kiro_event("codeReferenceEvent", {"references": [{"url": f"https://example.com/{place}"}]})
        yield kiro_event("assistantResponseEvent", {"content": "a"})


def native_lines(size: int) -> Iterable[bytes]:
    return (msgspec.json.encode(event) + b"\n" for event in parallel_calls(size))


def gemini_chunk(*parts: object, **candidate: object) -> Frame:
    content = {"role": "model", "parts": parts}
    return Frame("", msgspec.json.encode({"candidates": [{"content": content, **candidate}]}))


def gemini_calls(size: int) -> Iterable[Frame]:
    for at in range(size):
        yield gemini_chunk({"functionCall": {"name": "tool", "args": {"at": at}}, "thoughtSignature": "QQ=="})
    yield gemini_chunk(finishReason="STOP")


def gemini_texts(size: int) -> Iterable[Frame]:
    for _ in range(size):
        yield gemini_chunk({"text": "hm", "thought": True}, {"text": "word "})
    supports = [{"segment": {"startIndex": at, "endIndex": at + 4}, "groundingChunkIndices": [0]} for at in range(9)]
    sources = [{"web": {"uri": "https://example.com"}}]
    metadata = {"groundingChunks": sources, "groundingSupports": supports}
    yield gemini_chunk(finishReason="STOP", groundingMetadata=metadata)


def gemini_sources(size: int) -> Iterable[Frame]:
    yield gemini_chunk({"text": "wörd " * 20 * size})
    spans = ({"startIndex": 100 * at, "endIndex": 100 * at + 5} for at in range(size))
    supports = [{"segment": span, "groundingChunkIndices": [0]} for span in spans]
    metadata = {"groundingChunks": [{"web": {"uri": "https://example.com"}}], "groundingSupports": supports}
    yield gemini_chunk(finishReason="STOP", groundingMetadata=metadata)


STREAMS: dict[str, tuple[str, Callable[[int], Iterable[object]], int]] = {
    "chat calls by index": ("chat", chat_frames(lambda at: {"tool_calls": [chat_call(at, index=at)]}), 1500),
    "chat calls by id": ("chat", chat_frames(lambda at: {"tool_calls": [chat_call(at)]}), 1500),
    "chat calls of one index": ("chat", chat_frames(lambda at: {"tool_calls": [chat_call(at, index=0)]}), 1500),
    "chat calls of one id": ("chat", chat_frames(lambda at: {"tool_calls": [chat_call(0, index=at)]}), 1500),
    "chat calls without names": ("chat", chat_frames(lambda at: {"tool_calls": [{"index": at}]}), 1500),
    "chat calls at once": ("chat", chat_at_once, 100),
    "chat details": (
        "chat",
        chat_frames(lambda at: {"reasoning_details": [{"index": 0, "text": "word " * 20, "data": "x" * 300}]}),
        1000,
    ),
    "chat thinking blocks": (
        "chat",
        chat_frames(lambda at: {"thinking_blocks": [{"type": "thinking", "thinking": "a", "signature": "b"}]}),
        1000,
    ),
    "messages calls": ("messages", messages_frames, 1500),
    "messages citations": ("messages", messages_cited, 1500),
    "messages searches": ("messages", messages_searches, 1000),
    "messages reports": ("messages", messages_reports, 500),
    "responses items": ("responses", responses_items, 600),
    "responses items backwards": ("responses", responses_backwards, 600),
    "responses snapshot": ("responses", responses_snapshot, 1000),
    "responses parts": ("responses", responses_parts, 1500),
    "responses citations": ("responses", responses_cited, 1000),
    "gemini calls": ("gemini", gemini_calls, 800),
    "gemini texts and thoughts": ("gemini", gemini_texts, 800),
    "gemini sources": ("gemini", gemini_sources, 800),
    "kiro calls": ("kiro", kiro_uses, 800),
    "kiro stops": ("kiro", kiro_stops, 300),
    "kiro sources": ("kiro", kiro_sources, 600),
    "native calls": ("echo", native_lines, 1000),
}


class _Frames:
    """A decoder fed with frames, or with the bytes that its framer makes frames of."""

    def __init__(self, protocol: str) -> None:
        upstream = PROTOCOLS[protocol].upstream
        assert upstream
        self._framer = upstream.framer()
        self._decoder = upstream.decoder(ISSUER, Ledger())

    def feed(self, item: object) -> list[Event]:
        frames = self._framer.feed(item) if isinstance(item, bytes) else (item,)
        return [event for frame in frames for event in self._decoder.feed(frame)]

    def finish(self) -> list[Event]:
        return [*self._decoder.finish()]


@pytest.mark.parametrize("stream", STREAMS)
def test_every_decoder_takes_linear_time_in_calls_blocks_and_citations(stream: str) -> None:
    protocol, items, size = STREAMS[stream]
    assert_linear_run(lambda: _Frames(protocol), items, size)


@pytest.mark.parametrize(
    "piece", [CallPiece, lambda index, id: CallPiece(None, id), lambda index, id: CallPiece(0, id)]
)
def test_distinguishing_chat_calls_takes_linear_time(piece: Callable[[int, str], CallPiece]) -> None:
    """By itself: the decoder stops reading calls at the most that a reply may have."""

    def separate_calls(pieces: list[CallPiece]) -> None:
        calls = Calls()
        for one in pieces:
            calls.find_or_add(one, "tool", "reply")

    assert_linear_function(separate_calls, lambda size: [piece(at, f"call_{at}") for at in range(size)], 3000)


def chat_whole(size: int) -> bytes:
    message = {"content": "a", "tool_calls": [chat_call(place % 7) for place in range(size)]}
    return msgspec.json.encode({"id": "c", "choices": [{"message": message, "finish_reason": "tool_calls"}]})


def messages_whole(size: int) -> bytes:
    content = [{"type": "tool_use", "id": f"t{place}", "name": "tool", "input": {}} for place in range(size)]
    return msgspec.json.encode({"type": "message", "id": "m", "content": content, "stop_reason": "tool_use"})


def responses_whole(size: int) -> bytes:
    cited = [{"type": "url_citation", "url": "https://example.com", "start_index": 0, "end_index": 1}] * size
    text = {"type": "output_text", "text": "a", "annotations": cited}
    output = [{"type": "message", "content": [text]}, *map(responses_item, range(size))]
    return msgspec.json.encode({"id": "r", "status": "completed", "output": output})


def gemini_whole(size: int) -> bytes:
    parts = [{"functionCall": {"name": "tool", "args": {"at": at}}} for at in range(size)]
    return msgspec.json.encode({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})


WHOLE = {"gemini": gemini_whole, "chat": chat_whole, "messages": messages_whole, "responses": responses_whole}


@pytest.mark.parametrize("protocol", WHOLE)
def test_reading_a_whole_reply_takes_linear_time(protocol: str) -> None:
    upstream = PROTOCOLS[protocol].upstream
    assert upstream
    assert_linear_function(lambda body: upstream.decode_whole(body, ISSUER, Ledger()), WHOLE[protocol], 120)


def test_filling_the_output_of_codex_takes_linear_time() -> None:
    def fill(events: list[bytes]) -> None:
        machine = OutputFiller()
        for event in events:
            machine.rewrite(event)

    def events(size: int) -> list[bytes]:
        items = [
            msgspec.json.encode({"type": "response.output_item.done", "output_index": at, "item": responses_item(at)})
            for at in range(size)
        ]
        return items + [b'{"type":"response.completed","response":{"output":[]}}'] * size

    assert_linear_function(fill, events, 300)
