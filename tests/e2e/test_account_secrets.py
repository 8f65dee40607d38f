"""No token of a ChatGPT or GitHub account appears in a log, an error or an answer, whatever happens to it."""

import logging
from pathlib import Path

import anthropic
import openai
import pytest

from e2e.account_rig import run_codex, run_copilot
from e2e.cases import request_for
from fakes import codex, copilot
from fakes.service import json_answer, plain
from sdk_replies import STREAMS, WHOLE, Broke, Sdk

CLIENTS = ("chat", "responses", "messages")


def read_every_reply(sdk: Sdk, model: str) -> str:
    """Return all bytes that every client gets, whole and streamed."""
    response: list[object] = []
    for client in CLIENTS:
        for listen in (WHOLE[client], *STREAMS[client]):
            try:
                response.append(listen(sdk, request_for(client, model)))
            except (openai.APIError, anthropic.APIError) as error:
                response.append(Broke("", error))
            response.append(sdk.headers)
    return repr(response)


def test_codex_keeps_its_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with run_codex(tmp_path) as rig:
        text = read_every_reply(rig.sdk, "codex/gpt-5.5")
        rig.fake.access.clear()  # refused, renewed, served
        text += read_every_reply(rig.sdk, "codex/gpt-5.5")
        rig.fake.script(codex.RESPONSES, *[json_answer({"detail": "Bad token eyJhbGciOi.eyJleHAiOi.c2ln"}, 400)] * 9)
        text += read_every_reply(rig.sdk, "codex/gpt-5.5")
        rig.fake.access.clear()
        rig.fake.refresh.clear()  # refused for good
        text += read_every_reply(rig.sdk, "codex/gpt-5.5")
        issued = len(rig.fake.at(codex.TOKEN))
    assert issued >= 2
    assert "dragoman login codex" in text
    for secret in ("eyJ", "rt_FAKE", "fake-access"):
        assert secret not in text + caplog.text, secret


def test_copilot_keeps_its_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with run_copilot(tmp_path) as rig:
        text = read_every_reply(rig.sdk, "copilot/gpt-4.1")
        rig.fake.sessions.clear()
        text += read_every_reply(rig.sdk, "copilot/gpt-4.1")
        rig.fake.script(copilot.CHAT, *[plain("unauthorized", 401)] * 40)
        text += read_every_reply(rig.sdk, "copilot/gpt-4.1")
        rig.fake.github.clear()
        rig.fake.sessions.clear()
        text += read_every_reply(rig.sdk, "copilot/gpt-4.1")
    assert "dragoman login copilot" in text
    for secret in ("tid=", "ghu_", "gho_"):
        assert secret not in text + caplog.text, secret
