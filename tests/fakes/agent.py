"""A model that plays a small script over any protocol: it says something, uses a tool, reads the result, and ends.

Requests come in as an upstream gets them; what the vendor's server would answer goes out. What a vendor refuses,
it refuses too: results without calls, calls without results, other vendors' signatures.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from fakes.upstream import Answer, Asked

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
class Heard:
    """What a request tells the agent."""

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
    """What the agent means to answer, in no protocol's words."""

    number: int
    model: str
    text: str
    thought: str = ""
    call: ToolCall | None = None
    input_tokens: int = 1200
    output_tokens: int = 34


class Tongue(Protocol):
    """One protocol, spoken as its vendor's server does."""

    def hear(self, body: Json) -> Heard: ...
    def stream(self, reply: Reply) -> bytes: ...
    def whole(self, reply: Reply) -> bytes: ...
    def complaint(self, message: str) -> bytes: ...


Amended = Callable[[Answer, Heard, int], Answer]  # the agent's own answer, to what, and how many went before it


@dataclass
class Agent:
    """Answers each request by its place in the script, which the results in its history tell."""

    tongue: Tongue
    script: tuple[Use, ...] = ()
    amend: Amended | None = None
    search: Use | None = None  # for requests that offer no tool of the script but this one
    answer: str = ""  # after the search
    words: str = "A short answer."  # to who offers none of the script's tools
    complaints: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    spoken: Counter[str] = field(default_factory=Counter)  # by model

    def __call__(self, request: Asked) -> Answer:
        if request.path.partition("?")[0].endswith("/count_tokens"):
            return _json(b'{"input_tokens": 1234}')
        try:
            heard = self.tongue.hear(request.json)
        except Complaint as complaint:
            self.complaints.append(str(complaint))
            return _json(self.tongue.complaint(str(complaint)), 400)
        except Declined as declined:
            return _json(declined.body, 400)
        self.heard.append(heard)
        reply = self._reply(heard)
        self.replies.append(reply)
        answer = _streamed(self.tongue.stream(reply)) if heard.streams else _json(self.tongue.whole(reply))
        if self.amend is None or not self._plays(heard):
            return answer
        self.spoken[heard.model] += 1
        return self.amend(answer, heard, self.spoken[heard.model] - 1)

    def _plays(self, heard: Heard) -> bool:
        """Whether this is the conversation of the script, and no title or summary asked for beside it."""
        return any(_find(heard.tools, use.tool) for use in self.script)

    def _reply(self, heard: Heard) -> Reply:
        number, done = len(self.replies) + 1, len(heard.results)
        thought = "The script says what to do next." if heard.thinks else ""
        script, last = self.script, f"Finished. The last tool said: {heard.results[-1] if done else 'nothing'}"
        if not self._plays(heard):
            if self.search is None or not _find(heard.tools, self.search.tool):
                return Reply(number, heard.model, self.words)
            script, last = (self.search,), self.answer
        if done >= len(script):
            return Reply(number, heard.model, last, thought)
        use = script[done]
        tool = _find(heard.tools, use.tool)
        if tool is None:
            return Reply(number, heard.model, f"There is no tool {use.tool} to use.", thought)
        call = ToolCall(f"call_fake{number:04}", tool, _payload(use, tool))
        return Reply(number, heard.model, f"Now I will use the tool {use.tool}, as asked.", thought, call)


def pieces(text: str, size: int = 6) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def seal(protocol: str, number: int) -> str:
    """What only this agent's vendor can read; it must come back exactly, or not at all."""
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
    """By its name, or by the end of a name that a namespace was put in front of."""
    for tool in tools:
        if tool.name == name or tool.name.endswith(f"__{name}"):
            return tool
    return None


def _payload(use: Use, tool: Tool) -> str:
    """A model gives a wrapped freeform tool its text in the one field that the schema names."""
    if isinstance(use.given, str) and not tool.freeform:
        return msgspec.json.encode({tool.fields[0]: use.given}).decode()
    return use.given if isinstance(use.given, str) else msgspec.json.encode(use.given).decode()


def _streamed(body: bytes) -> Answer:
    return Answer(body, cut=419)


def _json(body: bytes, status: int = 200) -> Answer:
    return Answer(body, status=status, content_type="application/json", chunked=False)
