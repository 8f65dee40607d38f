"""The vendor's own id of a request, in the log."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.account_rig import KIRO_MODEL as MODEL
from e2e.account_rig import run_kiro
from e2e.cases import request_for
from fakes.kiro import make_framed, refusal, tail, words
from sdk_replies import WHOLE


@pytest.mark.parametrize(
    ("level", "expected"),
    [(logging.INFO, ["fake-request-1"]), (logging.DEBUG, ["fake-request-1", "fake-request-2"])],
    ids=["of the refused", "of all, when more is logged"],
)
def test_kiros_request_ids_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: int, expected: list[str]
) -> None:
    overloaded = refusal(500, "Encountered unexpectedly high load.", kind="InternalServerException")
    with caplog.at_level(level, "dragoman"), run_kiro(tmp_path) as rig:
        rig.play(
            replace(overloaded, headers=(("x-amzn-requestid", "fake-request-1"),)),
            make_framed(words("Hello"), tail(), headers=(("x-amzn-requestid", "fake-request-2"),)),
        )
        WHOLE["chat"](rig.sdk, request_for("chat", MODEL))
    ids = ("fake-request-1", "fake-request-2")
    assert [id for line in caplog.messages for id in ids if id in line] == expected
