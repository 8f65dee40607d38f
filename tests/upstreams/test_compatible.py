"""A compatible server that rejects a field gets the request again without it, and never again with it."""

from pathlib import Path

import anthropic
import openai
from anthropic.types import TextBlockParam

from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, provider_section, running

REPLY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hello."},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,'
    b'"completion_tokens":1,"total_tokens":2}}'
)


def picky(request: ReceivedRequest) -> Answer:
    """Knows neither tiers nor the newer name of the cap."""
    for field in ("service_tier", "max_completion_tokens"):
        if field in request.body.decode():
            body = b'{"error":{"message":"%s: Extra inputs are not permitted","type":"invalid"}}' % field.encode()
            return Answer(body, status=422, content_type="application/json")
    return Answer(REPLY, content_type="application/json")


def test_rejected_fields_are_left_out_and_recorded(tmp_path: Path) -> None:
    with FakeUpstream(choose=picky) as fake, running(provider_section("chat", fake.url), tmp_path) as gateway:
        client = anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0)
        words: TextBlockParam = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}

        def ask() -> tuple[str, str]:
            reply = client.messages.with_raw_response.create(
                model="up/m",
                max_tokens=9,
                messages=[{"role": "user", "content": [words]}],
                service_tier="standard_only",
                extra_headers={"x-dragoman-explain": "1"},
            )
            block = reply.parse().content[0]
            assert block.type == "text"
            return block.text, reply.headers["x-dragoman-loss-detail"]

        text, lost = ask()
        assert text == "Hello."
        assert "/service_tier" in lost
        assert "cache_control" not in lost
        assert len(fake.calls) == 3
        assert ask()[0] == "Hello."
        assert len(fake.calls) == 4, "what was learned is kept"
        assert fake.calls[-1].json["max_tokens"] == 9


CALLS = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":'
    b'{"name":"patch","arguments":"{\\"input\\":\\"*** x\\"}"}}]},"finish_reason":"tool_calls"}]}'
)


def functional(request: ReceivedRequest) -> Answer:
    """Knows functions only."""
    if b'"custom"' in request.body:
        body = (
            b'{"error":{"message":"Failed to deserialize the JSON body into the target type: tools[0].type: '
            b'unknown variant `custom`, expected `function` at line 1 column 346"}}'
        )
        return Answer(body, status=400, content_type="application/json")
    return Answer(CALLS, content_type="application/json")


def test_a_server_without_freeform_tools_gets_functions(tmp_path: Path) -> None:
    with FakeUpstream(choose=functional) as fake, running(provider_section("chat", fake.url), tmp_path) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0)
        for request in (2, 3):
            reply = client.responses.create(
                model="up/m", input="Patch it.", tools=[{"type": "custom", "name": "patch"}]
            )
            assert [(item.type, item.input) for item in reply.output if item.type == "custom_tool_call"] == [
                ("custom_tool_call", "*** x")
            ]
            assert len(fake.calls) == request
