"""One scripted agent in each protocol: 10 user turns, 25 requests, 15 tool rounds with 1 to 12 parallel calls."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from wire_json import Json, JsonObject

ROUNDS = ((1, 3), (), (2,), (12, 1), (1,), (4, 1, 1), (), (6, 2), (1,), (3, 1, 1))  # parallel calls, by user turn
MASKED = "<tool_output_masked>"


class Item(Struct, frozen=True):
    """Something said: by the user, by the model, or by its tools."""

    kind: str  # user, text, calls, results
    texts: tuple[str, ...]
    first: int = 0  # the number of the first call


Conversation = tuple[Item, ...]


def prose(words: int, about: str) -> str:
    return " ".join(f"{about}{number % 97}" for number in range(words))


SYSTEM = prose(4000, "rule")
TOOLS = tuple((f"tool_{number}", prose(60, f"does{number}-")) for number in range(24))


def script() -> list[Conversation]:
    """Return the conversation as each request has it."""
    items: list[Item] = []
    requests: list[Conversation] = []
    calls = 0
    for turn, rounds in enumerate(ROUNDS):
        items.append(Item("user", (prose(80, f"please{turn}-"),)))
        requests.append(tuple(items))
        for parallel in rounds:
            items.append(Item("calls", tuple(f'{{"path":"file-{calls + n}"}}' for n in range(parallel)), calls))
            items.append(Item("results", tuple(prose(240, f"line{calls + n}-") for n in range(parallel)), calls))
            calls += parallel
            requests.append(tuple(items))
        items.append(Item("text", (prose(60, f"done{turn}-"),)))
    return requests


def rewrite_history(requests: Sequence[Conversation]) -> list[Conversation]:
    """Return what a client sends that masks the outputs of earlier turns each time its user speaks."""
    return [_mask(request) for request in requests]


def _mask(request: Conversation) -> Conversation:
    newest = max(index for index, item in enumerate(request) if item.kind == "user")
    return tuple(
        Item("results", (MASKED,) * len(item.texts), item.first) if item.kind == "results" and index < newest else item
        for index, item in enumerate(request)
    )


def write_chat(request: Conversation, system: str = SYSTEM) -> JsonObject:
    messages: list[Json] = [{"role": "system", "content": system}]
    for item in request:
        ids = [f"call_{item.first + number}" for number in range(len(item.texts))]
        match item.kind:
            case "user":
                messages.append({"role": "user", "content": item.texts[0]})
            case "text":
                messages.append({"role": "assistant", "content": item.texts[0]})
            case "calls":
                calls = [
                    {"id": id, "type": "function", "function": {"name": "tool_1", "arguments": text}}
                    for id, text in zip(ids, item.texts, strict=True)
                ]
                messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            case _:
                messages += [
                    {"role": "tool", "tool_call_id": id, "content": text}
                    for id, text in zip(ids, item.texts, strict=True)
                ]
    functions = [{"name": name, "description": text, "parameters": {"type": "object"}} for name, text in TOOLS]
    tools = [{"type": "function", "function": function} for function in functions]
    return {"model": "m", "messages": messages, "tools": tools}


def write_responses(request: Conversation, system: str = SYSTEM) -> JsonObject:
    items: list[Json] = []
    for item in request:
        ids = [f"call_{item.first + number}" for number in range(len(item.texts))]
        match item.kind:
            case "user":
                content = [{"type": "input_text", "text": item.texts[0]}]
                items.append({"type": "message", "role": "user", "content": content})
            case "text":
                content = [{"type": "output_text", "text": item.texts[0]}]
                items.append({"type": "message", "role": "assistant", "content": content})
            case "calls":
                items += [
                    {"type": "function_call", "call_id": id, "name": "tool_1", "arguments": text}
                    for id, text in zip(ids, item.texts, strict=True)
                ]
            case _:
                items += [
                    {"type": "function_call_output", "call_id": id, "output": text}
                    for id, text in zip(ids, item.texts, strict=True)
                ]
    tools = [
        {"type": "function", "name": name, "description": text, "parameters": {"type": "object"}, "strict": False}
        for name, text in TOOLS
    ]
    return {"model": "m", "instructions": system, "input": items, "tools": tools, "store": False}


def write_messages(request: Conversation, system: str = SYSTEM, *, marked: bool = True) -> JsonObject:
    """Write it as Claude Code does, with marks on the system prompt and on the last block."""
    messages: list[Json] = []
    for item in request:
        ids = [f"call_{item.first + number}" for number in range(len(item.texts))]
        pairs = list(zip(ids, item.texts, strict=True))
        match item.kind:
            case "user" | "text":
                blocks: list[Json] = [{"type": "text", "text": item.texts[0]}]
            case "calls":
                blocks = [
                    {"type": "tool_use", "id": id, "name": "tool_1", "input": {"path": text}} for id, text in pairs
                ]
            case _:
                blocks = [{"type": "tool_result", "tool_use_id": id, "content": text} for id, text in pairs]
        role = "user" if item.kind in ("user", "results") else "assistant"
        messages.append({"role": role, "content": blocks})
    system_block: JsonObject = {"type": "text", "text": system}
    if marked:
        system_block["cache_control"] = {"type": "ephemeral"}
        messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    tools = [{"name": name, "description": text, "input_schema": {"type": "object"}} for name, text in TOOLS]
    return {"model": "m", "max_tokens": 9000, "system": [system_block], "messages": messages, "tools": tools}


def write_gemini(request: Conversation, system: str = SYSTEM) -> JsonObject:
    contents: list[Json] = []
    for item in request:
        match item.kind:
            case "user" | "text":
                parts: list[Json] = [{"text": item.texts[0]}]
            case "calls":
                parts = [{"functionCall": {"name": "tool_1", "args": {"path": text}}} for text in item.texts]
            case _:
                parts = [{"functionResponse": {"name": "tool_1", "response": {"output": text}}} for text in item.texts]
        contents.append({"role": "user" if item.kind in ("user", "results") else "model", "parts": parts})
    functions = [
        {"name": name, "description": text, "parametersJsonSchema": {"type": "object"}} for name, text in TOOLS
    ]
    return {
        "contents": contents,
        "systemInstruction": {"parts": [{"text": system}]},
        "tools": [{"functionDeclarations": functions}],
    }


WRITERS: dict[str, Callable[[Conversation], JsonObject]] = {
    "chat": write_chat,
    "responses": write_responses,
    "messages": write_messages,
    "gemini": write_gemini,
}
