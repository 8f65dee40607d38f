"""A gateway that runs web search in front of upstreams that play prepared rounds, and the SDKs that talk to it."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, Running, provider_section, running
from sdk_replies import Sdk
from wire_json import JsonObject

FOUND: JsonObject = {
    "results": [
        {"url": "https://a.example/1", "title": "One", "content": "Text of one.", "publishedDate": "2026-01-02"},
        {"url": "https://b.example/2", "title": None, "content": "Text of two."},
    ]
}
JSON = "application/json"


@dataclass
class SearchScene:
    gateway: Running
    sdk: Sdk
    upstream: FakeUpstream
    searxng: FakeUpstream

    def play(self, *rounds: bytes | Answer) -> None:
        """Prepare what upstream requests are answered with from now on."""
        self.upstream.requests.clear()
        self.searxng.requests.clear()
        self.upstream.answers = [Answer(each) if isinstance(each, bytes) else each for each in rounds]
        self.script_search(Answer(json.dumps(FOUND).encode(), content_type=JSON))

    def script_search(self, answer: Answer) -> None:
        self.searxng.intercept = lambda request: answer

    @property
    def sent(self) -> list[JsonObject]:
        return [request.json for request in self.upstream.calls]


@contextmanager
def search_scene(
    directory: Path,
    protocol: str,
    *,
    searches: bool = True,
    native: bool = True,
    attempts: int = 1,
    settings: str = "",
    search_settings: str = "",
) -> Iterator[SearchScene]:
    """One provider `up` with this protocol. `searches`: SearXNG is configured; `native`: after the upstream's own."""
    with ExitStack() as stack:
        upstream, searxng = stack.enter_context(FakeUpstream()), stack.enter_context(FakeUpstream())
        backends = '["native", "searxng"]' if native else '"searxng"'
        search = f'[tools.web_search]\nbackend = {backends}\nendpoint = "{searxng.url}"\n{search_settings}\n'
        retry = f"[retry]\nattempts = {attempts}\nbase_s = 0.01"
        sections = [retry, search if searches else "", settings, provider_section(protocol, upstream.url)]
        gateway = stack.enter_context(running("\n".join(sections), directory))
        sdk = Sdk(gateway.url, KEY)
        stack.callback(sdk.close)
        yield SearchScene(gateway, sdk, upstream, searxng)


def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    value = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chat_usage(sent: int, received: int) -> bytes:
    counts = {"prompt_tokens": sent, "completion_tokens": received, "total_tokens": sent + received}
    value = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": counts}
    return b"data: " + json.dumps(value).encode() + b"\n\ndata: [DONE]\n\n"


def chat_calls(*named: tuple[str, str, str], text: str = "Let me look. ") -> bytes:
    """Return a Chat round with text and tool calls: (id, name, arguments)."""
    deltas: list[dict[str, object]] = [
        {"tool_calls": [{"index": i, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}]}
        for i, (id, name, arguments) in enumerate(named)
    ]
    opening = chunk({"role": "assistant", "content": text})
    return opening + b"".join(chunk(delta) for delta in deltas) + chunk({}, "tool_calls") + chat_usage(10, 5)


def chat_text(*pieces: str) -> bytes:
    return b"".join(chunk({"content": piece}) for piece in pieces) + chunk({}, "stop") + chat_usage(30, 7)


CHAT_SEARCHES = chat_calls(("call_1", "web_search", '{"query": "pandas"}'))
CHAT_ANSWERS = chat_text("See [One", "](https://a.example/1) and [x](https://no.example/).")


def message(blocks: list[JsonObject], stop: str, sent: int = 10, received: int = 5) -> bytes:
    """A Messages stream of these blocks; text and thinking come in deltas."""
    counts = {"input_tokens": sent, "output_tokens": 1}
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": counts}
    events: list[JsonObject] = [{"type": "message_start", "message": {**start, "stop_reason": None}}]
    for index, block in enumerate(blocks):
        events += _block_events(index, block)
    ended = {"stop_reason": stop, "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": received}},
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def _block_events(index: int, block: JsonObject) -> list[JsonObject]:
    empty, deltas = dict(block), []
    if block["type"] == "text":
        empty["text"] = ""
        deltas = [{"type": "text_delta", "text": piece} for piece in re.findall(r".{1,7}", block["text"], re.DOTALL)]
        deltas += [{"type": "citations_delta", "citation": item} for item in empty.pop("citations", [])]
    elif block["type"] == "thinking":
        empty |= {"thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    elif block["type"] in ("tool_use", "server_tool_use"):
        empty["input"] = {}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    changed = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    opened = {"type": "content_block_start", "index": index, "content_block": empty}
    return [opened, *changed, {"type": "content_block_stop", "index": index}]
