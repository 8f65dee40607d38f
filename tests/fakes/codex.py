"""A ChatGPT backend and its sign-in on the loopback: tokens that rotate, and every refusal that is known of it."""

import base64
import itertools
import time
from collections import deque
from dataclasses import replace
from typing import ClassVar
from urllib.parse import parse_qs

import msgspec

from fakes.service import FakeService, json_answer, plain, stream
from fakes.upstream import Answer, ReceivedRequest
from wire_json import JsonObject

RESPONSES = "/backend-api/codex/responses"
MODELS = "/backend-api/codex/models"
USAGE = "/backend-api/wham/usage"
TOKEN = "/oauth/token"
USER_CODE = "/api/accounts/deviceauth/usercode"
DEVICE_TOKEN = "/api/accounts/deviceauth/token"
CLIENT_ID = "app_EMoamEEZ73f0CkXaXp7hrann"
ACCOUNT = "acct-fake-1"
NO_SUMMARIES = {"supports_reasoning_summary_parameter": False}

TAKEN = {
    *("model", "instructions", "input", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "store", "stream"),
    *("stream_options", "include", "service_tier", "prompt_cache_key", "text", "client_metadata"),
}


def jwt(**claims: object) -> str:
    """Return a JWT without a valid signature."""
    parts = (msgspec.json.encode({"alg": "none"}), msgspec.json.encode(claims), b"fake-signature")
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def auth(account: str = ACCOUNT, plan: str = "plus") -> dict[str, object]:
    return {"https://api.openai.com/auth": {"chatgpt_account_id": account, "chatgpt_plan_type": plan}}


def item(text: str, id_: str = "msg_1") -> dict[str, object]:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": id_, "role": "assistant", "status": "completed", "content": content}


def snapshot(status: str, output: list[object] | None = None) -> dict[str, object]:
    """Return a response object with every field that the SDK needs."""
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 18,
    }
    return {
        "id": "resp_fake",
        "object": "response",
        "created_at": 1794700000,
        "model": "gpt-5.5",
        "status": status,
        "output": output or [],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "usage": usage if status == "completed" else None,
    }


def number_events(*events: dict[str, object]) -> list[dict[str, object]]:
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def make_created() -> dict[str, object]:
    return {"type": "response.created", "response": snapshot("in_progress")}


def make_completed(output: list[object] | None = None) -> dict[str, object]:
    """This backend leaves its last output empty."""
    return {"type": "response.completed", "response": snapshot("completed", output)}


def make_item_done(index: int, text: str) -> dict[str, object]:
    return {"type": "response.output_item.done", "output_index": index, "item": item(text, f"msg_{index}")}


def text_events(text: str, index: int = 0) -> list[dict[str, object]]:
    id_ = f"msg_{index}"
    place = {"item_id": id_, "output_index": index, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": {**item("", id_), "content": []}},
        {"type": "response.content_part.added", **place, "part": part},
        {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []},
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": {**part, "text": text}},
        make_item_done(index, text),
    ]


def reply(text: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    return stream(*number_events(make_created(), *text_events(text), make_completed()), headers=headers)


class FakeCodex(FakeService):
    """Answers requests that it accepts with `replies` in order, and repeats the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[Answer] = [reply("Hello")]
        self.access: set[str] = set()
        self.refresh: set[str] = set()
        self.used: set[str] = set()  # refresh tokens that were exchanged already
        self.rotates = True
        self.account = ACCOUNT
        self.life_s = 3600.0
        self.device: deque[Answer] = deque()  # what a device's polling hears before its code
        self.headers: tuple[tuple[str, str], ...] = ()
        self._played = 0
        self._number = itertools.count(1)

    @property
    def endpoint(self) -> str:
        return f"{self.root}/backend-api/codex"

    @property
    def bodies(self) -> list[JsonObject]:
        return [request.json for request in self.at(RESPONSES)]

    def play(self, *replies: Answer) -> None:
        self.replies, self._played = list(replies), 0
        self.requests.clear()
        self.counts.clear()

    def issue(self, life_s: float | None = None) -> dict[str, object]:
        """Return new tokens as the service would send them."""
        number = next(self._number)
        expires = int(time.time() + self.ahead_s + (self.life_s if life_s is None else life_s))
        access = jwt(exp=expires, jti=f"fake-access-{number}", **auth(self.account))
        refresh = f"rt_FAKE-{number}"
        self.access.add(access)
        self.refresh.add(refresh)
        return {"id_token": jwt(**auth(self.account)), "access_token": access, "refresh_token": refresh}

    def auth_file(self, life_s: float = 3600.0, **more: object) -> JsonObject:
        """Write the file that `codex login` writes."""
        tokens = {**self.issue(life_s), "account_id": self.account}
        return {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": tokens, **more}

    def section(self, credentials: str | list[str], **settings: object) -> str:
        given = {"endpoint": self.endpoint, "auth_endpoint": self.root, "credentials": credentials, **settings}
        lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in given.items()]
        return "\n".join(["[providers.codex]", 'kind = "codex"', *lines, ""])

    def _token(self, request: ReceivedRequest) -> Answer:
        form = request.headers.get("content-type", "").startswith("application/x-www-form")
        fields = {name: values[0] for name, values in parse_qs(request.body.decode()).items()} if form else request.json
        if fields.get("client_id") != CLIENT_ID:
            return json_answer({"error": {"code": "invalid_client"}}, 400)
        if fields.get("grant_type") == "authorization_code":
            if fields.get("code") != "fake-code" or not fields.get("code_verifier"):
                return json_answer({"error": "invalid_grant"}, 400)
            return json_answer({**self.issue(), "expires_in": self.life_s})
        used = str(fields.get("refresh_token"))
        if used in self.used:
            return json_answer({"error": {"code": "refresh_token_reused", "message": "It was used."}}, 401)
        if used not in self.refresh:
            return json_answer({"error": {"code": "refresh_token_invalidated"}}, 401)
        tokens = self.issue()
        if self.rotates:
            self.refresh.discard(used)
            self.used.add(used)
        else:
            del tokens["refresh_token"]
        return json_answer(tokens)

    def _user_code(self, request: ReceivedRequest) -> Answer:
        return json_answer({"device_auth_id": "fake-device", "user_code": "FAKE-CODE", "interval": "5"})

    def _device_token(self, request: ReceivedRequest) -> Answer:
        if request.json != {"device_auth_id": "fake-device", "user_code": "FAKE-CODE"}:
            return json_answer({"error": {"code": "unknown"}}, 400)
        if self.device:
            return self.device.popleft()
        pair = {"code_challenge": "fake-challenge", "code_verifier": "fake-verifier-of-the-service"}
        return json_answer({"authorization_code": "fake-code", **pair})

    def _is_known(self, request: ReceivedRequest) -> bool:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        return token in self.access and request.headers.get("chatgpt-account-id") == self.account

    def _responses(self, request: ReceivedRequest) -> Answer:
        if "upgrade" in request.headers:
            return plain("Upgrade Required", 426)
        if not self._is_known(request):
            return json_answer({"error": {"code": "token_invalidated", "message": "Sign in again."}}, 401)
        objection = objection_to(request.json)
        if objection:
            return json_answer({"detail": objection}, 400)
        self._played += 1
        answer = self.replies[min(self._played, len(self.replies)) - 1]
        return replace(answer, headers=(*answer.headers, *self.headers))

    def _models(self, request: ReceivedRequest) -> Answer:
        if not self._is_known(request):
            return json_answer({"detail": "Unauthorized"}, 401)
        levels = [
            {"effort": effort, "description": ""} for effort in ("low", "medium", "high", "xhigh", "max", "ultra")
        ]
        listed = [
            {"slug": "gpt-5.5", "display_name": "GPT-5.5", "visibility": "list", "context_window": 272_000},
            {"slug": "gpt-5.5-deep", "supported_reasoning_levels": levels},
            {"slug": "gpt-5.5-plain", "supported_reasoning_levels": levels[:2], **NO_SUMMARIES},
            {"slug": "codex-auto-review", "visibility": "hide"},
        ]
        return json_answer({"models": listed if "client_version=" in request.path else []})

    def _usage(self, request: ReceivedRequest) -> Answer:
        window = {"used_percent": 42, "limit_window_seconds": 18_000, "reset_after_seconds": 60}
        return json_answer({"plan_type": "plus", "rate_limit": {"limit_reached": False, "primary_window": window}})

    usual: ClassVar = {
        TOKEN: _token,
        USER_CODE: _user_code,
        DEVICE_TOKEN: _device_token,
        RESPONSES: _responses,
        MODELS: _models,
        USAGE: _usage,
    }


def objection_to(body: dict[str, object]) -> str | None:
    """Return the backend's error for a body that it does not take."""
    unknown = [name for name in body if name not in TAKEN]
    if unknown:
        return f"Unsupported parameter: {unknown[0]}"
    if not body.get("instructions"):
        return "Instructions are required"
    if body.get("store") is not False:
        return "Store must be set to false"
    if body.get("stream") is not True:
        return "Stream must be set to true"
    given = body.get("input")
    if not isinstance(given, list):
        return "Input must be a list"
    if any(part.get("role") == "system" for part in given):
        return "System messages are not allowed"
    if b'"prompt_cache_breakpoint"' in msgspec.json.encode(given):
        return "Unsupported parameter: prompt_cache_breakpoint"
    if any(part.get("type") == "reasoning" and not part.get("encrypted_content") for part in given):
        return "Item not found: items are not persisted when store is false"
    return None
