"""Most of a limit is spent: a log line, a metric and the webhook say so, once."""

import logging
from pathlib import Path

import pytest

from e2e.limit_rig import run_limited
from fakes.service import json_answer
from fakes.upstream import Answer, FakeUpstream
from scripting import write_reply
from scripting.replies import ScriptedReply, Text, Tokens
from waiting import wait_until


@pytest.mark.parametrize(("answers", "tries"), [((json_answer({}),), 1), ((json_answer({}, 500), json_answer({})), 2)])
def test_most_of_a_limit_is_spent(
    answers: tuple[Answer, ...], tries: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with FakeUpstream() as hook:
        hook.answers = list(answers)
        limits = f'[limits]\nwebhook = "{hook.url}/budget"\nusd_per_month = 1\n[limits.key]\ntokens_per_day = 100000\n'
        with run_limited(tmp_path, limits, upstreams=("chat",)) as rig:
            tokens = Tokens(80_000, 1)
            rig.play("chat", write_reply("chat", ScriptedReply((Text("Hello"),), tokens=tokens), stream=False))
            assert rig.ask_limited("chat").status == 200
            wait_until(lambda: len(hook.calls) == tries)
            posted = hook.calls[-1].json
            assert (posted["percent"], posted["limit"]) == (75, "tokens_per_day")
            assert rig.level("key").counter.startswith(posted["scope"] + ":tokens:")
            assert posted["title"] == 'the key "laptop"'
            assert (posted["value"], posted["spent"]) == (100_000, 80_001)
            assert posted["resets_at"] > 0
            metrics = rig.send("GET", "/metrics").body.decode()
            assert 'dragoman_limit_warnings_total{percent="75"} 1' in metrics
            assert 'dragoman_limit_warnings_total{percent="95"} 0' in metrics
            assert '80 % of the limit tokens_per_day = 100000 of the key "laptop" is spent' in caplog.text
            rig.play("chat", "Hello", stream=False)
            assert rig.ask_limited("chat").status == 200
            wait_until(lambda: rig.level("key").spent > 80_001)
            wait_until(lambda: "dragoman_limits_waiting 0" in rig.send("GET", "/metrics").body.decode())
            assert len(hook.calls) == tries


def test_a_request_that_passes_both_thresholds_is_warned_of_at_both(tmp_path: Path) -> None:
    with FakeUpstream() as hook:
        hook.answers = [json_answer({})]
        limits = f'[limits]\nwebhook = "{hook.url}/budget"\n[limits.key]\ntokens_per_day = 1000\n'
        with run_limited(tmp_path, limits, upstreams=("chat",)) as rig:
            reply = ScriptedReply((Text("Hello"),), tokens=Tokens(1_000, 1))
            rig.play("chat", write_reply("chat", reply, stream=False))
            assert rig.ask_limited("chat").status == 200
            wait_until(lambda: len(hook.calls) == 2)
            assert [call.json["percent"] for call in hook.calls] == [75, 95]
            metrics = rig.send("GET", "/metrics").body.decode()
            assert 'dragoman_limit_warnings_total{percent="75"} 1' in metrics
