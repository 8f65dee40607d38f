"""A gateway that stops in the middle of a stream requests a retry, in a form that each client understands."""

import threading
from pathlib import Path

import pytest

from fakes.upstream import Answer, End
from surface.outside import GRAMMARS, ONCE, Answered, outside
from surface.vendor_replies import STREAM

BEGUN = {"chat": 2, "messages": 3}  # events up to the first text
WORDS = {"chat": ("type", "server_error"), "responses": ("code", "server_error"), "messages": ("type", "api_error")}


@pytest.mark.parametrize("client", WORDS)
def test_a_stream_cut_by_the_end_of_the_gateway_is_worth_a_retry(tmp_path: Path, client: str) -> None:
    upstream = "chat" if client != "chat" else "messages"
    begun = b"".join(block + b"\n\n" for block in STREAM[upstream].split(b"\n\n")[: BEGUN[upstream]])
    answers: list[Answered] = []
    with outside(tmp_path, ONCE + "[server]\ndrain_s = 2\n") as gate:
        fake = gate.play(upstream, Answer(begun, end=End.HANG))
        client_thread = threading.Thread(target=lambda: answers.append(gate.ask(client, f"{upstream}/m", True)))
        client_thread.start()
        while not fake.sent:
            client_thread.join(0.01)
        gate.gateway.stop_soon().result(timeout=60)
        client_thread.join(60)
    text, error = GRAMMARS[client].fold_broken(answers[0].body)
    field, word = WORDS[client]
    assert text
    assert error[field] == word
    assert "shutting down" in error["message"]
