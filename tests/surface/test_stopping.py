"""A gateway that stops in the middle of a stream requests a retry, in a form that each client understands."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fakes.upstream import End
from rig import ONCE, run_rig
from scripting import write_reply
from scripting.replies import Ending, ScriptedReply, Text
from surface.reading import GRAMMARS
from waiting import wait_until

BEGUN = ScriptedReply((Text("Hel"),), ending=Ending.NONE)
UPSTREAMS = {"chat": "messages", "responses": "chat", "messages": "chat"}
WORDS = {"chat": ("type", "server_error"), "responses": ("code", "server_error"), "messages": ("type", "api_error")}


def test_a_stream_cut_by_the_end_of_the_gateway_is_worth_a_retry(tmp_path: Path) -> None:
    with run_rig(tmp_path, ONCE + "[server]\ndrain_s = 1\n") as gate, ThreadPoolExecutor(3) as pool:
        begun = {upstream: write_reply(upstream, BEGUN, end=End.HANG) for upstream in UPSTREAMS.values()}
        fakes = [gate.play(upstream, answer) for upstream, answer in begun.items()]
        replies = {client: pool.submit(gate.ask, client, up, stream=True) for client, up in UPSTREAMS.items()}
        sent = sum(len(begun[upstream].body) for upstream in UPSTREAMS.values())
        wait_until(lambda: sum(fake.sent for fake in fakes) == sent)
        gate.gateway.stop_soon().result(timeout=60)
        for client, reply in replies.items():
            text, error = GRAMMARS[client].fold_broken(reply.result().body)
            field, word = WORDS[client]
            assert text, client
            assert error[field] == word, client
            assert "shutting down" in error["message"], client
