"""A GitHub with Copilot on the loopback: sign-in by code, exchanged tokens, models with endpoints of their own."""

import itertools
import time
from collections import deque
from dataclasses import replace
from typing import ClassVar
from urllib.parse import parse_qs

import msgspec

from fakes import codex
from fakes.service import FakeService, json_answer, plain, stream
from fakes.upstream import Answer, ReceivedRequest

DEVICE = "/login/device/code"
TOKEN = "/login/oauth/access_token"
EXCHANGE = "/copilot_internal/v2/token"
MODELS = "/models"
CHAT = "/chat/completions"
RESPONSES = "/responses"
MESSAGES = "/v1/messages"
CLIENT_ID = "Ov23FAKE"
EDITOR_TOKEN = "ghu_FAKEeditor"
APP_TOKEN = "gho_FAKEapp"
INSTALLATION_TOKEN = "ghs_FAKEinstallation"

LISTED: list[object] = [
    {
        "id": "claude-sonnet-4.5",
        "name": "Claude Sonnet 4.5",
        "vendor": "Anthropic",
        "policy": {"state": "enabled"},
        "supported_endpoints": [CHAT, MESSAGES],
        "capabilities": {
            "type": "chat",
            "limits": {
                "max_context_window_tokens": 200_000,
                "max_prompt_tokens": 168_000,
                "max_output_tokens": 32_000,
            },
        },
    },
    {"id": "gpt-5.5", "name": "GPT-5.5", "vendor": "OpenAI", "supported_endpoints": [RESPONSES, "ws:/responses"]},
    {"id": "gpt-4.1", "name": "GPT-4.1", "capabilities": {"type": "chat"}},
    {"id": "grok-locked", "name": "Locked", "policy": {"state": "unconfigured"}},
    {"id": "embed-small", "capabilities": {"type": "embeddings"}},
    {"id": 7, "name": "malformed"},
]


class FakeCopilot(FakeService):
    def __init__(self) -> None:
        super().__init__()
        self.listed = LISTED
        self.github = {EDITOR_TOKEN, APP_TOKEN, INSTALLATION_TOKEN}
        self.sessions: set[str] = set()
        self.used: set[str] = set()  # refresh tokens that were exchanged already
        self.refresh_in = 1500.0
        self.named_api = "https://api.individual.githubcopilot.com"
        self.device: deque[dict[str, object]] = deque()  # what polling hears before its token
        self.headers: tuple[tuple[str, str], ...] = ()
        self._number = itertools.count(1)

    def section(self, credentials: str | list[str], **settings: object) -> str:
        roots = {"endpoint": self.root, "auth_endpoint": self.root, "control_endpoint": self.root}
        given = {**roots, "credentials": credentials, **settings}
        lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in given.items()]
        return "\n".join(["[providers.copilot]", 'kind = "copilot"', *lines, ""])

    def _device(self, request: ReceivedRequest) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if form.get("client_id") != CLIENT_ID:
            return json_answer({"error": "unauthorized_client"}, 400)
        codes = {"device_code": "fake-device", "user_code": "FAKE-CODE"}
        return json_answer({**codes, "verification_uri": f"{self.root}/device", "expires_in": 900, "interval": 0.1})

    def renewable(self, number: str) -> dict[str, object]:
        """Return what an app whose tokens expire gets."""
        self.github.add(f"ghu_FAKE{number}")
        return {"access_token": f"ghu_FAKE{number}", "refresh_token": f"ghr_FAKE{number}", "expires_in": 28_800}

    def _token(self, request: ReceivedRequest) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if form.get("grant_type") == "refresh_token":
            used = form.get("refresh_token", "")
            if used in self.used or form.get("client_id") != CLIENT_ID:
                return json_answer({"error": "bad_refresh_token"})
            self.used.add(used)
            return json_answer(self.renewable(used.removeprefix("ghr_FAKE") + "x"))
        if self.device:
            return json_answer(self.device.popleft())  # errors come with 200
        return json_answer({"access_token": APP_TOKEN, "token_type": "bearer", "scope": "read:user"})

    def _exchange(self, request: ReceivedRequest) -> Answer:
        if request.headers.get("authorization", "").removeprefix("token ") not in self.github:
            return json_answer({"message": "Bad credentials"}, 401)
        token = f"tid=fake{next(self._number)};exp=1;sku=fake:mac"
        self.sessions.add(token)
        expires = int(time.time() + self.ahead_s + self.refresh_in + 300)
        endpoints = {"api": self.named_api}
        return json_answer(
            {"token": token, "expires_at": expires, "refresh_in": self.refresh_in, "endpoints": endpoints}
        )

    def _models(self, request: ReceivedRequest) -> Answer:
        return self._objection(request) or json_answer({"data": self.listed})

    def _objection(self, request: ReceivedRequest) -> Answer | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        exchanged = token in self.sessions
        if not exchanged and token not in self.github - {EDITOR_TOKEN}:
            return plain("unauthorized: token expired", 401)
        if exchanged and "editor-version" not in request.headers:
            return plain("bad request: missing Editor-Version header for IDE auth", 400)
        return None

    def _reply(self, request: ReceivedRequest) -> Answer:
        body, path = request.json, request.path
        listed = next((m for m in self.listed if isinstance(m, dict) and m.get("id") == body["model"]), None)
        if listed is None:
            return _error("model_not_supported", "The requested model is not supported.")
        if path not in listed.get("supported_endpoints", [CHAT]):
            return _error("unsupported_api_for_model", f"model is not accessible via the {path} endpoint")
        if path == CHAT and "max_tokens" in body and str(body["model"]).startswith("gpt"):
            return _error("invalid_request_body", "Unsupported parameter: 'max_tokens'")
        if path == MESSAGES and b"eager_input_streaming" in request.body:
            return _error("invalid_request_body", "tools.0.eager_input_streaming: Extra inputs are not permitted")
        answer = {CHAT: _chat, RESPONSES: _responses, MESSAGES: _messages}[path](body)
        return replace(answer, headers=(*answer.headers, *self.headers))

    def _inference(self, request: ReceivedRequest) -> Answer:
        return self._objection(request) or self._reply(request)

    usual: ClassVar = {
        DEVICE: _device,
        TOKEN: _token,
        EXCHANGE: _exchange,
        MODELS: _models,
        CHAT: _inference,
        RESPONSES: _inference,
        MESSAGES: _inference,
    }


def _error(code: str, message: str) -> Answer:
    """Return JSON under the type of plain text, as GitHub sometimes does."""
    answer = json_answer({"error": {"message": message, "code": code}}, 400)
    return replace(answer, content_type="text/plain; charset=utf-8")


def _chat(body: dict[str, object]) -> Answer:
    head = {"id": "chatcmpl-fake", "created": 1794700000, "model": body["model"]}
    usage = {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    if not body.get("stream"):
        message = {"role": "assistant", "content": "Hello"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return json_answer({**head, "object": "chat.completion", "choices": choices, "usage": usage})
    chunks: list[dict[str, object]] = [
        {"choices": [], "prompt_filter_results": []},
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hello"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    ]
    encoded = [msgspec.json.encode({**head, "object": "chat.completion.chunk", **chunk}) for chunk in chunks]
    return Answer(b"".join(b"data: %b\n\n" % data for data in [*encoded, b"[DONE]"]))


def _responses(body: dict[str, object]) -> Answer:
    """Return the events with another id of the item in each."""
    if not body.get("stream"):
        return json_answer(codex.snapshot("completed", [codex.item("Hello", "a")]))
    names = iter("abcdefgh")
    events = [_replace_item_id(event, next(names)) for event in codex.text_events("Hello")]
    last = codex.make_completed([codex.item("Hello", next(names))])
    return stream(*codex.number_events(codex.make_created(), *events, last))


def _replace_item_id(event: dict[str, object], id_: str) -> dict[str, object]:
    item = event.get("item")
    if isinstance(item, dict):
        return {**event, "item": {**item, "id": id_}}
    return {**event, "item_id": id_}


def _messages(body: dict[str, object]) -> Answer:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 0, "output_tokens": 7}
    message = {"id": "msg_fake", "type": "message", "role": "assistant", "model": body["model"], "usage": usage}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    if not body.get("stream"):
        return json_answer({**message, "content": [{"type": "text", "text": "Hello"}], **ended})
    return stream(
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": usage},
        {"type": "message_stop"},
    )
