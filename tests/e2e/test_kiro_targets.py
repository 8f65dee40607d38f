"""Kiro in AWS's JSON encoding: every operation is posted to `/`, with its name in `x-amz-target`."""

from pathlib import Path

import openai

from e2e.account_rig import KIRO_MODEL as MODEL
from fakes.eventstream import event
from fakes.kiro import FakeKiro, make_framed, sign, tail, words
from gateway import KEY, running
from rig import QUICK


def test_operations_named_in_a_header_are_all_posted_to_the_root(tmp_path: Path) -> None:
    file = tmp_path / "kiro-auth-token.json"
    with FakeKiro() as fake:
        tokens = fake.issue()
        sign(file, str(tokens["accessToken"]), str(tokens["refreshToken"]), 7200)
        fake.replies = [make_framed(event("initial-response", {}), words("Hello"), tail())]
        with running("\n".join([QUICK, fake.section(str(file), operations_by="target")]), tmp_path) as gateway:
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0)
            listed = {model.id for model in client.models.list()}
            reply = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    assert reply.choices[0].message.content == "Hello"
    assert {f"kiro/{model['modelId']}" for model in fake.listed} <= listed
    assert {(request.method, request.path, request.headers["content-type"]) for request in fake.requests} == {
        ("POST", "/", "application/x-amz-json-1.0")
    }
    assert {request.headers["x-amz-target"] for request in fake.requests} == {
        "KiroRuntimeService.GenerateAssistantResponse",
        "KiroControlPlaneBearerService.ListAvailableModels",
    }
