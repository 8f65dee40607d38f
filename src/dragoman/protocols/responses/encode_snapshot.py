"""Encode the response object that lifecycle events repeat and that a whole reply consists of."""

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from dragoman.hub.ports import ReplyContext
from dragoman.hub.request import Json
from dragoman.hub.usage import Usage

# Every field that Open Responses wants present; the request's own values take the place of these.
_DEFAULTS: dict[str, Json] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
_NOT_KEPT: dict[str, Json] = {"previous_response_id": None, "store": False}  # we have no memory, whatever was asked
_FUNCTION_DEFAULTS: dict[str, Json] = {"description": None, "parameters": None, "strict": True}
_NO_IMAGES = {
    "input_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
    "output_tokens": 0,
    "total_tokens": 0,
}


class Snapshot:
    """One reply's response object; what the request settles is encoded once."""

    __slots__ = ("_created", "_settled", "_tier", "id")

    def __init__(self, id_: str, model: str, created: int, asked: dict[str, Json]) -> None:
        self.id = id_
        self._created = created
        tier = asked.get("service_tier")
        self._tier = tier if isinstance(tier, str) and tier != "auto" else "default"
        settled = {key: default if asked.get(key) is None else asked[key] for key, default in _DEFAULTS.items()}
        settled["tools"] = [_tool(tool) for tool in _list(settled["tools"])]
        settled["text"] = _text(settled["text"])
        self._settled = msgspec.json.encode({"model": model, **settled, **_NOT_KEPT})

    def response(
        self,
        status: str,
        output: Iterable[Raw] = (),
        usage: Usage | None = None,
        error: dict[str, str | None] | None = None,
        reason: str | None = None,
        completed: int | None = None,
    ) -> Raw:
        fields: dict[str, Json] = {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": completed,
            "status": status,
            "error": error and {"code": error["code"], "message": error["message"]},
            "incomplete_details": reason and {"reason": reason},
            "output": list(output),
            "usage": usage and _usage(usage),
            "service_tier": (usage and usage.service_tier) or self._tier,
        }
        if usage and usage.web_searches:
            fields["tool_usage"] = {"image_gen": _NO_IMAGES, "web_search": {"num_requests": usage.web_searches}}
        return Raw(msgspec.json.encode(fields)[:-1] + b"," + self._settled[1:])


def snapshot_of(id_: str, asked: ReplyContext) -> Snapshot:
    return Snapshot(id_, asked.model, asked.created, asked.request.raw)


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _tool(tool: Json) -> Json:
    return {**_FUNCTION_DEFAULTS, **tool} if isinstance(tool, dict) and tool.get("type") == "function" else tool


def _text(text: Json) -> Json:
    return {"format": {"type": "text"}, **text} if isinstance(text, dict) else text
