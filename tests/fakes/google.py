"""Google on the loopback: the Gemini API, Vertex AI, the token endpoint and a metadata server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

from fakes.service import FakeService, json_answer
from fakes.upstream import Answer, ReceivedRequest
from wire_json import JsonObject

TOKEN = "/token"
METADATA = "/computeMetadata/v1/instance/service-accounts/default/token"
LIST = "/v1beta/models"
VERTEX = "/v1/projects/p/locations/global/publishers/google"
REPLY: JsonObject = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Hi."}]}, "finishReason": "STOP", "index": 0}],
    "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5},
    "modelVersion": "gemini-3.5-flash",
    "responseId": "r1",
}
MODELS: list[JsonObject] = [
    {
        "name": "models/gemini-3.5-flash",
        "displayName": "Gemini 3.5 Flash",
        "inputTokenLimit": 1_048_576,
        "outputTokenLimit": 65_536,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    },
    {"name": "models/gemini-2.5-pro", "supportedGenerationMethods": ["generateContent"]},
    {"name": "models/gemini-embedding-001", "supportedGenerationMethods": ["embedContent"]},
]


class FakeGoogle(FakeService):
    """Accepts the key `AIza-fake` and the tokens that it issued."""

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[str] = []
        self.valid: set[str] = {"AIza-fake"}
        self.refuses = ""  # the error of the token endpoint
        self.choose = None

    def section(self, credentials: str | list[str], **settings: object) -> str:
        lines = [f"{name} = {json.dumps(value)}" for name, value in ({"credentials": credentials} | settings).items()]
        endpoint = f'endpoint = "{self.root}{VERTEX}"\nauth_endpoint = "{self.root}{TOKEN}"'
        return "\n".join(['[providers.vertex]\nkind = "gemini"', endpoint, *lines, ""])

    def issue(self, request: ReceivedRequest) -> Answer:
        if self.refuses:
            return json_answer({"error": self.refuses, "error_description": "No."}, 400)
        token = f"ya29.token-{self.port}-{len(self.issued)}"
        self.issued.append(token)
        self.valid.add(token)
        return json_answer({"access_token": token, "expires_in": 3599, "token_type": "Bearer"})

    def list_models(self, request: ReceivedRequest) -> Answer:
        """Two pages of the list."""
        second = parse_qs(urlsplit(request.path).query).get("pageToken") == ["two"]
        return json_answer({"models": MODELS[1:]} if second else {"models": MODELS[:1], "nextPageToken": "two"})

    def _choose(self, request: ReceivedRequest) -> Answer:
        path = urlsplit(request.path).path
        if path in self.usual:
            return super()._choose(request)
        self.counts[path] += 1
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not {bearer, request.headers.get("x-goog-api-key", "")} & self.valid:
            error = {"code": 401, "message": "Request had invalid credentials.", "status": "UNAUTHENTICATED"}
            return json_answer({"error": error}, 401)
        if self._scripts.get(path):
            return self._scripts[path].popleft()
        return json_answer({"totalTokens": 7} if path.endswith(":countTokens") else REPLY)

    usual: ClassVar[dict[str, Callable[..., Answer]]] = {TOKEN: issue, METADATA: issue, LIST: list_models}


def write_user_file(path: Path, **fields: object) -> Path:
    """Write a file as `gcloud auth application-default login` does."""
    found = {"type": "authorized_user", "client_id": "id", "client_secret": "shh", "refresh_token": "1//refresh"}
    path.write_text(json.dumps(found | fields))
    return path
