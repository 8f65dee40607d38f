"""A Kiro on the loopback: replies in real frames, tokens that rotate, sign-in, models, profiles and usage.

By hand: `cd tests && python -m fakes.kiro --port 9400`; README.md beside this folder says the rest.
"""

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Unpack
from urllib.parse import parse_qs, urlsplit

import click
import msgspec

from dragoman.upstreams.credentials.credential import format_timestamp
from fakes.eventstream import event
from fakes.upstream import Answer, Delivery, FakeUpstream, ReceivedRequest
from wire_json import JsonObject

EVENT_STREAM = "application/vnd.amazon.eventstream"
ARN = "arn:aws:codewhisperer:us-east-1:123456789012:profile/FAKEPROFILE"
SEED = "aorFAKE-refresh-token-0-" + "0" * 120
LIFE_S = 3600

NATIVE = {
    "type": "object",
    "properties": {
        "thinking": {
            "type": "object",
            "properties": {"type": {"enum": ["adaptive", "disabled"]}, "display": {"enum": ["summarized", "omitted"]}},
        },
        "output_config": {"type": "object", "properties": {"effort": {"enum": ["low", "medium", "high"]}}},
        "max_tokens": {"type": "integer", "maximum": 64000},
    },
}
MODELS: list[JsonObject] = [
    {
        "modelId": "auto",
        "modelName": "Auto",
        "tokenLimits": {"maxInputTokens": 200_000, "maxOutputTokens": 64_000},
    },
    {
        "modelId": "claude-sonnet-4.5",
        "modelName": "Claude Sonnet 4.5",
        "rateMultiplier": 1.3,
        "rateUnit": "Credit",
        "tokenLimits": {"maxInputTokens": 200_000, "maxOutputTokens": 64_000},
    },
    {
        "modelId": "claude-opus-4.6",
        "modelName": "Claude Opus 4.6",
        "tokenLimits": {"maxInputTokens": 1_000_000, "maxOutputTokens": 128_000},
        "additionalModelRequestFieldsSchema": msgspec.json.encode(NATIVE).decode(),
    },
]
SEARCH_TOOL: JsonObject = {
    "name": "web_search",
    "description": "WebSearch looks up information that is outside the model's training data.",
    "inputSchema": {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "The search query to execute"}},
        "required": ["query"],
    },
}
USAGE = {
    "nextDateReset": 1_893_456_000.0,
    "usageBreakdownList": [
        {"resourceType": "CREDIT", "currentUsageWithPrecision": 12.5, "usageLimitWithPrecision": 50.0},
    ],
    "subscriptionInfo": {"subscriptionTitle": "KIRO FAKE"},
}


def json_answer(value: object, status: int = 200, delay_s: float = 0.0) -> Answer:
    body = msgspec.json.encode(value)
    return Answer(body, status=status, content_type="application/json", chunked=False, delay_s=delay_s)


def refusal(status: int, message: str, reason: str | None = None, kind: str = "ValidationException") -> Answer:
    """An error in Kiro's own shape."""
    answer = json_answer({"message": message, "reason": reason}, status)
    return replace(answer, headers=(("x-amzn-errortype", f"{kind}:http://internal/"),))


INVALID_BEARER = refusal(403, "The bearer token included in the request is invalid.", kind="AccessDeniedException")


def make_framed(*frames: bytes, **how: Unpack[Delivery]) -> Answer:
    """A reply made of these frames."""
    return Answer(b"".join(frames), content_type=EVENT_STREAM, **how)


def words(text: str) -> bytes:
    return event("assistantResponseEvent", {"content": text, "modelId": "claude-sonnet-4.5"})


def tool(id: str, name: str | None = None, **fields: object) -> bytes:
    named = {} if name is None else {"name": name}
    return event("toolUseEvent", {"toolUseId": id, **named, **fields})


def tail(stop: str = "END_TURN", percentage: float = 2.0, **usage: int) -> bytes:
    """The three events with which a whole reply ends."""
    metadata: dict[str, object] = {"stopReason": stop}
    if usage:
        metadata["tokenUsage"] = usage
    return (
        event("metadataEvent", metadata)
        + event("contextUsageEvent", {"contextUsagePercentage": percentage})
        + event("meteringEvent", {"unit": "credit", "unitPlural": "credits", "usage": 0.01})
    )


def sign(file: Path, access: str, refresh: str, life_s: float) -> None:
    """Write a credential file as the desktop's sign-in does."""
    table = {
        "accessToken": access,
        "refreshToken": refresh,
        "expiresAt": format_timestamp(time.time() + life_s),
        "authMethod": "social",
        "profileArn": ARN,
    }
    file.write_bytes(msgspec.json.encode(table))


class FakeKiro(FakeUpstream):
    """Answers chat requests with `replies` in order, and repeats the last one; without any, repeats the last message.

    `script(path, …)` prepares answers that a path gives before its usual ones; `before[path]` is called
    when a request for it has come.
    """

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[Answer] = []
        self.played = 0
        self.access: set[str] = set()
        self.refresh: set[str] = {SEED}
        self.counts: Counter[str] = Counter()
        self.before: dict[str, Callable[[], object]] = {}
        self.life_s = LIFE_S
        self.refresh_delay_s = 0.0
        self.rotates = True
        self.profiles = [ARN]
        self.listed = list(MODELS)
        self.page = 2
        self.has_operations = True  # whether operations may be named in a header; older hosts have paths only
        self.tools: list[JsonObject] = [SEARCH_TOOL]  # that the MCP operation lists
        self.found: JsonObject = {"results": [], "totalResults": 0, "query": "", "error": None}  # by a web search
        self.device: deque[str] = deque()  # what a device's polling hears before its tokens
        self._scripts: dict[str, deque[Answer]] = {}
        self._number = itertools.count(1)

    @property
    def root(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def chats(self) -> list[ReceivedRequest]:
        return [request for request in self.requests if _path(request) == "/generateAssistantResponse"]

    def script(self, path: str, *answers: Answer) -> None:
        self._scripts.setdefault(path, deque()).extend(answers)

    def issue(self) -> dict[str, object]:
        """A new pair of tokens; what was issued before stays good until it is used or revoked."""
        number = next(self._number)
        access, refresh = f"aoaFAKE-access-token-{number}", f"aorFAKE-refresh-token-{number}-" + "0" * 120
        self.access.add(access)
        self.refresh.add(refresh)
        return {"accessToken": access, "refreshToken": refresh, "expiresIn": self.life_s, "tokenType": "Bearer"}

    def sign_in(self, file: Path, life_s: float = 7200.0) -> str:
        """Write a new pair of tokens into a credential file, and return its path."""
        tokens = self.issue()
        sign(file, str(tokens["accessToken"]), str(tokens["refreshToken"]), life_s)
        return str(file)

    def section(self, credentials: str, name: str = "kiro", **settings: object) -> str:
        """The lines of a dragoman.toml that point here."""
        given = {"endpoint": self.root, "control_endpoint": self.root, "auth_endpoint": self.root, **settings}
        lines = [f"[providers.{name}]", 'kind = "kiro"', f'credentials = "{credentials}"']
        return "\n".join(
            [*lines, *(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in given.items()), ""]
        )

    def _answer(self, request: ReceivedRequest) -> Answer:
        path = _path(request)
        self.counts[path] += 1
        if path in self.before:
            self.before[path]()
        if self._scripts.get(path) and b'"tools/list"' not in request.body:
            return self._scripts[path].popleft()
        if path in self._open_paths:
            return self._open_paths[path](self, request)
        if path not in self._paths or (path == "/invokeMCP" and not self.has_operations):
            return json_answer({"message": "Not found"}, 404)
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        return self._paths[path](self, request) if bearer in self.access else INVALID_BEARER

    def _chat(self, request: ReceivedRequest) -> Answer:
        if not self.replies:
            return _demonstration(request)
        self.played += 1
        return self.replies[min(self.played, len(self.replies)) - 1]

    def _models(self, request: ReceivedRequest) -> Answer:
        query = parse_qs(urlsplit(request.path).query)
        start = (
            int(query.get("nextToken", ["0"])[0]) if not request.body else int(str(request.json.get("nextToken", "0")))
        )
        page: dict[str, object] = {
            "models": self.listed[start : start + self.page],
            "defaultModel": {"modelId": "auto"},
        }
        if start + self.page < len(self.listed):
            page["nextToken"] = str(start + self.page)
        return json_answer(page)

    def _profiles(self, request: ReceivedRequest) -> Answer:
        return json_answer({"profiles": [{"arn": arn, "profileName": "fake"} for arn in self.profiles]})

    def _usage(self, request: ReceivedRequest) -> Answer:
        return json_answer(USAGE)

    def _tool_call(self, request: ReceivedRequest) -> Answer:
        """The MCP operation: JSON-RPC with the profile in the body, or at the older path with it in a header."""
        message = request.json
        named = "x-amz-target" in request.headers
        expected = "application/x-amz-json-1.0" if named else "application/json"
        profile = message.pop("profileArn", None) if named else request.headers.get("x-amzn-kiro-profile-arn")
        if request.headers.get("content-type") != expected or profile != ARN:
            return refusal(400, "profileArn is required for this request.")
        if message.keys() != {"jsonrpc", "id", "method", "params"}:
            return refusal(400, "Improperly formed request.")
        if message["method"] == "tools/list" and message["params"] == {}:
            return json_answer({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": self.tools}})
        assert message["method"] == "tools/call"
        assert message["params"]["name"] == "web_search"
        written = {**self.found, "query": message["params"]["arguments"]["query"]}
        result = {"content": [{"type": "text", "text": msgspec.json.encode(written).decode()}], "isError": False}
        return json_answer({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _desktop(self, request: ReceivedRequest) -> Answer:
        used = request.json.get("refreshToken")
        if used not in self.refresh:
            return json_answer({"message": "Invalid refresh token provided"}, 400)
        return self._renew(str(used), profileArn=ARN)

    def _renew(self, used: str, **more: object) -> Answer:
        tokens = {**self.issue(), **more}
        if self.rotates:
            self.refresh.discard(used)
        else:
            del tokens["refreshToken"]
        return json_answer(tokens, delay_s=self.refresh_delay_s)

    def _token(self, request: ReceivedRequest) -> Answer:
        question = request.json
        if question.get("clientSecret") != "fake-client-secret":
            return json_answer({"error": "invalid_client"}, 401)
        if question.get("grantType") == "refresh_token":
            used = str(question.get("refreshToken"))
            if used not in self.refresh:
                return json_answer({"error": "invalid_grant", "error_description": "Invalid refresh token"}, 400)
            return self._renew(used)
        if self.device:
            return json_answer({"error": self.device.popleft()}, 400)
        return json_answer(self.issue())

    def _register(self, request: ReceivedRequest) -> Answer:
        return json_answer(
            {"clientId": "fake-client", "clientSecret": "fake-client-secret", "clientSecretExpiresAt": 4_102_444_800}
        )

    def _device(self, request: ReceivedRequest) -> Answer:
        page = f"{self.root}/device"
        return json_answer(
            {
                "deviceCode": "fake-device-code",
                "userCode": "FAKE-CODE",
                "verificationUri": page,
                "verificationUriComplete": f"{page}?user_code=FAKE-CODE",
                "expiresIn": 600,
                "interval": 0.1,
            }
        )

    def _social(self, request: ReceivedRequest) -> Answer:
        if request.json.get("code") != "fake-code" or not request.json.get("code_verifier"):
            return json_answer({"message": "Invalid code"}, 400)
        return json_answer({**self.issue(), "profileArn": ARN})

    def _external(self, request: ReceivedRequest) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if form.get("grant_type") != "refresh_token" or form.get("refresh_token") not in self.refresh:
            return json_answer({"error": "invalid_grant"}, 400)
        tokens = self.issue()
        snake = {"access_token": tokens["accessToken"], "refresh_token": tokens["refreshToken"]}
        return json_answer({**snake, "expires_in": self.life_s, "token_type": "Bearer"})

    _paths: ClassVar[dict[str, Callable[["FakeKiro", ReceivedRequest], Answer]]] = {
        "/generateAssistantResponse": lambda fake, request: fake._chat(request),  # which others override
        "/invokeMCP": _tool_call,
        "/mcp": _tool_call,
        "/ListAvailableModels": _models,
        "/ListAvailableProfiles": _profiles,
        "/getUsageLimits": _usage,
        "/Get-Usage-Limits": _usage,
    }
    _open_paths: ClassVar = {
        "/refreshToken": _desktop,
        "/token": _token,
        "/client/register": _register,
        "/device_authorization": _device,
        "/oauth/token": _social,
        "/idp/token": _external,
    }

    async def serve_on(self, port: int) -> None:
        """For use by hand: until interrupted."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self._loop = asyncio.get_running_loop()
        self.port = port
        async with server:
            await server.serve_forever()


def _path(request: ReceivedRequest) -> str:
    """The path of an operation, also where AWS's JSON encoding names it in a header."""
    named = request.headers.get("x-amz-target", "").rpartition(".")[2]
    if not named:
        return urlsplit(request.path).path
    listing = named.startswith("List")  # whose paths begin with a capital letter
    return f"/{named}" if listing else f"/{named[0].lower()}{named[1:]}"


def _demonstration(request: ReceivedRequest) -> Answer:
    """Return the last message word by word, so that the stream has several events."""
    state = request.json["conversationState"]
    reply_text = state["currentMessage"]["userInputMessage"]["content"]
    pieces = [words(f"{word} ") for word in ("You said:", *str(reply_text).split()[-40:])]
    body = make_framed(event("messageMetadataEvent", {"conversationId": "fake"}), *pieces, tail(percentage=1.0))
    return replace(body, cut=160, pause_s=0.02)


@click.command()
@click.option("--port", default=9400, show_default=True)
def main(port: int) -> None:
    """Serve a fake Kiro until interrupted."""
    fake = FakeKiro()
    fake.port = port
    click.echo(f"A fake Kiro listens on {fake.root}. A dragoman.toml for it:\n\n{fake.section(SEED)}")
    asyncio.run(fake.serve_on(port))


if __name__ == "__main__":
    main()
