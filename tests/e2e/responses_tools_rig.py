"""A gateway that searches for Responses clients over upstreams of four kinds, with fakes for all of them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from openai.types.responses import Response, ResponseFunctionWebSearch

import fakes.kiro as kiro
from fakes.kiro import FakeKiro, sign
from fakes.service import json_answer
from fakes.upstream import Answer, FakeUpstream
from gateway import KEY, Running, running
from raw_http import post
from rig import ENCODERS
from scripting.replies import ScriptedReply, Stop, Text, Thinking, Tokens, ToolCall
from sdk_replies import Sdk
from wire_json import JsonObject

TITLES = ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight")
FOUND = {
    "results": [
        {"url": f"https://{name}.example/{number}", "title": title, "content": f"Text of {title.lower()}."}
        for number, (name, title) in enumerate(zip("abcdefgh", TITLES, strict=True), 1)
    ]
}
PAGE = json_answer({"results": [{"url": "https://a.example/1", "title": "One", "raw_content": "All of one."}]})
UPSTREAMS = ("chat", "messages", "responses", "kiro")
SOURCES = "web_search_call.action.sources"


@dataclass
class Scene:
    gateway: Running
    sdk: Sdk
    fakes: dict[str, FakeUpstream]
    kiro: FakeKiro
    searxng: FakeUpstream

    def play(self, upstream: str, *rounds: ScriptedReply) -> None:
        self.searxng.requests.clear()
        self.script_search(Answer(json.dumps(FOUND).encode(), content_type="application/json"))
        if upstream == "kiro":
            self.kiro.requests.clear()
            self.kiro.replies, self.kiro.played = [write_as_kiro(scripted) for scripted in rounds], 0
            return
        fake = self.fakes[upstream]
        fake.requests.clear()
        fake.answers = [Answer(ENCODERS[fake_protocol(upstream)].encode_stream(scripted)) for scripted in rounds]

    def script_search(self, answer: Answer) -> None:
        self.searxng.intercept = lambda request: PAGE if request.path.endswith("/extract") else answer

    def list_sent(self, upstream: str) -> list[JsonObject]:
        requests = self.kiro.chats if upstream == "kiro" else self.fakes[upstream].calls
        return [request.json for request in requests]

    def stream(self, upstream: str, **more: object) -> tuple[list[JsonObject], Response]:
        """The events as the grammar allows them, and the reply as the SDK's accumulator ends with it."""
        with self.sdk.openai.responses.stream(**ask(upstream, **more)) as stream:
            events = [event.model_dump(warnings=False) for event in stream]
            return events, stream.get_final_response()

    def post(self, upstream: str, **more: object) -> bytes:
        answer = post(self.gateway.port, "/v1/responses", msgspec.json.encode(ask(upstream, **more)))
        assert answer.status == 200, answer.body
        return answer.body


def fake_protocol(upstream: str) -> str:
    return "responses" if upstream == "openai" else upstream


def write_as_kiro(scripted: ScriptedReply) -> Answer:
    frames: list[bytes] = []
    for part in scripted.parts:
        match part:
            case Thinking():
                continue
            case ToolCall(id=id, name=name, arguments=arguments):
                frames += [kiro.tool(id, name, input=arguments), kiro.tool(id, name, stop=True)]
            case _:
                frames.append(kiro.words(part.text))
    return kiro.make_framed(*frames, kiro.tail("TOOL_USE" if scripted.parts_of(ToolCall) else "END_TURN"))


@contextmanager
def tools_rigged(directory: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        fakes = {name: stack.enter_context(FakeUpstream()) for name in ("chat", "messages", "responses", "openai")}
        searxng, fake_kiro = stack.enter_context(FakeUpstream()), stack.enter_context(FakeKiro())
        account, tokens = directory / "kiro.json", fake_kiro.issue()
        sign(account, str(tokens["accessToken"]), str(tokens["refreshToken"]), 7200)
        search = f'[tools.web_search]\nbackend = ["native", "searxng"]\nendpoint = "{searxng.url}"'
        fetch = f'[tools.web_fetch]\nbackend = "tavily"\nendpoint = "{searxng.url}"\napi_key = "tvly-fake"'
        sections = [section(name, fake.url) for name, fake in fakes.items()]
        settings = ["[retry]\nattempts = 1", search, fetch, *sections, fake_kiro.section(str(account))]
        gateway = stack.enter_context(running("\n".join(settings), directory))
        sdk = Sdk(gateway.url, KEY)
        stack.callback(sdk.close)
        yield Scene(gateway, sdk, fakes, fake_kiro, searxng)


def section(name: str, url: str) -> str:
    kind = 'kind = "openai"' if name == "openai" else f'kind = "openai-compatible"\nprotocol = "{name}"'
    return f'[providers.{name}]\n{kind}\nendpoint = "{url}"\napi_key = "sk-fake-upstream"\n'


def ask(upstream: str, **more: object) -> JsonObject:
    model = "claude-sonnet-4.5" if upstream == "kiro" else "m"
    return {"model": f"{upstream}/{model}", "input": "pandas?", "tools": [{"type": "web_search"}], **more}


def calls(*parts: ToolCall, text: str = "Let me look. ") -> ScriptedReply:
    return ScriptedReply((Text(text), *parts), stop=Stop.TOOL, tokens=Tokens(10, 5))


SEARCHES = calls(ToolCall("call_1", "web_search", '{"query": "pandas"}'))
ANSWERS = ScriptedReply(
    (Text("🐼 See [One](https://a.example/1) and [Two](https://b.example/2), [x](https://no.example/)."),),
    tokens=Tokens(30, 7),
)


def searches(response: Response) -> list[ResponseFunctionWebSearch]:
    return [item for item in response.output if isinstance(item, ResponseFunctionWebSearch)]


def list_offered(request: JsonObject) -> list[str]:
    """The names of the functions in a Chat or Responses request."""
    return [tool.get("function", tool)["name"] for tool in request.get("tools") or ()]
