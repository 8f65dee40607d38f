"""Conversations with the gateway's own tools, over scripted models, in every way in which a client can continue one.

A model has read each of its requests. What it reads next must begin with the same items, byte for byte, however the
client has kept the conversation in between.
"""

import json
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
import pytest

from asking import EXPLAIN, Reply, find_path, send
from e2e.search_scene import MODELS, write_section
from fakes.kiro import FakeKiro
from fakes.service import json_answer
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from fakes.web import FakeWeb, Names
from gateway import running
from scripting import write_reply
from scripting.replies import Part, ScriptedReply, Stop, Text, Thinking, ToolCall
from state.socket_rig import events as read_events
from state.socket_rig import socket as open_socket
from state.state_rig import StateRig
from wire_json import JsonObject

UPSTREAMS = ("chat", "responses", "messages", "gemini", "kiro")
# How a client continues a conversation: it sends the history back, in one of three protocols, or names what is kept.
WAYS = ("messages", "gemini", "resent", "previous", "conversation", "background", "socket")
TURNS = 5
TOKEN = b"dgm1.source2."
# Of a whole reply to a Gemini client that ends with a call of the gateway's tool: nothing that follows can carry it.
NOTED = "reasoning after the last part of a reply"
NUMBER = re.compile(rb"conversation-(\d+) ")
SETTINGS = """[retry]
attempts = 1
[tools.web_search]
backend = "mcp"
endpoint = "{search}"
tool = "search"
[tools.web_fetch]
backend = "builtin"
"""
WEATHER: JsonObject = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}


# What the services return


def search(request: ReceivedRequest) -> Answer:
    """Answer as an MCP server: with JSON, with prose with and without addresses, with nothing, or with an error."""
    message = request.json
    if "id" not in message:
        return Answer(b"", status=202, content_type="application/json")
    if message["method"] == "initialize":
        hello = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        return json_answer({"jsonrpc": "2.0", "id": message["id"], "result": {**hello, "serverInfo": {"name": "fake"}}})
    query = str(message["params"]["arguments"]["query"])
    kind, _, about = query.partition(" ")
    url = f"https://{about.replace(' ', '-')}.example/"
    results = [_make_result(f"{url}{number}", query) for number in (1, 2)]
    texts = {
        "search": json.dumps({"results": results}),
        "prose": f"Title: About {query} \u2603\nURL: {url}1\nIt is \u00e4 long story.\n\nTitle: More\n{url}2",
        "words": f"There is no address of {query}.",
        "nothing": '{"results": []}',
        "broken": f"the index of {query} is broken",
    }
    content = [{"type": "text", "text": texts[kind]}]
    result = {"content": content, "isError": kind == "broken"}
    return json_answer({"jsonrpc": "2.0", "id": message["id"], "result": result})


def _make_result(url: str, query: str) -> JsonObject:
    return {
        "url": url,
        "title": f"On {query}",
        "snippet": f"Text about {query}.\n2nd line",
        "publishedDate": "2026-01-02",
    }


class Library(FakeWeb):
    """Serves a page or a PDF at every address; one page is longer than the gateway reads."""

    def _answer(self, request: ReceivedRequest) -> Answer:
        path = request.path
        if path.endswith(".pdf"):
            return Answer(b"%PDF-1.7 " + path.encode(), content_type="application/pdf", chunked=False)
        if path.endswith(".gone"):
            return Answer(b"", status=404, content_type="text/plain", chunked=False)
        text = f"<title>Page {path}</title><p>All of {path}." + "<p>And on." * (9000 if path.endswith(".long") else 1)
        return Answer(text.encode(), content_type="text/html", chunked=False)


# What the models do


@dataclass
class Conversation:
    number: int
    upstream: str
    way: str
    stream: bool
    texts: list[str] = field(default_factory=list)  # of the user
    replies: list[ScriptedReply] = field(default_factory=list)  # of the model, one for each request
    read: list[bytes] = field(default_factory=list)  # the requests that the model got
    losses: list[JsonObject] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.number}, {self.way} over {self.upstream}, {'stream' if self.stream else 'whole'}"

    @property
    def tool_losses(self) -> list[tuple[str, str]]:
        """Return path and kind of the losses of what tools have returned."""
        about = ("tool returned", "has come back", "search results", "was opened")
        return [(loss["path"], loss["how"]) for loss in self.losses if any(words in loss["why"] for words in about)]


def make_conversation(number: int, turns: int = TURNS) -> Conversation:
    """Return a conversation; the number decides on all of it."""
    random = Random(number)
    upstream, way = UPSTREAMS[number % len(UPSTREAMS)], WAYS[number // len(UPSTREAMS) % len(WAYS)]
    made = Conversation(number, upstream, way, stream=random.random() < 0.5)
    for turn in range(turns):
        _add_turn(made, turn, random)
    return made


KINDS = ("search", "prose", "words", "nothing", "broken", "page", "long", "pdf", "gone", "unnamed", "malformed")


def _add_turn(made: Conversation, turn: int, random: Random) -> None:
    place = f"http://docs.test/{made.number}/{turn}"
    named = " ".join(place + ending for ending in ("", ".long", ".pdf", ".gone"))
    made.texts.append(f"conversation-{made.number} turn {turn}: read {named}")
    kinds = random.choices(KINDS, k=random.choice((0, 1, 1, 2, 3)))
    calls = [_write_call(kind, f"{made.number} {turn} {place}", random) for kind in kinds]
    while calls:
        size = random.choice((1, 1, 2))
        batch, calls = calls[:size], calls[size:]
        if not calls and random.random() < 0.2:
            batch.insert(random.randrange(len(batch) + 1), ToolCall(_new_id(random), "get_weather", '{"city": "Rome"}'))
        parts: list[Part] = [*_write_words(random), *batch]
        if random.random() < 0.2:  # beside or after its calls
            parts.insert(random.randrange(len(parts) - len(batch), len(parts)) + 1, Text(f"Wait {random.random()}."))
        made.replies.append(ScriptedReply(tuple(parts), Stop.TOOL))
    links = f" See [it](https://{made.number}-{turn}.example/1) and [page]({place})." if random.random() < 0.6 else ""
    made.replies.append(ScriptedReply((*_write_words(random), Text(f"Answer {turn}.{links}"))))


def _write_words(random: Random) -> list[Part]:
    words: list[Part] = []
    if random.random() < 0.4:
        words.append(Thinking(f"thought {random.random()}", f"seal{random.randrange(10**9)}"))
    if random.random() < 0.5:
        words.append(Text(f"Let me look {random.random()}. "))
    return words


def _write_call(kind: str, about: str, random: Random) -> ToolCall:
    number, turn, place = about.split(" ")
    endings = {"page": "", "long": ".long", "pdf": ".pdf", "gone": ".gone", "unnamed": f".{random.random()}"}
    if kind == "malformed":
        return ToolCall(_new_id(random), "web_search", '{"query": 7}')
    if kind in endings:
        return ToolCall(_new_id(random), "web_fetch", msgspec.json.encode({"url": place + endings[kind]}).decode())
    separator = random.choice((":", ": ", " : "))  # as models write it
    return ToolCall(_new_id(random), "web_search", f'{{"query"{separator}"{kind} {number} {turn}"}}')


def _new_id(random: Random) -> str:
    return random.choice(("call_", "toolu_", "chatcmpl-tool-", "functions.web:")) + str(random.randrange(10**12))


# The gateway, and the clients


@dataclass
class Hall:
    """A gateway in front of models of every protocol, each of which plays all conversations."""

    rig: StateRig
    conversations: dict[int, Conversation] = field(default_factory=dict)

    def hold(self, conversation: Conversation) -> None:
        """Hold a conversation to its end."""
        self.conversations[conversation.number] = conversation
        match conversation.way:
            case "messages":
                hold_messages(self, conversation)
            case "gemini":
                hold_gemini(self, conversation)
            case "socket":
                hold_on_socket(self, conversation)
            case _:
                hold_responses(self, conversation)

    def answer(self, upstream: str, request: ReceivedRequest) -> Answer | None:
        found = NUMBER.search(request.body)
        if found is None or request.method != "POST":
            return None
        conversation = self.conversations[int(found[1])]
        conversation.read.append(request.body)
        stream = "stream" in request.path or b'"stream":true' in request.body
        return write_reply(upstream, conversation.replies[len(conversation.read) - 1], stream=stream)

    def model(self, conversation: Conversation) -> str:
        return f"{conversation.upstream}/{MODELS.get(conversation.upstream, 'm')}"

    def post(self, conversation: Conversation, path: str, body: JsonObject) -> Reply:
        return self._send(
            conversation, path, {"model": self.model(conversation), "stream": conversation.stream, **body}
        )

    def ask_gemini(self, conversation: Conversation, body: JsonObject) -> Reply:
        path = find_path("gemini", self.model(conversation), stream=conversation.stream)
        return self._send(conversation, path, body)

    def _send(self, conversation: Conversation, path: str, body: JsonObject) -> Reply:
        reply = send(self.rig, "POST", path, body, key=self.rig.gateway.keys["alice"], headers=EXPLAIN)
        assert reply.status == 200, (conversation.name, reply.body)
        conversation.losses += json.loads(reply.headers.get("x-dragoman-loss-detail", "[]"))
        return reply


@contextmanager
def run_hall(directory: Path) -> Iterator[Hall]:
    with ExitStack() as stack:
        library, names = stack.enter_context(Library()), Names(socket.getaddrinfo)
        names.add("docs.test", ["93.184.216.34"])
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(socket, "getaddrinfo", names)
        index = stack.enter_context(FakeUpstream(intercept=search))
        sections = [SETTINGS.format(search=index.url)]
        fakes: dict[str, FakeUpstream] = {}
        for name in UPSTREAMS:
            if name == "kiro":
                fakes[name] = kiro = stack.enter_context(FakeKiro())
                sections.append(kiro.section(kiro.sign_in(directory / "kiro.json")))
            else:
                fakes[name] = stack.enter_context(FakeUpstream())
                keeps = "keeps_responses = false\n" if name == "responses" else ""
                sections.append(write_section(name, fakes[name].url) + keeps)
        gateway = running("\n".join(sections), directory, library.environment(), stored=["alice"])
        rig = StateRig(stack.enter_context(gateway), fakes, directory)
        stack.callback(rig.close)
        hall = Hall(rig)
        for name, fake in fakes.items():
            fake.intercept = lambda request, name=name: hall.answer(name, request)
        yield hall


def hold_messages(hall: Hall, conversation: Conversation, replacing: bytes = TOKEN) -> None:
    """Send the history back, as a Messages client does; `replacing` is what it makes of the beginning of a token."""
    hall.conversations[conversation.number] = conversation
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "web_fetch_20250910", "name": "web_fetch"},
        {"name": "get_weather", "input_schema": {"type": "object", "properties": {}}},
    ]
    history: list[JsonObject] = []
    given: object
    for text in conversation.texts:
        given = text
        while given is not None:
            history.append({"role": "user", "content": given})
            body: JsonObject = {"max_tokens": 500, "messages": history, "tools": tools}
            reply = hall.post(conversation, "/v1/messages", body)
            content = join_blocks(reply.events) if conversation.stream else reply.json["content"]
            content = msgspec.json.decode(msgspec.json.encode(content).replace(TOKEN, replacing))
            history.append({"role": "assistant", "content": content})
            called = [block["id"] for block in content if block["type"] == "tool_use"]
            given = [{"type": "tool_result", "tool_use_id": id, "content": "sunny"} for id in called] or None


def hold_gemini(hall: Hall, conversation: Conversation) -> None:
    """Send the history back, as Google's SDK does: each chunk of a stream is a content of its own."""
    tools = [{"googleSearch": {}}, {"urlContext": {}}, {"functionDeclarations": [{"name": "get_weather"}]}]
    history: list[JsonObject] = []
    for text in conversation.texts:
        given: list[JsonObject] = [{"text": text}]
        while given:
            history.append({"role": "user", "parts": given})
            reply = hall.ask_gemini(conversation, {"contents": history, "tools": tools})
            chunks = reply.events if conversation.stream else [reply.json]
            contents = [chunk["candidates"][0]["content"] for chunk in chunks if "content" in chunk["candidates"][0]]
            history += contents
            called = [
                part["functionCall"] for content in contents for part in content["parts"] if "functionCall" in part
            ]
            responses = [{"id": call["id"], "name": call["name"], "response": {"output": "sunny"}} for call in called]
            given = [{"functionResponse": response} for response in responses]


def join_blocks(events: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the blocks of a Messages stream."""
    blocks: list[JsonObject] = []
    for event in events:
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(dict(block))
            case {"type": "content_block_delta", "delta": {"partial_json": json}}:
                blocks[-1]["input"] = (blocks[-1]["input"] or "") + json
            case {"type": "content_block_delta", "delta": {"type": "citations_delta", "citation": citation}}:
                blocks[-1]["citations"] = [*(blocks[-1]["citations"] or ()), citation]
            case {"type": "content_block_delta", "delta": delta}:
                [name] = delta.keys() - {"type"}
                blocks[-1][name] = blocks[-1].get(name, "") + delta[name]
            case {"type": "content_block_stop"} if isinstance(blocks[-1].get("input"), str):
                blocks[-1]["input"] = msgspec.json.decode(blocks[-1]["input"])
    return blocks


RESPONSES_TOOLS = [{"type": "web_search"}, {"type": "web_fetch"}, {"type": "function", **WEATHER, "strict": False}]


def list_turns(conversation: Conversation, ask: Callable[[list[JsonObject]], JsonObject]) -> None:
    """Ask for every turn, and answer the calls of the client's tool."""
    for text in conversation.texts:
        items: list[JsonObject] = [{"role": "user", "content": text}]
        while items:
            output = ask(items)["output"]
            called = [item["call_id"] for item in output if item["type"] == "function_call"]
            items = [{"type": "function_call_output", "call_id": id, "output": "sunny"} for id in called]


def hold_responses(hall: Hall, conversation: Conversation) -> None:
    """Continue by what the gateway keeps, or send everything back."""
    history: list[JsonObject] = []
    fields: JsonObject = {"tools": RESPONSES_TOOLS}
    if conversation.way == "conversation":
        created = send(hall.rig, "POST", "/v1/conversations", {}, key=hall.rig.gateway.keys["alice"])
        fields["conversation"] = created.json["id"]
    if conversation.way == "resent":
        fields |= {"store": False, "include": ["reasoning.encrypted_content"]}
    if conversation.way == "background":
        fields |= {"background": True, "stream": False}

    def ask(items: list[JsonObject]) -> JsonObject:
        history.extend(items)
        given = history if conversation.way == "resent" else items
        reply = hall.post(conversation, "/v1/responses", {"input": given, **fields})
        if conversation.way == "background":
            response = hall.rig.wait_for_end(reply.json["id"])
        else:
            response = reply.events[-1]["response"] if conversation.stream else reply.json
        assert response["status"] == "completed", (conversation.name, response)
        history.extend(response["output"])
        if conversation.way in ("previous", "background"):
            fields["previous_response_id"] = response["id"]
        return response

    list_turns(conversation, ask)


def hold_on_socket(hall: Hall, conversation: Conversation) -> None:
    """Continue by what a connection remembers; nothing is stored."""
    fields: JsonObject = {"type": "response.create", "model": hall.model(conversation), "store": False}
    with open_socket(hall.rig) as opened:

        def ask(items: list[JsonObject]) -> JsonObject:
            opened.send(msgspec.json.encode({**fields, "tools": RESPONSES_TOOLS, "input": items}).decode())
            found = read_events(opened)
            assert found[-1]["type"] == "response.completed", (conversation.name, found[-1])
            response: JsonObject = found[-1]["response"]
            fields["previous_response_id"] = response["id"]
            return response

        list_turns(conversation, ask)


# What the models have read


def list_items(upstream: str, body: bytes) -> list[bytes]:
    """Return the items of a request in the order in which its model reads them, each as written, cache marks aside."""
    request = msgspec.json.decode(body, type=JsonObject)
    for message in request["messages"] if upstream == "messages" else ():
        for block in message["content"] if isinstance(message["content"], list) else ():
            block.pop("cache_control", None)
    if upstream != "kiro":
        name = {"responses": "input", "gemini": "contents"}.get(upstream, "messages")
        return [msgspec.json.encode(item) for item in request[name]]
    state = request["conversationState"]
    current = state["currentMessage"]
    context = current["userInputMessage"].get("userInputMessageContext", {})
    context.pop("tools", None)  # only the newest message has the tools
    if not context:
        current["userInputMessage"].pop("userInputMessageContext", None)
    return [msgspec.json.encode(item) for item in (*state.get("history", ()), current)]


def find_change(conversation: Conversation) -> str | None:
    """Return where a model reads something else than before; None if it never does."""
    requests = [list_items(conversation.upstream, body) for body in conversation.read]
    for number, (before, after) in enumerate(pairwise(requests), 1):
        for place, item in enumerate(before):
            now = after[place] if place < len(after) else b"nothing"
            if now != item:
                shown = f"{item.decode()[:1500]}\n\nis now\n{now.decode()[:1500]}"
                return f"{conversation.name}: item {place} of request {number - 1}, in request {number}\n{shown}"
    return None


def check(conversations: Sequence[Conversation]) -> None:
    """Fail if a model reads something else than before, and the ledger does not say so."""
    unnoted = [one for one in conversations if not any(NOTED in loss["why"] for loss in one.losses)]
    changes = [change for one in unnoted if (change := find_change(one)) is not None]
    assert not changes, f"{len(changes)} of {len(conversations)} changed\n" + "\n\n".join(changes[:3])
    for one in conversations:
        assert len(one.read) == len(one.replies), one.name
