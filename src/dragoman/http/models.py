"""The model list, in the shape of whichever vendor's client asks."""

from datetime import UTC, datetime
from urllib.parse import parse_qs

import msgspec

from dragoman.flow.response_headers import encode_ascii_json
from dragoman.flow.runtime import Runtime, list_known_models
from dragoman.net.headers import Header, Headers
from dragoman.providers.provider import ModelInfo
from dragoman.routing.resolve import listed_names


class ModelList:
    """Every name a client may ask for, with what is known of the model behind it."""

    def __init__(self, world: Runtime) -> None:
        self._infos: dict[str, ModelInfo] = {}
        for provider, catalogue in world.catalogues.items():
            for info in catalogue.known():
                self._infos.setdefault(info.id, info)
                self._infos[f"{provider}/{info.id}"] = info
        known = list_known_models(world)
        self._names = listed_names(world.config.models, known)
        self._problems = {provider: models.problem for provider, models in known.items() if models.problem}

    def problem_headers(self) -> list[Header]:
        """Return the header that names the providers whose list could not be read, and why."""
        if not self._problems:
            return []
        return [(b"x-dragoman-unlisted", encode_ascii_json(self._problems))]

    def render(self, headers: Headers, query: str) -> bytes:
        if headers.get(b"anthropic-version") is not None:
            return msgspec.json.encode(self._anthropic_page(query))
        if _is_google(headers):
            return msgspec.json.encode({"models": [self._gemini(name) for name in self._names]})
        data = [self._openai(name) for name in self._names]
        body: dict[str, object] = {"object": "list", "data": data}
        if "client_version" in parse_qs(query):
            body["models"] = [self._codex(name) for name in self._names]
        return msgspec.json.encode(body)

    def render_one(self, name: str, headers: Headers) -> bytes | None:
        if name not in self._names:
            return None
        if headers.get(b"anthropic-version") is not None:
            return msgspec.json.encode(self._anthropic(name))
        return msgspec.json.encode(self._gemini(name) if _is_google(headers) else self._openai(name))

    def _info(self, name: str) -> ModelInfo:
        return self._infos.get(name) or ModelInfo(name)

    def _openai(self, name: str) -> dict[str, object]:
        info = self._info(name)
        return {"id": name, "object": "model", "created": info.created, "owned_by": info.owned_by or "dragoman"}

    def _anthropic(self, name: str) -> dict[str, object]:
        info = self._info(name)
        created = datetime.fromtimestamp(info.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "id": name,
            "type": "model",
            "display_name": info.name or name,
            "created_at": created,
            "lifecycle": "active",
            "capabilities": None,
            "max_input_tokens": info.max_input,
            "max_tokens": info.max_output,
        }

    def _gemini(self, name: str) -> dict[str, object]:
        info = self._info(name)
        limits = {"inputTokenLimit": info.max_input, "outputTokenLimit": info.max_output}
        return {
            "name": f"models/{name}",
            "displayName": info.name or name,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
            **{key: value for key, value in limits.items() if value is not None},
        }

    def _anthropic_page(self, query: str) -> dict[str, object]:
        asked = {name: values[-1] for name, values in parse_qs(query).items()}
        names = _window(self._names, asked)
        return {
            "data": [self._anthropic(name) for name in names],
            "has_more": bool(names) and names[-1] != self._names[-1] and "before_id" not in asked,
            "first_id": names[0] if names else None,
            "last_id": names[-1] if names else None,
        }

    def _codex(self, name: str) -> dict[str, object]:
        info = self._info(name)
        return {"slug": name, "display_name": info.name or name, "context_window": info.max_input}


def _is_google(headers: Headers) -> bool:
    return headers.get(b"x-goog-api-key") is not None or headers.get(b"x-goog-api-client") is not None


def _window(names: list[str], asked: dict[str, str]) -> list[str]:
    """Anthropic's paging: `after_id`, `before_id` and `limit`."""
    limit = int(asked["limit"]) if asked.get("limit", "").isdigit() else 20
    limit = max(1, min(limit, 1000))
    if asked.get("before_id") in names:
        return names[: names.index(asked["before_id"])][-limit:]
    start = names.index(asked["after_id"]) + 1 if asked.get("after_id") in names else 0
    return names[start : start + limit]
