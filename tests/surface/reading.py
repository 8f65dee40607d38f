"""Replies as the grammars of the protocols read them."""

import json

import grammar_chat
import grammar_messages
import grammar_responses
from fakes.upstream import Answer
from rig import Rig
from scripting import Scripted
from wire_json import JsonObject

GRAMMARS = {"chat": grammar_chat, "responses": grammar_responses, "messages": grammar_messages}
TOOL_ENDS = {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"}


def read_reply(gate: Rig, client: str, upstream: str, answer: Answer | Scripted, stream: bool = True) -> JsonObject:
    """Play the answer, ask for it, and return the reply as the client's grammar folds it."""
    gate.play(upstream, answer, stream=stream)
    sealed: JsonObject = {"include": ["reasoning.encrypted_content"]} if client == "responses" else {}
    reply = gate.ask(client, upstream, stream=stream, **sealed)
    assert reply.status == 200, reply.body
    return fold_events(client, reply.body) if stream else GRAMMARS[client].whole(reply.body)


def fold_events(client: str, body: bytes) -> JsonObject:
    """Return the reply of a stream; raises Illegal if it violates the grammar."""
    return grammar_chat.fold(body, usage_requested=True) if client == "chat" else GRAMMARS[client].fold(body)


def calls_in(client: str, reply: JsonObject) -> list[tuple[str, str, object]]:
    """Id, name and arguments of every call, in order."""
    match client:
        case "chat":
            found = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in reply["calls"]]
        case "responses":
            items = [item for item in reply["output"] if item["type"] == "function_call"]
            found = [(item["call_id"], item["name"], item["arguments"]) for item in items]
        case _:
            blocks = [part for part in reply["content"] if part["type"] == "tool_use"]
            return [(part["id"], part["name"], part["input"]) for part in blocks]
    return [(id, name, json.loads(arguments)) for id, name, arguments in found]


def text_in(client: str, reply: JsonObject) -> str | None:
    match client:
        case "chat":
            text: str | None = reply["content"]
            return text
        case "responses":
            parts = [part for item in reply["output"] if item["type"] == "message" for part in item["content"]]
        case _:
            parts = [part for part in reply["content"] if part["type"] == "text"]
    return "".join(part["text"] for part in parts) or None


def read_broken_text(client: str, body: bytes) -> str:
    """Return the text of a stream before its error; raises Illegal if it ends otherwise."""
    text: str = GRAMMARS[client].fold_broken(body)[0]
    return text


def end_in(client: str, reply: JsonObject) -> str:
    ended: str = reply[{"chat": "finish", "messages": "stop", "responses": "status"}[client]]
    return ended
