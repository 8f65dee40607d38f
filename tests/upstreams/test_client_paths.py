"""A loss of a translated request names the place in the client's request, not in what was sent."""

import msgspec

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Request
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams.rejections.client_paths import find_client_path
from dragoman.upstreams.rejections.sent import Sent
from tables import each_row
from wire_json import JsonObject

SCHEMA: JsonObject = {"type": "object", "properties": {"a/b": {"type": "string", "newWord": 1}}}
MESSAGES: JsonObject = {
    "model": "m",
    "max_tokens": 4096,
    "thinking": {"type": "enabled", "budget_tokens": 2048},
    "system": "Be brief.",
    "metadata": {"user_id": "u"},
    "tools": [{"name": "one", "input_schema": {"type": "object"}}, {"name": "two", "input_schema": SCHEMA}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "You are in /tmp."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "one", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "seen"}]},
        {"role": "assistant", "content": "Seen."},
        {"role": "user", "content": "And?"},
    ],
}


def translate(upstream: str, protocol: str = "messages", body: JsonObject = MESSAGES) -> tuple[Request, Sent]:
    client, target = PROTOCOLS[protocol].client, PROTOCOLS[upstream].upstream
    assert client is not None
    assert target is not None
    request = client.parse(msgspec.json.encode(body), Ledger())
    return request, Sent(upstream, target.build(request, Target("m", "up"), Ledger()))


@each_row(
    ("upstream", "pointer", "expected"),
    [
        ("chat", "/max_completion_tokens", "/max_tokens"),
        ("chat", "/reasoning_effort", "/thinking"),
        ("chat", "/tools/1/function/strict", "/tools/1"),
        (
            "chat",
            "/tools/1/function/parameters/properties/a~1b/newWord",
            "/tools/1/input_schema/properties/a~1b/newWord",
        ),
        ("chat", "/messages/0", "/system"),
        ("chat", "/messages/2", "/messages/1"),
        ("chat", "/messages/3/tool_calls/0", "/messages/2"),
        ("chat", "/messages/4", "/messages/3"),
        ("chat", "/messages/5/reasoning_content", "/messages/4"),
        ("chat", "/messages/6", "/messages/5"),
        ("chat", "/messages/99", "/messages"),
        ("chat", "/stream_options", ""),
        ("chat", "/unheard", ""),
        ("gemini", "/generationConfig/thinkingConfig/thinkingLevel", "/thinking"),
        ("gemini", "/generationConfig/maxOutputTokens", "/max_tokens"),
        (
            "gemini",
            "/tools/0/functionDeclarations/1/parametersJsonSchema/properties/a~1b/newWord",
            "/tools/1/input_schema/properties/a~1b/newWord",
        ),
        ("responses", "/reasoning/effort", "/thinking"),
        ("responses", "/tools/0/strict", "/tools/0"),
        ("responses", "/safety_identifier", ""),
    ],
)
def test_a_place_in_what_was_sent_is_one_of_the_client(upstream: str, pointer: str, expected: str) -> None:
    request, sent = translate(upstream)
    assert find_client_path(request, sent, pointer) == expected


HELLO: JsonObject = {"role": "user", "content": "Hi"}
IN_CHAT: JsonObject = {
    "model": "m",
    "messages": [HELLO],
    "max_tokens": 9,
    "temperature": 0.5,
    "stop": ["."],
    "user": "u",
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "parallel_tool_calls": False,
}
IN_RESPONSES: JsonObject = {
    "model": "m",
    "input": "Hi",
    "max_output_tokens": 9,
    "top_p": 0.5,
    "text": {"verbosity": "low"},
}
IN_GEMINI: JsonObject = {
    "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    "generation_config": {"top_p": 0.5, "stopSequences": ["."]},
}


@each_row(
    ("client", "body", "upstream", "pointer", "expected"),
    [
        ("chat", IN_CHAT, "messages", "/temperature", "/temperature"),
        ("chat", IN_CHAT, "messages", "/max_tokens", "/max_tokens"),
        ("chat", IN_CHAT, "messages", "/stop_sequences", "/stop"),
        ("chat", IN_CHAT, "messages", "/service_tier", "/service_tier"),
        ("chat", IN_CHAT, "responses", "/metadata", "/metadata"),
        ("chat", IN_CHAT, "responses", "/user", "/user"),
        ("chat", IN_CHAT, "responses", "/parallel_tool_calls", "/parallel_tool_calls"),
        ("chat", IN_CHAT, "gemini", "/generationConfig/temperature", "/temperature"),
        ("chat", IN_CHAT, "messages", "/top_p", ""),
        ("chat", IN_CHAT, "messages", "/thinking", ""),
        ("chat", IN_CHAT, "messages", "/tools/0", ""),
        ("responses", IN_RESPONSES, "chat", "/top_p", "/top_p"),
        ("responses", IN_RESPONSES, "chat", "/max_completion_tokens", "/max_output_tokens"),
        ("responses", IN_RESPONSES, "chat", "/verbosity", "/text/verbosity"),
        ("responses", IN_RESPONSES, "messages", "/temperature", ""),
        ("gemini", IN_GEMINI, "chat", "/top_p", "/generation_config/top_p"),
        ("gemini", IN_GEMINI, "messages", "/stop_sequences", "/generation_config/stopSequences"),
        ("gemini", IN_GEMINI, "messages", "/tool_choice", ""),
    ],
)
def test_a_field_is_where_the_client_wrote_it(
    client: str, body: JsonObject, upstream: str, pointer: str, expected: str
) -> None:
    request, sent = translate(upstream, client, body)
    assert find_client_path(request, sent, pointer) == expected
