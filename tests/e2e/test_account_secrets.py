"""No token of a ChatGPT or GitHub account appears in a log, an error or an answer, whatever happens to it."""

import logging
from pathlib import Path

import anthropic
import openai
import pytest

from e2e.account_rig import codex_rigged, copilot_rigged
from e2e.cases import asked
from e2e.hearing import STREAMS, WHOLE, Broke, Sdk
from fakes import codex, copilot
from fakes.service import json_answer, plain

CLIENTS = ("chat", "responses", "messages")


def everything(sdk: Sdk, model: str) -> str:
    """All that every client is told, whole and streamed."""
    told: list[object] = []
    for client in CLIENTS:
        for listen in (WHOLE[client], *STREAMS[client]):
            try:
                told.append(listen(sdk, asked(client, model)))
            except (openai.APIError, anthropic.APIError) as error:
                told.append(Broke("", error))
            told.append(sdk.headers)
    return repr(told)


def test_codex_keeps_its_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with codex_rigged(tmp_path) as rig:
        said = everything(rig.sdk, "codex/gpt-5.5")
        rig.fake.access.clear()  # refused, renewed, served
        said += everything(rig.sdk, "codex/gpt-5.5")
        rig.fake.script(codex.RESPONSES, *[json_answer({"detail": "Bad token eyJhbGciOi.eyJleHAiOi.c2ln"}, 400)] * 9)
        said += everything(rig.sdk, "codex/gpt-5.5")
        rig.fake.access.clear()
        rig.fake.refresh.clear()  # refused for good
        said += everything(rig.sdk, "codex/gpt-5.5")
        issued = len(rig.fake.at(codex.TOKEN))
    assert issued >= 2
    assert "dragoman login codex" in said
    for secret in ("eyJ", "rt_FAKE", "fake-access"):
        assert secret not in said + caplog.text, secret


def test_copilot_keeps_its_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with copilot_rigged(tmp_path) as rig:
        said = everything(rig.sdk, "copilot/gpt-4.1")
        rig.fake.sessions.clear()
        said += everything(rig.sdk, "copilot/gpt-4.1")
        rig.fake.script(copilot.CHAT, *[plain("unauthorized", 401)] * 40)
        said += everything(rig.sdk, "copilot/gpt-4.1")
        rig.fake.github.clear()
        rig.fake.sessions.clear()
        said += everything(rig.sdk, "copilot/gpt-4.1")
    assert "dragoman login copilot" in said
    for secret in ("tid=", "ghu_", "gho_"):
        assert secret not in said + caplog.text, secret
