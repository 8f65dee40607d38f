"""The cases of the matrix: the request, and the reply that the upstream sends."""

from dataclasses import dataclass

from scripting.replies import Ending, Refusal, ScriptedReply, Stop, Text, Thinking, Tokens, ToolCall
from wire_json import Json, JsonObject

WORDS = "The quick brown fox jumps over the lazy dog."
UNICODE = (
    'Grüße 👩‍👩‍👧‍👦 e\u0301\u0327 \u202eعربى\u202c 漢字かな한글 🏳️‍🌈 \U0001d54f\u2028\u2029\\"\t\u0000\u007f\ufeff end'
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "additionalProperties": False,
}
TOOLS = ("weather", "clock")


@dataclass(frozen=True)
class Case:
    scripted: ScriptedReply
    tools: bool = False
    reasons: bool = False


WEATHER = ToolCall("call_a1", "weather", '{"city":"Zürich","days":3}')
CLOCK = ToolCall("call_b2", "clock", '{"city":"東京 🗼"}')
MORE = ToolCall("call_c3", "weather", '{"city":"a much longer name of a place","days":12}')

CASES: dict[str, Case] = {
    "text": Case(ScriptedReply((Text(WORDS),))),
    "Unicode": Case(ScriptedReply((Text(UNICODE),))),
    "one tool call": Case(ScriptedReply((Text("Let me look."), WEATHER), Stop.TOOL), tools=True),
    "parallel interleaved tool calls": Case(
        ScriptedReply((Text("Both."), WEATHER, CLOCK, MORE), Stop.TOOL), tools=True
    ),
    "tool calls without text": Case(ScriptedReply((CLOCK, WEATHER), Stop.TOOL), tools=True),
    "empty arguments": Case(ScriptedReply((ToolCall("call_e", "clock", ""), WEATHER), Stop.TOOL), tools=True),
    "reasoning": Case(ScriptedReply((Thinking("First this, then that."), Text("Done."))), reasons=True),
    "sealed reasoning": Case(
        ScriptedReply((Thinking("Weigh it 漢字 up.", "c2VhbC1vbmU="), Text("Yes."), WEATHER), Stop.TOOL),
        tools=True,
        reasons=True,
    ),
    "hidden reasoning": Case(ScriptedReply((Thinking("", "aGlkZGVuLXNlYWw="), Text("Because."))), reasons=True),
    "cached and reasoning tokens": Case(ScriptedReply((Text("Counted."),), tokens=Tokens(1234, 567, 1000, 34, 89))),
    "stop: natural": Case(ScriptedReply((Text("Over."),))),
    "stop: stop string": Case(ScriptedReply((Text("One, two"),), Stop.STOP_STRING, sequence="three")),
    "stop: cap": Case(ScriptedReply((Text("And then"),), Stop.CAP)),
    "stop: context full": Case(ScriptedReply((Text("So long"),), Stop.CONTEXT_FULL)),
    "stop: tool": Case(ScriptedReply((WEATHER,), Stop.TOOL), tools=True),
    "stop: filtered": Case(ScriptedReply((Text("It begins with"),), Stop.FILTERED)),
    "stop: prompt blocked": Case(ScriptedReply((), Stop.FILTERED, explanation="This is about weapons.")),
    "stop: refusal": Case(ScriptedReply((Refusal("I would rather not."),))),
    "stop: pause": Case(ScriptedReply((Text("Searching"),), Stop.PAUSE)),
}

BROKEN: dict[str, ScriptedReply] = {
    "an error in mid-stream": ScriptedReply((Text("It was a dark"),), ending=Ending.ERROR),
    "an end without terminator": ScriptedReply((Text("It was a stormy"),), ending=Ending.NONE),
}

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = f"data:image/png;base64,{PIXEL}"
PHOTO = "https://pictures.example.com/photo.jpg"


def request_for(client: str, model: str, case: Case | None = None) -> JsonObject:
    """The arguments with which this protocol's SDK is called."""
    tools = case is not None and case.tools
    reasons = case is not None and case.reasons
    user: list[Json] = [{"role": "user", "content": "Go on."}]
    match client:
        case "chat":
            extra: JsonObject = {"reasoning_effort": "low"} if reasons else {}
            return {"model": model, "messages": user, **extra, **({"tools": _chat_tools()} if tools else {})}
        case "responses":
            reasoning = {"reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"]}
            extra = reasoning if reasons else {}
            return {"model": model, "input": user, **extra, **({"tools": _responses_tools()} if tools else {})}
        case "gemini":
            thinking: JsonObject = {"thinking_config": {"thinking_level": "low", "include_thoughts": True}}
            declared: JsonObject = {"tools": _gemini_tools()} if tools else {}
            return {"model": model, "contents": "Go on.", "config": {**(thinking if reasons else {}), **declared}}
        case _:
            extra = {"thinking": {"type": "adaptive"}} if reasons else {}
            tooled = {"tools": [{"name": name, "input_schema": SCHEMA} for name in TOOLS]} if tools else {}
            return {"model": model, "messages": user, "max_tokens": 1024, **extra, **tooled}


def request_with_pictures(client: str, model: str, upstream: str = "") -> JsonObject:
    """Return a request with a picture as data and one by its address; without the latter for Kiro, which refuses it."""
    request = _request_with_pictures(client, model)
    if upstream == "kiro":
        turn = next(iter(request[{"responses": "input", "gemini": "contents"}.get(client, "messages")]))
        turn["parts" if client == "gemini" else "content"].pop()
    return request


def _request_with_pictures(client: str, model: str) -> JsonObject:
    match client:
        case "chat":
            parts: list[Json] = [
                {"type": "text", "text": "Compare."},
                {"type": "image_url", "image_url": {"url": PICTURE}},
                {"type": "image_url", "image_url": {"url": PHOTO}},
            ]
            return {"model": model, "messages": [{"role": "user", "content": parts}]}
        case "responses":
            parts = [
                {"type": "input_text", "text": "Compare."},
                {"type": "input_image", "image_url": PICTURE, "detail": "auto"},
                {"type": "input_image", "image_url": PHOTO, "detail": "auto"},
            ]
            return {"model": model, "input": [{"role": "user", "content": parts}]}
        case "gemini":
            parts = [
                {"text": "Compare."},
                {"inline_data": {"mime_type": "image/png", "data": PIXEL}},
                {"file_data": {"mime_type": "image/jpeg", "file_uri": PHOTO}},
            ]
            return {"model": model, "contents": [{"role": "user", "parts": parts}]}
        case _:
            parts = [
                {"type": "text", "text": "Compare."},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                {"type": "image", "source": {"type": "url", "url": PHOTO}},
            ]
            return {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": parts}]}


def pictures_in(upstream: str, body: JsonObject) -> list[str]:
    """The images of the last turn of a request, as an upstream of this protocol finds them."""
    if upstream == "kiro":
        images = body["conversationState"]["currentMessage"]["userInputMessage"]["images"]
        return [
            f"data:image/{image['format']};base64,{to_standard_base64(image['source']['bytes'])}" for image in images
        ]
    turn = body[{"responses": "input", "gemini": "contents"}.get(upstream, "messages")][-1]
    match upstream:
        case "gemini":
            media = [next(iter(part.values())) for part in turn["parts"] if "text" not in part]
            # Google's own SDK writes some fields in snake_case.
            kinds = [found.get("mimeType") or found.get("mime_type") for found in media]
            return [
                f"data:{kind};base64,{to_standard_base64(found['data'])}"
                if "data" in found
                else found.get("fileUri") or found["file_uri"]
                for kind, found in zip(kinds, media, strict=True)
            ]
        case "chat":
            return [part["image_url"]["url"] for part in turn["content"] if part["type"] == "image_url"]
        case "responses":
            return [part["image_url"] for part in turn["content"] if part["type"] == "input_image"]
        case _:
            sources = [part["source"] for part in turn["content"] if part["type"] == "image"]
            return [
                source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"
                for source in sources
            ]


def to_standard_base64(data: str) -> str:
    """Google's own SDK writes the URL-safe alphabet."""
    return data.replace("-", "+").replace("_", "/")


def _chat_tools() -> list[Json]:
    return [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in TOOLS]


def _gemini_tools() -> list[Json]:
    return [{"function_declarations": [{"name": name, "parameters_json_schema": SCHEMA} for name in TOOLS]}]


def _responses_tools() -> list[Json]:
    return [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in TOOLS]
