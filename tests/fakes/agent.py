"""A fake model that follows a script over any protocol: it writes some text, calls a tool, reads the result, ends.

It answers as the vendor's server would, and refuses what the vendor refuses: results without calls, calls without
results, other vendors' signatures.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from fakes.upstream import Answer, ReceivedRequest

Json = dict[str, object]


class Complaint(Exception):
    """The request breaks a rule of the vendor's."""


class Declined(Exception):
    """What a server may decline without the client having done wrong; `body` is the answer."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.body = body


@dataclass(frozen=True)
class Tool:
    name: str
    freeform: bool = False  # takes plain text, not JSON
    namespace: str | None = None
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentRequest:
    """What the agent needs to know of a request."""

    model: str
    tools: tuple[Tool, ...]
    results: tuple[str, ...]  # of the tools used so far, oldest first
    streams: bool
    thinks: bool


@dataclass(frozen=True)
class Use:
    """One step of the script: which tool, with what. Plain text is for freeform tools."""

    tool: str
    given: Json | str


@dataclass(frozen=True)
class ToolCall:
    id: str
    tool: Tool
    payload: str


@dataclass(frozen=True)
class Reply:
    """The agent's answer, independent of any protocol."""

    number: int
    model: str
    text: str
    thought: str = ""
    call: ToolCall | None = None
    input_tokens: int = 1200
    output_tokens: int = 34


class ServerProtocol(Protocol):
    """The server's side of one protocol."""

    def read_request(self, body: Json) -> AgentRequest: ...
    def stream(self, reply: Reply) -> bytes: ...
    def whole(self, reply: Reply) -> bytes: ...
    def complaint(self, message: str) -> bytes: ...


# From the agent's own answer, the request, and the number of answers to the script before.
ChangeAnswer = Callable[[Answer, AgentRequest, int], Answer]


@dataclass
class Agent:
    """Answers each request by its place in the script: the number of results in its history."""

    protocol: ServerProtocol
    script: tuple[Use, ...] = ()
    change: ChangeAnswer | None = None
    search: Use | None = None  # for requests that offer no tool of the script but this one
    answer: str = ""  # after the search
    words: str = "A short answer."  # where none of the script's tools is offered
    complaints: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    requests: list[AgentRequest] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)  # requests of the script, by model

    def __call__(self, received: ReceivedRequest) -> Answer:
        if received.path.partition("?")[0].endswith("/count_tokens"):
            return _json(b'{"input_tokens": 1234}')
        try:
            request = self.protocol.read_request(received.json)
        except Complaint as complaint:
            self.complaints.append(str(complaint))
            return _json(self.protocol.complaint(str(complaint)), 400)
        except Declined as declined:
            return _json(declined.body, 400)
        self.requests.append(request)
        reply = self._reply(request)
        self.replies.append(reply)
        answer = _make_stream(self.protocol.stream(reply)) if request.streams else _json(self.protocol.whole(reply))
        if self.change is None or not self._is_scripted(request):
            return answer
        self.answered[request.model] += 1
        return self.change(answer, request, self.answered[request.model] - 1)

    def _is_scripted(self, request: AgentRequest) -> bool:
        """Return whether this is the conversation of the script, not a request for a title or a summary."""
        return any(_find(request.tools, use.tool) for use in self.script)

    def _reply(self, request: AgentRequest) -> Reply:
        number, done = len(self.replies) + 1, len(request.results)
        thought = "The script says what to do next." if request.thinks else ""
        script, last = self.script, f"Finished. The last tool said: {request.results[-1] if done else 'nothing'}"
        if not self._is_scripted(request):
            if self.search is None or not _find(request.tools, self.search.tool):
                return Reply(number, request.model, self.words)
            script, last = (self.search,), self.answer
        if done >= len(script):
            return Reply(number, request.model, last, thought)
        use = script[done]
        tool = _find(request.tools, use.tool)
        if tool is None:
            return Reply(number, request.model, f"There is no tool {use.tool} to use.", thought)
        call = ToolCall(f"call_fake{number:04}", tool, _payload(use, tool))
        return Reply(number, request.model, f"Now I will use the tool {use.tool}, as asked.", thought, call)


def pieces(text: str, size: int = 6) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def seal(protocol: str, number: int) -> str:
    """Return a seal that only this agent's vendor can read; it must come back unchanged, or not at all."""
    return f"fake-seal-of-{protocol}-{number}=="


def check_seal(protocol: str, value: object) -> None:
    if not (isinstance(value, str) and value.startswith(f"fake-seal-of-{protocol}-") and value.endswith("==")):
        raise Complaint(f"this reasoning was not sealed by us: {value!r}")


def objects(value: object) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(content: object) -> str:
    """The text of a string or of a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in objects(content))


def schema_fields(schema: object) -> tuple[str, ...]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return tuple(properties) if isinstance(properties, dict) else ()


def _find(tools: tuple[Tool, ...], name: str) -> Tool | None:
    """Find a tool by its name, or by the end of a name with a namespace in front."""
    for tool in tools:
        if tool.name == name or tool.name.endswith(f"__{name}"):
            return tool
    return None


def _payload(use: Use, tool: Tool) -> str:
    """Return the arguments; a wrapped freeform tool gets its text in the only field of its schema."""
    if isinstance(use.given, str) and not tool.freeform:
        return msgspec.json.encode({tool.fields[0]: use.given}).decode()
    return use.given if isinstance(use.given, str) else msgspec.json.encode(use.given).decode()


def _make_stream(body: bytes) -> Answer:
    return Answer(body, cut=419)


def _json(body: bytes, status: int = 200) -> Answer:
    return Answer(body, status=status, content_type="application/json", chunked=False)
