"""A gateway that searches and fetches for its clients, in front of upstreams that play prepared rounds.

`run_scene` starts it with one upstream of each kind, and `scene.on(upstream)` turns to another one. A test plays
rounds, asks in the protocol of a client, and compares what the upstream saw (`sent`) with what the client got.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import asking
from asking import Reply
from fakes.kiro import FakeKiro
from fakes.service import json_answer, stream
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import Running, provider_section, running
from rig import Rig
from scripting import write_reply
from scripting.replies import ScriptedReply, Stop, Text, Tokens, ToolCall
from wire_json import JsonObject

if TYPE_CHECKING:
    from anthropic.types import Message
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response

    from sdk_replies import Sdk

URL, OTHER = "https://a.example/1", "https://b.example/2"
FOUND: JsonObject = {
    "results": [
        {"url": URL, "title": "One", "content": "Text of one.", "publishedDate": "2026-01-02"},
        {"url": OTHER, "title": None, "content": "Text of two."},
    ]
}
PAGE = "Pandas eat bamboo. " * 100
SEARCH: JsonObject = {"type": "web_search_20250305", "name": "web_search"}
FETCH: JsonObject = {"type": "web_fetch_20250910", "name": "web_fetch"}
WEATHER: JsonObject = {"name": "get_weather", "input_schema": {"type": "object", "properties": {}}}
USER: JsonObject = {"role": "user", "content": "pandas?"}
MORE: JsonObject = {"role": "user", "content": "more"}
BROKEN = json_answer({"error": {"message": "broken", "type": "server_error"}}, 500)
# Upstream -> the protocol that it speaks, if that is not its name. `anthropic` and `openai` have a search of their own.
PROTOCOLS = {"anthropic": "messages", "openai": "responses"}
UPSTREAMS = ("chat", "messages", "responses", "gemini", "anthropic", "openai", "kiro")
CLAUDE = "claude-sonnet-4-5"
MODELS = {"messages": CLAUDE, "anthropic": CLAUDE, "kiro": "claude-sonnet-4.5", "gemini": "gemini-2.5-flash"}
Round = ScriptedReply | Answer | bytes


def calls(*named: tuple[str, str, object], text: str = "Let me look. ") -> ScriptedReply:
    """Return a round with text and tool calls: (id, name, arguments as JSON or as they are to be encoded)."""
    encoded = [(id, name, given if isinstance(given, str) else json.dumps(given)) for id, name, given in named]
    opening = [Text(text)] if text else []
    return ScriptedReply((*opening, *(ToolCall(*call) for call in encoded)), Stop.TOOL, Tokens(10, 5))


def searches(query: str = "pandas", id: str = "call_1", text: str = "Let me look. ") -> ScriptedReply:
    return calls((id, "web_search", {"query": query}), text=text)


def fetches(url: str = URL, id: str = "call_1") -> ScriptedReply:
    return calls((id, "web_fetch", {"url": url}), text="")


def says(text: str) -> ScriptedReply:
    return ScriptedReply((Text(text),), tokens=Tokens(30, 7))


SEARCHES = searches()
ANSWERS = says(f"See [One]({URL}) and [x](https://no.example/).")
CHAT_SEARCHES, CHAT_ANSWERS = (write_reply("chat", scripted).body for scripted in (SEARCHES, ANSWERS))


@dataclass
class SearchScene:
    rig: Rig
    services: FakeUpstream  # SearXNG, and Tavily's extraction of pages
    name: str = "chat"  # of the upstream
    directory: Path = field(default_factory=Path)

    def on(self, upstream: str) -> "SearchScene":
        return replace(self, name=upstream)

    @property
    def gateway(self) -> Running:
        return self.rig.gateway

    @property
    def sdk(self) -> "Sdk":
        return self.rig.sdk

    @property
    def model(self) -> str:
        return f"{self.name}/{MODELS.get(self.name, 'm')}"

    @property
    def upstream(self) -> FakeUpstream:
        return self.rig.fakes[self.name]

    @property
    def requests(self) -> list[ReceivedRequest]:
        return self.rig.calls(self.name)

    @property
    def sent(self) -> list[JsonObject]:
        return [request.json for request in self.requests]

    @property
    def searched(self) -> list[ReceivedRequest]:
        return [request for request in self.services.requests if not request.path.endswith("/extract")]

    @property
    def fetched(self) -> list[ReceivedRequest]:
        return [request for request in self.services.requests if request.path.endswith("/extract")]

    def play(self, *rounds: Round) -> "SearchScene":
        """Prepare what requests to the upstream are answered with, and forget all requests so far."""
        self.services.requests.clear()
        self.script_search(json_answer(FOUND))
        protocol = PROTOCOLS.get(self.name, self.name)
        self.rig.play(self.name, *(to_answer(protocol, each) for each in rounds))
        return self

    def got_bytes(self, body: JsonObject) -> bool:
        """Return whether the upstream got these bytes, but for the provider in the model's name."""
        plain = body | {"model": self.model.partition("/")[2]}
        return [request.body for request in self.requests] == [msgspec.json.encode(plain)]

    def script_search(self, answer: Answer) -> None:
        self.services.intercept = lambda request: extract(request) if request.path.endswith("/extract") else answer

    def write_request(self, *history: JsonObject, **more: object) -> JsonObject:
        """Return a Messages request with the search."""
        return {"model": self.model, "max_tokens": 100, "messages": [USER, *history], "tools": [SEARCH], **more}

    def reply(self, *history: JsonObject, stream: bool = True, **more: object) -> "Message":
        """Ask as a Messages client."""
        request = self.write_request(*history, **more)
        if not stream:
            whole: Message = self.sdk.anthropic.messages.create(**request)
            return whole
        with self.sdk.anthropic.messages.stream(**request) as events:
            return events.get_final_message()

    def complete(self, *, stream: bool = False, **more: object) -> "ChatCompletion":
        """Ask as a Chat client."""
        request: JsonObject = {"model": self.model, "messages": [USER], "web_search_options": {}, **more}
        if not stream:
            whole: ChatCompletion = self.sdk.openai.chat.completions.create(**request)
            return whole
        with self.sdk.openai.chat.completions.stream(**request, stream_options={"include_usage": True}) as events:
            return events.get_final_completion()

    def respond(self, *, stream: bool = True, **more: object) -> "tuple[list[JsonObject], Response]":
        """Ask as a Responses client, and return the events, too."""
        request: JsonObject = {"model": self.model, "input": "pandas?", "tools": [{"type": "web_search"}], **more}
        if not stream:
            return [], self.sdk.openai.responses.create(**request)
        with self.sdk.openai.responses.stream(**request) as events:
            seen = [event.model_dump(warnings=False) for event in events]
            return seen, events.get_final_response()

    def ask(self, client: str, text: str = "pandas?", *, stream: bool = False, **fields: object) -> Reply:
        """Ask without an SDK; a Messages client has the search unless `fields` say otherwise."""
        tools: JsonObject = {"tools": [SEARCH]} if client == "messages" else {}
        body = asking.make_body(client, self.model, text, stream=stream) | tools | fields
        path = asking.find_path(client, self.model, stream=stream)
        return self.rig.send("POST", path, body, headers={"x-dragoman-explain": "1"})


def to_answer(protocol: str, each: Round) -> Answer:
    if isinstance(each, Answer):
        return each
    return Answer(each) if isinstance(each, bytes) else write_reply(protocol, each)


def extract(request: ReceivedRequest) -> Answer:
    return json_answer({"results": [{"url": request.json["urls"][0], "raw_content": PAGE, "title": "Pandas"}]})


@contextmanager
def run_scene(
    directory: Path,
    upstream: str = "chat",
    *,
    backend: str = '["native", "searxng"]',
    settings: str = "",
    search_settings: str = "",
    fetch_settings: str = "",
    attempts: int = 1,
    retry_settings: str = "",
    environ: Mapping[str, str] | None = None,
) -> Iterator[SearchScene]:
    """Start a scene with this upstream in front; where `backend` of the search is empty, no service is configured."""
    with ExitStack() as stack:
        services = stack.enter_context(FakeUpstream())
        search = f'[tools.web_search]\nbackend = {backend}\nendpoint = "{services.url}"\n{search_settings}'
        fetch = f'[tools.web_fetch]\nbackend = "tavily"\nendpoint = "{services.url}"\napi_key = "tvly-fake"\n'
        tools = [search, fetch + fetch_settings] if backend else []
        sections = [f"[retry]\nattempts = {attempts}\nbase_s = 0.01\n{retry_settings}", *tools, settings]
        fakes: dict[str, FakeUpstream] = {}
        for name in UPSTREAMS:
            if name == "kiro":
                fakes[name] = kiro = stack.enter_context(FakeKiro())
                sections.append(kiro.section(kiro.sign_in(directory / "kiro.json")))
                continue
            fakes[name] = stack.enter_context(FakeUpstream())
            sections.append(write_section(name, fakes[name].url))
        gateway = stack.enter_context(running("\n".join(sections), directory, environ))
        rig = Rig(gateway, fakes, directory)
        stack.callback(rig.close)
        yield SearchScene(rig, services, upstream, directory)


def write_section(name: str, url: str) -> str:
    """Return a provider; a compatible server has no search of its own, whatever protocol it speaks."""
    if name == "messages":
        return provider_section("chat", url, name).replace('protocol = "chat"', 'protocol = "messages"')
    return provider_section(PROTOCOLS.get(name, name) if name != "openai" else name, url, name)


# What a Messages client reads


def kinds(message: "Message") -> list[str]:
    return [block.type for block in message.content]


def outcomes(message: "Message") -> list[object]:
    """Return what each search and fetch returned: its URLs or its URL, or its error code."""
    found: list[object] = []
    for block in message.content:
        if block.type == "web_search_tool_result":
            content = block.content
            found.append([item.url for item in content] if isinstance(content, list) else content.error_code)
        elif block.type == "web_fetch_tool_result":
            found.append(block.content.url if block.content.type == "web_fetch_result" else block.content.error_code)
    return found


def content_of(message: "Message") -> JsonObject:
    """Return the reply as a turn of the next request."""
    return {"role": "assistant", "content": [block.model_dump(exclude_unset=True) for block in message.content]}


# What Anthropic itself sends


def write_message(blocks: list[JsonObject], stop: str = "end_turn", sent: int = 10, received: int = 5) -> bytes:
    """Return a Messages stream of these blocks; text, thinking and inputs come in deltas."""
    counts = {"input_tokens": sent, "output_tokens": 1}
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": counts}
    events: list[JsonObject] = [{"type": "message_start", "message": {**start, "stop_reason": None}}]
    for index, block in enumerate(blocks):
        empty, deltas = split_block(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": stop, "stop_sequence": None}
    usage = {"output_tokens": received}
    return stream(*events, {"type": "message_delta", "delta": ended, "usage": usage}, {"type": "message_stop"}).body


def split_block(block: JsonObject) -> tuple[JsonObject, list[JsonObject]]:
    """Return a block as it begins, and its deltas."""
    match block:
        case {"type": "text", "text": text, **rest}:
            cited = [{"type": "citations_delta", "citation": item} for item in rest.get("citations", [])]
            pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
            return {"type": "text", "text": ""}, [*({"type": "text_delta", "text": each} for each in pieces), *cited]
        case {"type": "thinking", "thinking": thinking, "signature": signature}:
            deltas = [{"type": "thinking_delta", "thinking": thinking}]
            deltas.append({"type": "signature_delta", "signature": signature})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case {"type": "tool_use" | "server_tool_use", "input": given, **rest}:
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(given)}]
    return block, []


HIT: JsonObject = {
    "type": "web_search_result",
    "url": "https://v.example/",
    "title": "V",
    "encrypted_content": "vendor-secret",
    "page_age": None,
}


def vendor_search(id: str = "srvtoolu_v", query: str = "q", content: object = (HIT,)) -> list[JsonObject]:
    """Return a search of the vendor's own, as blocks of a reply."""
    use = {"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": query}}
    return [use, {"type": "web_search_tool_result", "tool_use_id": id, "content": content}]
