"""Claude Code's picker shows every model of the gateway: those without "claude" in their name behind a prefix."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import ask
from rig import ONCE, Rig, run_rig
from wire_json import Json, JsonObject

PICKER = {"user-agent": "claude-code/2.1.325", "anthropic-version": "2023-06-01"}
OTHERS = {"user-agent": "claude-cli/2.1.325 (external, cli)", "anthropic-version": "2023-06-01"}
OURS = "claude-code/chat/qwen3"
MODELS = '[[models]]\nname = "fast"\nto = ["chat/qwen3"]\n'


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("picker")
    window = {"chat": "context_window = 131072\n"}
    names = ("qwen3", "My-Claude-x")
    with run_rig(directory, ONCE + MODELS, names, upstreams=("chat", "messages"), options=window) as rig:
        yield rig


def list_models(rig: Rig, headers: dict[str, str]) -> dict[str, JsonObject]:
    listed: list[Json] = rig.send("GET", "/v1/models?limit=1000", headers=headers).json["data"]
    return {model["id"]: model for model in listed}


def test_the_picker_is_offered_every_model_by_a_name_that_it_shows(rig: Rig) -> None:
    shown = list_models(rig, PICKER)
    usual = list_models(rig, OTHERS)
    assert {id: model for id, model in shown.items() if id in usual} == usual
    added = {id for id in shown if id not in usual}
    assert added == {f"claude-code/{id}" for id in usual if "claude" not in id.lower()}
    assert OURS in added
    assert shown[OURS]["display_name"] == "qwen3"
    assert shown[OURS]["description"] == "chat/qwen3, 131,072 tokens"
    assert shown["claude-code/fast"]["description"] == "chat/qwen3, 131,072 tokens"
    assert all(len(shown[id]["description"]) <= 100 for id in added)


@pytest.mark.parametrize("client", ["messages", "chat", "responses", "gemini"])
@pytest.mark.parametrize("name", ["chat/qwen3", "fast"])
def test_the_prefix_is_no_part_of_the_name(rig: Rig, client: str, name: str) -> None:
    fake = rig.play("chat", "Yes.", stream=False)
    reply = ask(rig, client, f"claude-code/{name}")
    assert (reply.status, reply.headers["x-dragoman-route"]) == (200, "chat/qwen3")
    assert fake.calls[-1].json["model"] == "qwen3"
    if client in ("messages", "responses"):
        assert reply.json["model"] == f"claude-code/{name}", "the name that the client asked for"
    outcome = rig.gateway.outcome(reply.headers["x-request-id"])
    assert outcome.requested_model == name


def test_tokens_are_counted_and_a_model_is_shown_by_that_name(rig: Rig) -> None:
    body = {"model": OURS, "messages": [{"role": "user", "content": "Hello"}]}
    assert rig.send("POST", "/v1/messages/count_tokens", body).json["input_tokens"] > 0
    shown = rig.send("GET", f"/v1/models/{OURS}", headers=OTHERS)
    assert (shown.status, shown.json["id"], shown.json["max_input_tokens"]) == (200, OURS, 131072)
    unknown = ask(rig, "messages", "claude-code/nothing")
    assert unknown.status == 404
    assert "'nothing'" in unknown.json["error"]["message"]


def test_what_a_key_may_use_is_judged_without_the_prefix(tmp_path: Path) -> None:
    with run_rig(tmp_path, ONCE, ("qwen3", "other"), upstreams=("chat",), keys=["alice"]) as rig:
        assert rig.send("PATCH", "/api/v1/keys/alice", {"models": ["chat/qwen3"]}).status == 200
        key = rig.gateway.keys["alice"]
        listed = rig.send("GET", "/v1/models", key=key, headers=PICKER).json["data"]
        assert {model["id"] for model in listed} >= {"chat/qwen3", OURS}
        assert not any("other" in model["id"] for model in listed)
        rig.play("chat", "Yes.", stream=False)
        assert ask(rig, "messages", OURS, key=key).status == 200
        assert ask(rig, "messages", "claude-code/chat/other", key=key).status == 404
        assert rig.send("GET", f"/v1/models/{OURS}", key=key).status == 200
        assert rig.send("GET", "/v1/models/claude-code/chat/other", key=key).status == 404
