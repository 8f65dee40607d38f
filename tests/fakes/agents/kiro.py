"""The server's side of Kiro: read requests, write replies in event-stream frames."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from fakes.agent import Agent, AgentRequest, Complaint, Json, Reply, Tool, objects, pieces, schema_fields, seal
from fakes.eventstream import event
from fakes.kiro import EVENT_STREAM, FakeKiro, tail, tool, words
from fakes.upstream import Answer, ReceivedRequest


class KiroAgent(FakeKiro):
    """A Kiro whose chat is an agent's; its tokens, models and profiles are the usual ones."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    @property
    def calls(self) -> list[ReceivedRequest]:
        return self.chats

    def _answer(self, request: ReceivedRequest) -> Answer:
        usual = super()._answer(request)
        if request.path != "/generateAssistantResponse" or usual.status != 200:
            return usual
        answer = self.agent(request)
        streams = answer.content_type == "text/event-stream"
        return replace(answer, content_type=EVENT_STREAM) if streams else answer


def read_request(body: Json) -> AgentRequest:
    state = _object(body.get("conversationState"))
    current = _object(_object(state.get("currentMessage")).get("userInputMessage"))
    last: Json = {"userInputMessage": current}
    turns = [*objects(state.get("history")), last]
    if _has_empty(body):
        raise Complaint("Improperly formed request: nulls and empty lists")
    results = tuple(_check(turns))
    fields = _object(body.get("additionalModelRequestFields"))
    offered = objects(_object(current.get("userInputMessageContext")).get("tools"))
    return AgentRequest(
        model=str(current["modelId"]),
        tools=tuple(_tool(_object(entry["toolSpecification"])) for entry in offered),
        results=results,
        streams=True,
        thinks=_object(fields.get("thinking")).get("type") == "adaptive",
    )


def _check(turns: list[Json]) -> Iterator[str]:
    """The results of tools, if the turns are in order."""
    owed: list[object] = []
    for place, turn in enumerate(turns):
        kind = ("userInputMessage", "assistantResponseMessage")[place % 2]
        if tuple(turn) != (kind,):
            raise Complaint(f"Improperly formed request: turn {place} is no {kind}")
        message = _object(turn[kind])
        if not message.get("content"):
            raise Complaint(f"Improperly formed request: turn {place} has no content")
        if place % 2:
            owed = [use["toolUseId"] for use in objects(message.get("toolUses"))]
            continue
        results = objects(_object(message.get("userInputMessageContext")).get("toolResults"))
        if sorted(str(result["toolUseId"]) for result in results) != sorted(map(str, owed)):
            raise Complaint(f"Improperly formed request: turn {place} does not answer {owed}")
        yield from ("".join(str(part.get("text", "")) for part in objects(result["content"])) for result in results)


def _tool(tool: Json) -> Tool:
    schema = _object(tool["inputSchema"]).get("json")
    if not tool.get("description") or _object(schema).get("type") != "object":
        raise Complaint(f"Improperly formed request: tool {tool.get('name')}")
    return Tool(str(tool["name"]), fields=schema_fields(schema))


def _has_empty(value: object) -> bool:
    """Within the conversation; the input of a tool and its schema are the client's own."""
    if isinstance(value, dict):
        inner = (item for name, item in value.items() if name not in ("input", "json"))
        return any(item is None or item == [] or _has_empty(item) for item in inner)
    return isinstance(value, list) and any(map(_has_empty, value))


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def stream(reply: Reply) -> bytes:
    return b"".join(_frames(reply))


def whole(reply: Reply) -> bytes:
    raise AssertionError("Kiro has only streams")


def complaint(message: str) -> bytes:
    return msgspec.json.encode({"message": message, "reason": None})


def _frames(reply: Reply) -> Iterator[bytes]:
    yield event("messageMetadataEvent", {"conversationId": f"fake-{reply.number}"})
    for piece in pieces(reply.thought):
        yield event("reasoningContentEvent", {"text": piece})
    if reply.thought:
        yield event("reasoningContentEvent", {"signature": seal("kiro", reply.number)})
    for piece in pieces(reply.text):
        yield words(piece)
    if (call := reply.call) is not None:
        yield tool(f"tooluse_{call.id}", call.tool.name, input="")
        for piece in pieces(call.payload):
            yield tool(f"tooluse_{call.id}", call.tool.name, input=piece)
        yield tool(f"tooluse_{call.id}", call.tool.name, stop=True)
    used = {"uncachedInputTokens": reply.input_tokens, "outputTokens": reply.output_tokens}
    yield tail("END_TURN" if reply.call is None else "TOOL_USE", **used, totalTokens=sum(used.values()))
