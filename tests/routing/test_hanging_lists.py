"""A provider whose model list hangs does not delay requests for long."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.upstream import Answer, End, FakeUpstream
from gateway import KEY, Running, provider_section, running
from wire_json import JsonObject

HEAD = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
HANGS = Answer(headless=True, end=End.HANG)
REPLY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
)
BELOW_10_S = 9.5


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    """Freshly started, before a provider that hangs and one that lists `qwen3-coder`."""
    with (
        FakeUpstream(pages={"/v1/models": HANGS}) as hung,
        FakeUpstream([Answer(REPLY, content_type="application/json")], models=("qwen3-coder",)) as quick,
        running(
            provider_section("chat", hung.url, "hung") + provider_section("chat", quick.url, "quick"), tmp_path
        ) as started,
    ):
        yield started


def ask(gateway: Running, model: str) -> tuple[int, JsonObject, float]:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}]}).encode()
    request = urllib.request.Request(gateway.url + "/v1/chat/completions", body, HEAD)
    begun = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            status, error = reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as refused:
        status, error = refused.code, json.loads(refused.read())
    return status, error, time.monotonic() - begun


def test_a_bare_name_that_another_provider_lists_is_resolved_soon(gateway: Running) -> None:
    status, _, seconds = ask(gateway, "qwen3-coder")
    assert (status, seconds < BELOW_10_S) == (200, True), seconds


def test_an_unlisted_name_is_rejected_soon_and_names_the_hanging_provider(gateway: Running) -> None:
    status, error, seconds = ask(gateway, "gpt-9")
    assert (status, seconds < BELOW_10_S) == (404, True), seconds
    assert "'hung'" in error["error"]["message"]


def test_the_list_of_models_comes_soon_without_it(gateway: Running) -> None:
    begun = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(gateway.url + "/v1/models", headers=HEAD), timeout=60) as reply:
        listed = [model["id"] for model in json.loads(reply.read())["data"]]
    assert time.monotonic() - begun < BELOW_10_S
    assert "quick/qwen3-coder" in listed
