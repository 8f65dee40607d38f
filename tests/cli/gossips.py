"""Vendors on the loopback that repeat every secret they are sent, in whatever way they are told to."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote, urlsplit

import msgspec

from fakes.codex import FakeCodex
from fakes.copilot import FakeCopilot
from fakes.eventstream import exception
from fakes.kiro import FakeKiro, framed, words
from fakes.service import json_answer, stream
from fakes.upstream import Answer, Asked, FakeUpstream
from wire_json import JsonObject

TELLING = ("authorization", "x-api-key", "x-team", "x-tenant", "proxy-authorization", "chatgpt-account-id")
TOKEN_PATHS = ("/refreshToken", "/token", "/oauth/token", "/login/oauth/access_token", "/copilot_internal/v2/token")
MODES = ("good", "401", "403", "400", "429", "500", "quota", "cut", "refresh")

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
MESSAGE: JsonObject = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


def heard(asked: Asked) -> str:
    """All that the request gives away: its credentials, and for a token service the whole question."""
    said = " ".join(asked.headers[name] for name in TELLING if name in asked.headers)
    if urlsplit(asked.path).path in TOKEN_PATHS:
        return f"{said} {asked.body.decode()}"
    words = said.split()
    return " ".join([said, *(quote(word, safe="") for word in words), b64encode(said.encode()).decode()])


def gossip(mode: str, asked: Asked, usual: Callable[[], Answer]) -> Answer:
    """The usual answer, its headers telling what was heard; or a bad one, full of it."""
    said, path = heard(asked), urlsplit(asked.path).path
    told = (("x-heard", said.replace("\n", " ")[:4000]),)
    renews = path in TOKEN_PATHS
    if mode == "good" or renews != (mode == "refresh"):
        answer = usual()
        return replace(answer, headers=(*answer.headers, *told))
    if mode == "refresh":
        return json_answer({"error": "invalid_grant", "error_description": said, "message": said}, 400, told)
    if mode == "500":
        return Answer(f"<html><title>{said}</title><p>{said}</html>".encode(), 500, "text/html", told)
    if mode == "cut":
        return replace(_cut(path, said), headers=told, cut=7)
    error = {"message": f"You sent {said}", "type": "api_error", "code": said, "param": said}
    if mode == "quota":
        error["type"] = "insufficient_quota"
    body = {"type": "error", "error": error, "reason": None, "detail": {"seen": said}}
    return json_answer(body, 200 if mode == "quota" else int(mode), (*told, ("retry-after", "60")))


def _cut(path: str, said: str) -> Answer:
    """A reply that begins well and breaks off with an error."""
    if path.endswith("/generateAssistantResponse"):
        return framed(words("Hel"), exception("InternalServerException", {"message": said}))
    error = {"type": "api_error", "message": said, "code": said}
    if path.endswith("/messages"):
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}
        return stream({"type": "message_start", "message": MESSAGE}, block, delta, {"type": "error", "error": error})
    if path.endswith("/responses"):
        begun = {"id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "model": "m"}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        return stream(
            {"type": "response.created", "response": {**begun, "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_text.delta", **place, "delta": "Hel"},
            {"type": "response.failed", "response": {**begun, "status": "failed", "output": [], "error": error}},
        )
    begun = {
        **CHUNK,
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hel"}, "finish_reason": None}],
    }
    events = b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in (begun, {"error": error}))
    return Answer(events)


class Vendor(FakeUpstream):
    """A server of the three protocols that says Hello; as a proxy it is asked with whole URLs."""

    mode = "good"

    def _answer(self, asked: Asked) -> Answer:
        return gossip(self.mode, asked, lambda: self._hello(asked))

    def _hello(self, asked: Asked) -> Answer:
        if asked.method == "GET":
            return json_answer({"object": "list", "data": [{"id": "m", "object": "model", "created": 1}]})
        path, streamed = urlsplit(asked.path).path, asked.json.get("stream")
        if path.endswith("/count_tokens"):
            return json_answer({"input_tokens": 3})
        if path.endswith("/messages"):
            content = [{"type": "text", "text": "Hello"}]
            return json_answer({**MESSAGE, "content": content, "stop_reason": "end_turn"})
        if path.endswith("/responses"):
            part = {"type": "output_text", "text": "Hello", "annotations": []}
            item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            done = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "m"}
            return json_answer({**done, "output": [item], "usage": usage})
        if not streamed:
            message = {"role": "assistant", "content": "Hello"}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            return json_answer({**CHUNK, "object": "chat.completion", "choices": choices, "usage": USAGE})
        deltas: tuple[tuple[JsonObject, str | None], ...] = (
            ({"role": "assistant", "content": "Hello"}, None),
            ({}, "stop"),
        )
        chunks = [{**CHUNK, "choices": [{"index": 0, "delta": d, "finish_reason": f}]} for d, f in deltas]
        data = [*map(msgspec.json.encode, chunks), b"[DONE]"]
        return Answer(b"".join(b"data: %b\n\n" % each for each in data))


class GossipingKiro(FakeKiro):
    mode = "good"

    def _answer(self, asked: Asked) -> Answer:
        return gossip(self.mode, asked, lambda: FakeKiro._answer(self, asked))


class GossipingCodex(FakeCodex):
    mode = "good"

    def _answer(self, asked: Asked) -> Answer:
        return gossip(self.mode, asked, lambda: FakeCodex._answer(self, asked))


class GossipingCopilot(FakeCopilot):
    mode = "good"

    def _answer(self, asked: Asked) -> Answer:
        return gossip(self.mode, asked, lambda: FakeCopilot._answer(self, asked))
