"""Real rejections, in the words of the servers that wrote them, and what those servers reject."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from e2e.rejecting import (
    DESERIALIZE,
    GOOGLE,
    IN_EVENT,
    TRACEBACK,
    VARIANT,
    Refuses,
    any_of,
    has,
    has_betas,
    later_instructions,
    later_system,
    neighbours,
    not_literal,
    role,
    thinks,
    user_after_tool,
    with_reasoning,
    without_reasoning,
)
from wire_json import JsonObject

USER: JsonObject = {"role": "user", "content": "Hello"}
MID_SYSTEM: list[JsonObject] = [USER, {"role": "system", "content": "You are in /tmp."}]
TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
CLAUDE_TOOL: JsonObject = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
CALLED: list[JsonObject] = [
    USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "seen"},
]
CALLED_IN_MESSAGES: list[JsonObject] = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "abcdefghi", "name": "look", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "abcdefghi", "content": "seen"}]},
]
TEXT_AFTER_RESULT: list[JsonObject] = [
    USER,
    CALLED_IN_MESSAGES[0],
    {"role": "user", "content": [*CALLED_IN_MESSAGES[1]["content"], {"type": "text", "text": "And?"}]},
]
SIGNED: JsonObject = {"type": "thinking", "thinking": "Hm.", "signature": "c2Vh"}
SEALED: JsonObject = {"type": "reasoning", "summary": [], "encrypted_content": "c2Vh"}
SESSION = {"x-session-id": "one session"}
GEMINI_USER: JsonObject = {"role": "user", "parts": [{"text": "Hi"}]}
GEMINI_CALL: JsonObject = {"functionCall": {"name": "look", "args": {}}}
GEMINI_RESULT: JsonObject = {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {}}}]}
EXTRA = "Extra inputs are not permitted"


@dataclass(frozen=True)
class Case:
    number: str  # of the row in the table of rejections
    client: str
    upstream: str
    words: str | JsonObject  # the message, or the whole error body
    refuses: Refuses
    fields: JsonObject = field(default_factory=dict)
    status: int = 400
    headers: Mapping[str, str] = field(default_factory=dict)
    path: str = ""  # of the loss, in the client's request
    kind: str = "openai-compatible"
    later: int = 0  # extra requests of every later call
    model: str = "m"
    stream: bool = False

    def __str__(self) -> str:
        return f"{self.number} {self.client} to {self.upstream}"


KEYWORDS: JsonObject = {"type": "object", "properties": {"a": {"type": "string", "newWord": 1}}}
CASES = [
    Case("1 llama.cpp", "chat", "chat", TRACEBACK, later_system, {"messages": MID_SYSTEM}, 500),
    Case(
        "1 llama.cpp",
        "messages",
        "chat",
        "Unable to generate parser for this template. Automatic parser generation failed: " + TRACEBACK,
        later_system,
        {"messages": MID_SYSTEM},
    ),
    Case("1", "chat", "chat", "System message must be at the beginning.", later_system, {"messages": MID_SYSTEM}),
    Case("1", "messages", "chat", "System message must be at the beginning.", later_system, {"messages": MID_SYSTEM}),
    Case("2", "chat", "chat", "system message must be at the beginning", later_system, {"messages": MID_SYSTEM}, 500),
    Case(
        "2", "messages", "chat", "system message must be at the beginning", later_system, {"messages": MID_SYSTEM}, 500
    ),
    Case(
        "1 two at the beginning",  # litellm#26879
        "chat",
        "chat",
        "Chat template error: System message must be at the beginning.",
        later_instructions,
        {"messages": [{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, USER]},
        path="/messages/1",
    ),
    Case(
        "1 two at the beginning",
        "responses",
        "chat",
        "System message must be at the beginning.",
        later_instructions,
        {"instructions": "A", "input": [{"role": "developer", "content": "B"}, USER]},
        path="/input/0",
    ),
    *(
        Case(
            "1 llama.cpp",  # lemonade#2674
            "responses",
            "responses",
            TRACEBACK,
            later_instructions,
            {"input": [USER, {"type": "message", **turn, "content": [text]}, USER], **fields, "store": False},
            500,
            path="/input/1",
        )
        for text in ({"type": "input_text", "text": "You are in /tmp."},)
        for turn, fields in (({"role": "developer"}, {}), ({"role": "system"}, {"instructions": "Be brief."}))
    ),
    Case(
        "1 Mistral",  # swarmauri-sdk#162
        "chat",
        "chat",
        "Unexpected role 'system' after role 'user'",
        later_system,
        {"messages": MID_SYSTEM},
        path="/messages/1",
    ),
    Case(
        "3 Anthropic's own words",  # cursor-claude-connector#3
        "messages",
        "messages",
        'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" as '
        "an input message role.",
        role("system"),
        {"messages": MID_SYSTEM},
        path="/messages/1",
    ),
    Case(
        "3",
        "messages",
        "messages",
        "messages[1].role: unknown variant `system`, expected `user` or `assistant`",
        role("system"),
        {"messages": MID_SYSTEM},
        path="/messages/1",
    ),
    *(
        Case(
            "3 others",
            "messages",
            "messages",
            words,
            role("system"),
            {"messages": MID_SYSTEM},
            status,
            path="/messages/1",
        )
        for status, words in (
            # claude-code#63395, claude-code#63473, kiro-gateway PR197
            (
                400,
                f"{DESERIALIZE}messages[1].role: unknown variant system, expected user or assistant at line 1 column 9",
            ),
            (400, "messages[1].role must be either 'user' or 'assistant', but got 'system'"),
            (422, not_literal("'user' or 'assistant'", "messages", 1, "role")),
        )
    ),
    Case("4", "messages", "messages", "invalid beta flag", has_betas, headers={"anthropic-beta": "a-1,b-2"}),
    Case(
        "4", "messages", "messages", "invalid beta flag", has_betas, {"anthropic_beta": ["a-1"]}, path="/anthropic_beta"
    ),
    Case(
        "4",
        "messages",
        "messages",
        "invalid beta flag",
        has_betas,
        {"anthropic_beta": ["a-1"]},
        headers={"anthropic-beta": "a-1,b-2"},
    ),
    Case(
        "5",
        "messages",
        "messages",
        f"tools.1.custom.defer_loading: {EXTRA}",
        any_of(has("tools", 0, "defer_loading"), has("tools", 1, "defer_loading")),
        {"tools": [CLAUDE_TOOL | {"defer_loading": False}, CLAUDE_TOOL | {"name": "b", "defer_loading": True}]},
        path="/tools/0/defer_loading",
    ),
    Case(
        "6",
        "messages",
        "messages",
        f"system.0.cache_control.ephemeral.scope: {EXTRA}",
        has("system", 0, "cache_control", "scope"),
        {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "scope": "global"}}]},
        path="/system/0/cache_control/scope",
    ),
    Case(
        "6",
        "messages",
        "messages",
        f"tools.0.custom.eager_input_streaming: {EXTRA}",
        has("tools", 0, "eager_input_streaming"),
        {"tools": [CLAUDE_TOOL | {"type": "custom", "eager_input_streaming": True}]},
        path="/tools/0/eager_input_streaming",
    ),
    Case(
        "6",
        "messages",
        "messages",
        f"cache_control: {EXTRA}",
        has("cache_control"),
        {"cache_control": {"type": "ephemeral"}},
        path="/cache_control",
    ),
    *(
        Case(
            "8",
            client,
            "messages",
            '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.',
            thinks("enabled"),
            {"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 4096}
            if client == "messages"
            else {},
            path="/thinking",
        )
        for client in ("messages",)
    ),
    *(
        Case(
            "9",
            "messages",
            "messages",
            words,
            thinks("adaptive"),
            {"thinking": {"type": "adaptive"}, "max_tokens": 4096},
            path="/thinking",
        )
        for words in (
            not_literal("'enabled' or 'disabled'", "thinking", "type"),
            "adaptive thinking is not supported on this model",
            "Only 'enabled' and 'disabled' are supported for thinking; 'adaptive' is not supported.",
            IN_EVENT,
        )
    ),
    *(
        Case(
            "10",
            client,
            "messages",
            "`temperature` is deprecated for this model.",
            any_of(has("temperature"), has("top_p")),
            {"temperature": 0.5, "top_p": 0.9},
            path="/temperature",
        )
        for client in ("messages", "chat")
    ),
    *(
        Case(
            "11",
            "messages",
            "messages",
            "This model does not support assistant message prefill. The conversation must end with a user message.",
            lambda request: request.json["messages"][-1]["role"] == "assistant",
            {"messages": [USER, {"role": "assistant", "content": "Well"}]},
            status,
            path="/messages/1",
            stream=stream,
        )
        for status, stream in ((400, False), (200, False), (200, True))
    ),
    Case(
        "12",
        "messages",
        "messages",
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        lambda request: b"c2Vh" in request.body,
        {"messages": [USER, {"role": "assistant", "content": [SIGNED, {"type": "text", "text": "A"}]}, USER]},
        headers=SESSION,
        path="/messages/1/content/0",
    ),
    *(
        Case(
            "13",
            "responses",
            upstream,
            {"error": {"message": "Not verified.", "code": "invalid_encrypted_content", "type": "x", "param": None}},
            lambda request: b"c2Vh" in request.body,
            {"input": [USER, SEALED, USER], "store": False},
            headers=SESSION,
            path="/input/1",
            kind=kind,
        )
        for upstream, kind in (("responses", "openai-compatible"),)
    ),
    *(
        Case(
            "14",
            "gemini",
            "gemini",
            words,
            lambda request: b"thoughtSignature" not in request.body,
            {"contents": [GEMINI_USER, {"role": "model", "parts": [GEMINI_CALL]}, GEMINI_RESULT]},
            path="/contents/1/parts/0/thoughtSignature",
        )
        for words in (
            "Function call is missing a thought_signature in functionCall parts. This is required for tools to work "
            "correctly, and missing thought_signature may lead to degraded model performance. Additional data, "
            "function call `default_api:Task` , position 2. Please refer to "
            "https://ai.google.dev/gemini-api/docs/thought-signatures for more details.",
            "Unable to submit request because function call `default_api:webscraper` in the 2. content block is "
            "missing a `thought_signature`. Learn more: https://docs.cloud.google.com/vertex-ai/docs/thought-signatures",
        )
    ),
    Case(
        "15",
        "gemini",
        "gemini",
        GOOGLE.format("newWord"),
        lambda request: b'"newWord":' in request.body,
        {"tools": [{"functionDeclarations": [{"name": "look", "parameters": KEYWORDS}]}]},
        path="/tools/0/functionDeclarations/0/parameters/properties/a/newWord",
    ),
    Case(
        "15 in details",
        "gemini",
        "gemini",
        {
            "error": {
                "code": 400,
                "message": "Request contains an invalid argument.",
                "status": "INVALID_ARGUMENT",
                "details": [
                    {
                        "@type": "type.googleapis.com/google.rpc.BadRequest",
                        "fieldViolations": [{"field": "tools[0]", "description": GOOGLE.format("newWord")}],
                    }
                ],
            }
        },
        lambda request: b'"newWord":' in request.body,
        {"tools": [{"functionDeclarations": [{"name": "look", "parameters": KEYWORDS}]}]},
        path="/tools/0/functionDeclarations/0/parameters/properties/a/newWord",
    ),
    Case(
        "10 AWS",
        "messages",
        "messages",
        {"Message": "`temperature` is deprecated for this model."},
        has("temperature"),
        {"temperature": 0.5},
        path="/temperature",
    ),
    Case(
        "16",
        "chat",
        "chat",
        DESERIALIZE + VARIANT.format("developer"),
        role("developer"),
        {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
        path="/messages/0/role",
    ),
    Case(
        "16",
        "responses",
        "chat",
        VARIANT.format("developer"),
        role("developer"),
        {"input": [{"role": "developer", "content": "Be brief."}, USER]},
    ),
    *(
        Case(
            number,
            client,
            "chat",
            words,
            without_reasoning,
            {"messages": [USER, {"role": "assistant", "content": "A"}, USER]},
        )
        for client in ("chat", "messages")
        for number, words in (
            ("17", "The `reasoning_content` in the thinking mode must be passed back to the API."),
            ("18", "thinking is enabled but reasoning_content is missing in assistant tool call message at index 13"),
        )
    ),
    Case(
        "19",
        "chat",
        "chat",
        "tool_choice specified is incompatible with thinking enabled",
        lambda request: request.json.get("thinking") != {"type": "disabled"},
        {"tools": [TOOL], "tool_choice": "required"},
        later=1,
    ),
    Case(
        "20",
        "chat",
        "chat",
        "'messages.1' : for 'role:assistant' the following must be satisfied"
        "[('messages.1' : property 'reasoning_content' is unsupported)]",
        with_reasoning,
        {"messages": [USER, {"role": "assistant", "content": "A", "reasoning_content": "Hm"}, USER]},
        path="/messages/1/reasoning_content",
    ),
    *(
        Case(
            "21",
            client,
            "chat",
            {"detail": [{"type": "extra_forbidden", "loc": ["body", name], "msg": EXTRA, "input": 32000}]},
            has(name),
            fields,
            422,
        )
        for client, name, fields in (
            ("chat", "max_completion_tokens", {"max_completion_tokens": 9}),
            ("messages", "max_completion_tokens", {"max_tokens": 9}),
            ("chat", "safety_identifier", {"safety_identifier": "x"}),
            ("chat", "stream_options", {"stream_options": {}}),
        )
    ),
    Case(
        "21",
        "chat",
        "chat",
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "tools", 0, "function", "strict"], "input": True}]},
        has("tools", 0, "function", "strict"),
        {"tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}]},
        422,
        path="/tools/0/function/strict",
    ),
    Case(
        "21",
        "messages",
        "chat",
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "reasoning_effort"], "input": "low"}]},
        has("reasoning_effort"),
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4096},
        422,
        path="/thinking",
    ),
    *(
        Case(
            "22",
            client,
            upstream,
            {"object": "error", "message": "Unexpected role 'user' after role 'tool'", "type": "order", "code": "3230"},
            refuses,
            {"messages": messages},
            status,
        )
        for client, upstream, messages, refuses, status in (
            ("chat", "chat", [*CALLED, {"role": "user", "content": "And?"}], user_after_tool, 400),
            ("messages", "chat", TEXT_AFTER_RESULT, user_after_tool, 400),
            ("messages", "messages", TEXT_AFTER_RESULT, has("messages", 2, "content", 1), 500),
        )
    ),
    Case(
        "22",
        "chat",
        "chat",
        "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
        neighbours,
        {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "Again"}]}]},
    ),
    Case(
        "23",
        "chat",
        "chat",
        "Function tools with reasoning_effort are not supported for gpt-5.6-terra in /v1/chat/completions. "
        "To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
        lambda request: request.json.get("reasoning_effort") != "none",
        {"tools": [TOOL], "reasoning_effort": "high"},
        path="/reasoning_effort",
    ),
    *(
        Case(
            "24",
            client,
            "chat",
            {
                "error": {
                    "message": "Unsupported parameter: 'temperature' is not supported with this model.",
                    "type": "invalid_request_error",
                    "param": "temperature",
                    "code": "unsupported_parameter",
                }
            },
            has("temperature"),
            {"temperature": 0.5},
            path="/temperature",
            kind=kind,
        )
        for client, kind in (("chat", "openai-compatible"), ("messages", "openai-compatible"))
    ),
    Case(
        "25",
        "chat",
        "chat",
        "Validation: Unsupported parameter(s): thinking",
        has("thinking"),
        {"thinking": {"type": "x"}},
    ),
    *(
        Case(
            "25",
            client,
            "chat",
            "Model grok-4.20-0309 does not support parameter reasoningEffort.",
            has("reasoning_effort"),
            fields,
        )
        for client, fields in (
            ("chat", {"reasoning_effort": "high"}),
            ("responses", {"reasoning": {"effort": "high"}}),
        )
    ),
    Case(
        "25",  # CLIProxyAPI PR3968
        "responses",
        "responses",
        "Model grok-build does not support parameter reasoningEffort.",
        has("reasoning", "effort"),
        {"reasoning": {"effort": "low", "summary": "concise"}, "store": False},
        path="/reasoning/effort",
    ),
    Case(
        "26",
        "responses",
        "responses",
        {"detail": "Unsupported parameter: safety_identifier"},
        has("safety_identifier"),
        {"safety_identifier": "x", "store": False},
        path="/safety_identifier",
    ),
    *(
        Case("27", client, "chat", '"llama3.1:8b" does not support thinking', has("reasoning_effort"), fields)
        for client, fields in (
            ("chat", {"reasoning_effort": "high"}),
            ("responses", {"reasoning": {"effort": "high"}}),
        )
    ),
    Case(
        "27 Bedrock",  # claude-code#2507
        "messages",
        "messages",
        "'claude-3-5-sonnet-20241022' does not support thinking.",
        any_of(has("thinking"), has("output_config")),
        {"thinking": {"type": "enabled", "budget_tokens": 2048}, "output_config": {"effort": "high"}},
        path="/thinking",
    ),
    Case(
        "27",
        "chat",
        "messages",
        {"detail": {"error": '"llama3.1:8b" does not support thinking'}},
        any_of(has("thinking"), has("output_config")),
        {"reasoning_effort": "high"},
        path="/reasoning_effort",
    ),
    Case(
        "28",  # ollama PR17252
        "responses",
        "responses",
        'invalid reasoning value: "xhigh" (must be "high", "medium", "low", "max", or "none")',
        lambda request: request.json["reasoning"]["effort"] == "xhigh",
        {"reasoning": {"effort": "xhigh"}, "store": False},
        path="/reasoning/effort",
    ),
    *(
        Case(
            "28",
            client,
            "chat",
            'invalid reasoning value: \'xhigh\' (must be "high", "medium", "low", "max", or "none")',
            lambda request: request.json.get("reasoning_effort") == "xhigh",
            fields,
            path=path,
        )
        for client, fields, path in (
            ("chat", {"reasoning_effort": "xhigh"}, "/reasoning_effort"),
            ("responses", {"reasoning": {"effort": "xhigh"}}, "/reasoning"),
        )
    ),
]
