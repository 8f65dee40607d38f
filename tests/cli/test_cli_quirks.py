"""`dragoman quirks`: what was learned is shown, survives a restart, and a running gateway forgets it on command."""

import msgspec
import pytest

from asking import send
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from scripting import write_reply
from shell import Served, Shell
from waiting import wait_until
from wire_json import JsonObject

BODY: JsonObject = {"model": "up/m", "seed": 1, "messages": [{"role": "user", "content": "Hi"}]}


def refuse_seed(request: ReceivedRequest) -> Answer:
    if "seed" in request.json:
        error = {"error": {"message": "Unsupported parameter: 'seed'", "type": "invalid_request_error"}}
        return Answer(msgspec.json.encode(error), 400, "application/json")
    return write_reply("chat", "Fine.", stream=False)


def ask(served: Served, key: str) -> None:
    assert send(served, "POST", "/v1/chat/completions", BODY, key=key).status == 200


def list_rules(shell: Shell) -> list[JsonObject]:
    return msgspec.json.decode(shell.run("quirks", "--json").out, type=list[JsonObject])


@pytest.mark.rest
def test_what_was_learnt_is_shown_survives_a_restart_and_is_forgotten_on_command(shell: Shell) -> None:
    with FakeUpstream(choose=refuse_seed) as fake:
        section = f'[providers.up]\nkind = "openai-compatible"\nprotocol = "chat"\nendpoint = "{fake.url}"\n'
        shell.write("up.toml", section)
        with shell.serve("--config", "up.toml") as served:
            key = served.key
            ask(served, key)
            assert len(fake.calls) == 2
            wait_until(lambda: bool(list_rules(shell)))
        [rule] = list_rules(shell)
        assert (rule["rule"], rule["path"], rule["provider"]) == ("unsupported_parameter", "/seed", "up")
        assert (rule["model"], rule["key"]) == ("m", "first")
        assert rule["learnt"] < rule["until"]
        assert "/seed" in shell.run("quirks").out
        with shell.serve("--config", "up.toml", "--workers", "2") as served:
            for number in range(3, 9):
                ask(served, key)
                assert len(fake.calls) == number, "it was learned before the restart, and each worker knows it"
            assert shell.run("quirks", "forget", "other").out == "Forgot 0 rules.\n"
            assert shell.run("quirks", "forget", "up").out == "Forgot 1 rule.\n"

            def tries_full_form() -> bool:
                ask(served, key)
                return "seed" in fake.calls[-2].json

            wait_until(tries_full_form)
        assert shell.run("quirks", "forget").code == 2
        assert shell.run("quirks", "forget", "--all").code == 0
        assert list_rules(shell) == []
        assert "No rules were learned" in shell.run("quirks").err
