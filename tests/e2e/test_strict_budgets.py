"""Where budgets are strict, no request and none of its further upstream requests may cost more than what is left."""

import re
from pathlib import Path

import pytest

from asking import send
from e2e.limit_rig import PRICES, LimitedRig, run_limited
from e2e.search_scene import ANSWERS, SEARCHES, kinds, run_scene
from fakes.upstream import Answer, End
from rig import PROTOCOLS
from scripting import write_reply
from scripting.replies import ScriptedReply, Text
from wire_json import JsonObject

STRICT = '[limits]\nusd_per_month = 0.02\nbudget = "strict"\n'  # 2000 tokens of output
PAIR = ["server_tool_use", "web_search_tool_result"]


def ask(rig: LimitedRig, client: str, most: int) -> tuple[int, str]:
    names = {"messages": "max_tokens", "chat": "max_completion_tokens", "responses": "max_output_tokens"}
    fields: JsonObject = {names[client]: most}
    reply = rig.ask(client, client, key=rig.key, **fields)
    return reply.status, reply.body.decode()


@pytest.mark.parametrize("client", PROTOCOLS)
def test_the_refusal_of_a_request_that_could_not_fit_says_so(client: str, tmp_path: Path) -> None:
    with run_limited(tmp_path, STRICT, upstreams=(client,)) as rig:
        rig.play(client, "Hello", stream=False)
        assert ask(rig, client, 1000)[0] == 200
        rig.wait_until_settled()
        status, body = ask(rig, client, 3000)
        assert status == (429 if client == "responses" else 402)
        assert re.search(r"This request may cost \$0\.03", body)
        assert "Allow fewer output tokens" in body
        assert ask(rig, client, 1000)[0] == 200  # the limit itself is not spent


@pytest.mark.parametrize(("limit", "stop"), [("0.0015", "max_tokens"), ("5", "end_turn")])
def test_a_round_of_tools_that_could_not_fit_ends_the_reply_as_at_its_token_limit(
    limit: str, stop: str, tmp_path: Path
) -> None:
    settings = f'[limits]\nusd_per_month = {limit}\nbudget = "strict"\n{PRICES}'
    with run_scene(tmp_path, settings=settings) as scene:
        scene.play(SEARCHES, ANSWERS)
        message = scene.sdk.anthropic.messages.create(**scene.write_request())
        assert message.stop_reason == stop
        assert kinds(message)[:3] == ["text", *PAIR]
        assert len(scene.sent) == (1 if stop == "max_tokens" else 2)
        scene.play(SEARCHES, ANSWERS)
        with scene.sdk.anthropic.messages.stream(**scene.write_request()) as stream:
            assert stream.get_final_message().stop_reason == stop


@pytest.mark.parametrize(("limit", "has_continued"), [("0.02", False), ("5", True)])
def test_a_continuation_that_could_not_fit_ends_the_reply_as_at_its_token_limit(
    limit: str, has_continued: bool, tmp_path: Path
) -> None:
    models = '[[models]]\nname = "both"\nto = ["chat/m", "messages/m"]\n'
    limits = f'[limits]\nusd_per_month = {limit}\nbudget = "strict"\n{models}'
    settings = "[retry]\nattempts = 1\ncontinue_streams = true\n"
    with run_limited(tmp_path, limits, settings, upstreams=("chat", "messages")) as rig:
        begun = write_reply("chat", ScriptedReply((Text("one two three " * 20),)), cut=400, end=End.RESET)
        rig.play("chat", Answer(begun.body[:2000], end=End.RESET))
        rig.play("messages", "and the rest")
        body = {
            "model": "both",
            "stream": True,
            "max_completion_tokens": 1500,
            "messages": [{"role": "user", "content": "Hi"}],
        }
        reply = send(rig, "POST", "/v1/chat/completions", body, key=rig.key)
        choices = [choice for event in reply.events for choice in event["choices"]]
        finish = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        assert finish == ["stop" if has_continued else "length"]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert ("and the rest" in text) is has_continued
        rig.wait_until_settled()
        [row] = rig.rows(1)
        assert rig.level("all:usd").spent == row.cost_nano_usd
