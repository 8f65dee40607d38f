"""Vendors that differ from OpenAI, played by strict fakes, behind a section that names only the preset."""

import contextlib
from pathlib import Path

import anthropic
import msgspec
import openai
import pytest
from anthropic.types import MessageParam, ToolParam

from dragoman.config.presets import load_presets
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from gateway import KEY, running
from wire_json import JsonObject

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
LOOK: ToolParam = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
# What docs.mistral.ai lists for a request; everything else is answered with 422.
MISTRAL_FIELDS = {"model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "tools", "tool_choice"}
MISTRAL_FIELDS |= {"presence_penalty", "frequency_penalty", "n", "parallel_tool_calls", "response_format"}


def as_json(value: object, status: int = 200) -> Answer:
    return Answer(msgspec.json.encode(value), status, content_type="application/json")


def as_stream(*chunks: object) -> Answer:
    events = b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks)
    return Answer(events + b"data: [DONE]\n\n")


def chunk(delta: JsonObject, finish: str | None = None, **more: object) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more}


def section(kind: str, url: str, more: str = "") -> str:
    return f'[providers.up]\nkind = "{kind}"\nendpoint = "{url}"\napi_key = "sk-fake-vendor"\n{more}'


def reply_like_mistral(request: ReceivedRequest) -> Answer:
    extra = [name for name in request.json if name not in MISTRAL_FIELDS]
    if extra:
        detail = [{"type": "extra_forbidden", "loc": ["body", extra[0]], "msg": "Extra inputs are not permitted"}]
        return as_json({"object": "error", "message": {"detail": detail}, "type": "invalid_request_error"}, 422)
    messages = msgspec.convert(request.json["messages"], list[dict[str, object]])
    calls = [
        call for message in messages for call in msgspec.convert(message.get("tool_calls") or [], list[JsonObject])
    ]
    ids = [str(call["id"]) for call in calls] + [str(m["tool_call_id"]) for m in messages if "tool_call_id" in m]
    for id in ids:
        if not (len(id) == 9 and id.isalnum() and id.isascii()):
            message = f"Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9."
            return as_json({"object": "error", "message": message, "type": "invalid_request_error"}, 400)
    thinking: JsonObject = {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}
    return as_stream(chunk(thinking), chunk({"content": "Done."}), chunk({"content": ""}, "stop", usage=USAGE))


def test_mistral_gets_no_field_that_it_rejects_and_short_ids_of_calls(tmp_path: Path) -> None:
    history: list[MessageParam] = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_01A", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01A", "content": "a cat"}]},
    ]
    with FakeUpstream(choose=reply_like_mistral) as fake, running(section("mistral", fake.url), tmp_path) as gateway:
        client = anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0)
        with client.messages.stream(
            model="up/m", max_tokens=99, system="Be brief.", messages=history, tools=[LOOK], metadata={"user_id": "u"}
        ) as stream:
            reply = stream.get_final_message()
        assert [block.type for block in reply.content] == ["thinking", "text"]
        assert reply.content[-1].type == "text"
        assert reply.content[-1].text == "Done."
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (3, 2)
        (_call,) = fake.calls  # nothing had to be learned from a rejection


def test_deepseek_has_messages_at_another_address_and_wants_its_reasoning_back(tmp_path: Path) -> None:
    def answer(request: ReceivedRequest) -> Answer:
        if request.path.startswith("/anthropic/v1/messages"):
            text = [{"type": "text", "text": "messages"}]
            usage = {"input_tokens": 1, "output_tokens": 1}
            whole = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": text, "usage": usage}
            return as_json(whole | {"stop_reason": "end_turn", "stop_sequence": None})
        turns = msgspec.convert(request.json["messages"], list[dict[str, object]])
        if any(turn["role"] == "assistant" and not turn.get("reasoning_content") for turn in turns):
            error = {"message": "The reasoning_content must be passed back", "type": "invalid_request_error"}
            return as_json({"error": error}, 400)
        message = {"role": "assistant", "content": "chat", "reasoning_content": "Hm."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return as_json({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})

    with FakeUpstream(choose=answer) as fake:
        root = fake.url.removesuffix("/v1")
        own = f'endpoints = {{ messages = "{root}/anthropic" }}\n'
        with running(section("deepseek", root, own), tmp_path) as gateway:
            messages = anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0).messages
            reply = messages.create(model="up/m", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])
            assert reply.content[0].type == "text"
            assert reply.content[0].text == "messages"
            responses = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0).responses
            first = responses.create(model="up/m", input="Hi", store=False)
            output = [item.to_dict() for item in first.output]
            history = [{"role": "user", "content": "Hi"}, *output, {"role": "user", "content": "Go on"}]
            second = responses.create(model="up/m", store=False, input="", extra_body={"input": history})
            assert second.output_text == "chat"
        assert [call.path for call in fake.calls] == ["/anthropic/v1/messages", *["/v1/chat/completions"] * 2]


def test_github_lists_its_models_elsewhere_and_as_an_array(tmp_path: Path) -> None:
    listed = as_json([{"id": "openai/gpt-4.1", "name": "OpenAI GPT-4.1", "publisher": "OpenAI"}])
    with FakeUpstream(pages={"/catalog/models": listed}) as fake:
        root = fake.url.removesuffix("/v1")
        own = f'models_endpoint = "{root}/catalog/models"\n'
        with running(section("github-models", f"{root}/inference", own), tmp_path) as gateway:
            gateway.settle()
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY)
            assert "up/openai/gpt-4.1" in [model.id for model in client.models.list()]
            fake.answers.append(as_stream(chunk({"content": "Hi"}), chunk({}, "stop")))
            for _ in client.chat.completions.create(
                model="openai/gpt-4.1", messages=[{"role": "user", "content": "Hi"}], stream=True
            ):
                pass
        assert fake.calls[0].path == "/inference/chat/completions"
        assert fake.calls[0].headers["authorization"] == "Bearer sk-fake-vendor"


def test_cloudflare_and_cohere_name_the_models_of_their_lists_differently(tmp_path: Path) -> None:
    pages = {
        "/cloudflare": as_json({"success": True, "result": [{"id": "429b-8a", "name": "@cf/meta/llama-4"}]}),
        "/cohere": as_json({"models": [{"name": "command-a", "endpoints": ["chat"]}]}),
    }
    with FakeUpstream(pages=pages) as fake:
        root = fake.url.removesuffix("/v1")
        sections = "".join(
            f'[providers.{kind}]\nkind = "{kind}"\nendpoint = "{fake.url}"\nmodels_endpoint = "{root}/{kind}"\n'
            'api_key = "sk-fake-vendor"\n'
            for kind in ("cloudflare", "cohere")
        )
        with running(sections, tmp_path) as gateway:
            gateway.settle()
            models = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY).models.list()
            assert {"cloudflare/@cf/meta/llama-4", "cohere/command-a"} <= {model.id for model in models}


def test_claude_on_aws_gets_its_workspace_and_cloudflares_gateway_its_own_key_header(tmp_path: Path) -> None:
    with FakeUpstream(choose=lambda _: as_json({"error": {"message": "no"}}, 400)) as fake:
        text = section("claude-aws", fake.url, 'workspace = "wrkspc_1"\n')
        text += section("cloudflare-gateway", fake.url).replace("providers.up", "providers.cf")
        with running(text, tmp_path) as gateway:
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0)
            for model in ("up/m", "cf/m"):
                with contextlib.suppress(openai.BadRequestError):
                    client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}])
        aws, cloudflare = (call.headers for call in fake.calls)
        assert (aws["anthropic-workspace-id"], aws["x-api-key"]) == ("wrkspc_1", "sk-fake-vendor")
        assert cloudflare["cf-aig-authorization"] == "Bearer sk-fake-vendor"
        assert "authorization" not in cloudflare


def test_an_error_that_openrouter_sends_within_a_stream_is_an_error_for_the_client(tmp_path: Path) -> None:
    failed = chunk({"content": ""}, "error", error={"code": 502, "message": "Provider disconnected"})
    stream = b": OPENROUTER PROCESSING\n\n" + as_stream(chunk({"content": "Half"}), failed).body
    only_chat = 'protocol = "chat"\n'
    with (
        FakeUpstream(answers=[Answer(stream)]) as fake,
        running(section("openrouter", fake.url, only_chat), tmp_path) as gateway,
    ):
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0)
        events = client.responses.create(model="up/m", input="Hi", stream=True)
        with pytest.raises(openai.APIError, match="Provider disconnected"):
            list(events)


def test_a_deployment_of_azure_is_requested_by_any_name_because_its_list_is_not_read(tmp_path: Path) -> None:
    assert not load_presets()["azure-openai"].list_models
    answer = as_stream(chunk({"content": "Hi"}), chunk({}, "stop"))
    with FakeUpstream(answers=[answer], models=("gpt-4o",)) as fake:
        text = section("azure-openai", fake.url, "list_models = false\nprotocol = 'chat'\n")
        with running(text, tmp_path) as gateway:
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0)
            for _ in client.chat.completions.create(
                model="my-deployment", messages=[{"role": "user", "content": "Hi"}], stream=True
            ):
                pass
            assert [model.id for model in client.models.list()] == []
        assert fake.calls[0].json["model"] == "my-deployment"
        assert all(request.method == "POST" for request in fake.requests)
