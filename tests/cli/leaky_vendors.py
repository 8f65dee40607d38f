"""Fake vendors that repeat every secret they receive, in the headers, bodies and streams of their responses."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote, urlsplit

import msgspec

from fakes.codex import FakeCodex
from fakes.copilot import FakeCopilot
from fakes.eventstream import exception
from fakes.google import FakeGoogle
from fakes.kiro import FakeKiro, make_framed, words
from fakes.service import json_answer, stream
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from scripting import Scripted, write_reply
from scripting.replies import ToolCall
from wire_json import JsonObject

SECRET_HEADERS = ("authorization", "x-api-key", "x-team", "x-tenant", "proxy-authorization", "chatgpt-account-id")
GOOGLE_HEADERS = ("x-goog-api-key", "x-goog-user-project")
TOKEN_PATHS = ("/refreshToken", "/token", "/oauth/token", "/login/oauth/access_token", "/copilot_internal/v2/token")
MODES = ("good", "401", "403", "400", "429", "500", "quota", "cut", "refresh")

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


def secrets_of(request: ReceivedRequest) -> str:
    """Return the secrets of a request: its credentials, and for a token service the whole body."""
    secrets = " ".join(request.headers[name] for name in (*SECRET_HEADERS, *GOOGLE_HEADERS) if name in request.headers)
    if urlsplit(request.path).path in TOKEN_PATHS:
        return f"{secrets} {request.body.decode()}"
    parts = secrets.split()
    return " ".join([secrets, *(quote(part, safe="") for part in parts), b64encode(secrets.encode()).decode()])


def repeat_secrets(mode: str, request: ReceivedRequest, usual: Callable[[], Answer]) -> Answer:
    """Return the usual response with the secrets in a header, or a failure that is full of them."""
    secrets, path = secrets_of(request), urlsplit(request.path).path
    headers = (("x-received", secrets.replace("\n", " ")[:4000]),)
    is_token_request = path in TOKEN_PATHS
    if mode == "good" or is_token_request != (mode == "refresh"):
        answer = usual()
        return replace(answer, headers=(*answer.headers, *headers))
    if mode == "refresh":
        return json_answer({"error": "invalid_grant", "error_description": secrets, "message": secrets}, 400, headers)
    if mode == "500":
        return Answer(f"<html><title>{secrets}</title><p>{secrets}</html>".encode(), 500, "text/html", headers)
    if mode == "cut":
        return replace(_cut(path, secrets), headers=headers, cut=7)
    error = {"message": f"You sent {secrets}", "type": "api_error", "code": secrets, "param": secrets}
    if mode == "quota":
        error["type"] = "insufficient_quota"
    body = {"type": "error", "error": error, "reason": None, "detail": {"seen": secrets}}
    return json_answer(body, 200 if mode == "quota" else int(mode), (*headers, ("retry-after", "60")))


def _cut(path: str, secrets: str) -> Answer:
    """Return a reply that ends with an error after its first words."""
    if path.endswith("/generateAssistantResponse"):
        return make_framed(words("Hel"), exception("InternalServerException", {"message": secrets}))
    error = {"type": "api_error", "message": secrets, "code": secrets}
    if path.endswith("GenerateContent"):
        opened: JsonObject = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hel"}]}, "index": 0}]}
        failed = msgspec.json.encode({"error": {"code": 500, "message": secrets, "status": secrets}})
        return Answer(b"data: %b\n\n%b" % (msgspec.json.encode(opened), failed))
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
    """A server of the three protocols that replies Hello, also as a proxy, whose requests have whole URLs."""

    mode = "good"

    def _answer(self, request: ReceivedRequest) -> Answer:
        return repeat_secrets(self.mode, request, lambda: self._hello(request))

    def _hello(self, request: ReceivedRequest) -> Answer:
        if urlsplit(request.path).path.endswith("/search"):
            text = f"You sent {secrets_of(request)}"
            return json_answer({"results": [{"url": "https://a.example/", "title": text, "content": text}]})
        if request.method == "GET":
            return json_answer({"object": "list", "data": [{"id": "m", "object": "model", "created": 1}]})
        path = urlsplit(request.path).path
        if path.endswith("/count_tokens"):
            return json_answer({"input_tokens": 3})
        protocol = path.rpartition("/")[2].replace("completions", "chat")
        searches = b'"web_search"' in request.body and b'"role":"tool"' not in request.body
        reply: Scripted = [ToolCall("call_1", "web_search", '{"query": "keys"}')] if searches else "Hello"
        return write_reply(protocol, reply, stream=bool(request.json.get("stream")))


class LeakyKiro(FakeKiro):
    mode = "good"

    def _answer(self, request: ReceivedRequest) -> Answer:
        return repeat_secrets(self.mode, request, lambda: FakeKiro._answer(self, request))


class LeakyCodex(FakeCodex):
    mode = "good"

    def _answer(self, request: ReceivedRequest) -> Answer:
        return repeat_secrets(self.mode, request, lambda: FakeCodex._answer(self, request))


class LeakyCopilot(FakeCopilot):
    mode = "good"

    def _answer(self, request: ReceivedRequest) -> Answer:
        return repeat_secrets(self.mode, request, lambda: FakeCopilot._answer(self, request))


class LeakyGoogle(FakeGoogle):
    mode = "good"

    def _answer(self, request: ReceivedRequest) -> Answer:
        return repeat_secrets(self.mode, request, lambda: FakeGoogle._answer(self, request))
