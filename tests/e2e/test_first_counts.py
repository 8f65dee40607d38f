"""A Messages stream begins with the tokens of the request: estimated where the upstream counts only at the end.

Gemini counts the input in each chunk.
"""

from pathlib import Path

import msgspec

from asking import make_body
from fakes.upstream import Answer
from rig import PATHS, Rig, run_rig
from scripting import encode_messages
from scripting.replies import ScriptedReply, Text, Tokens
from wire_json import JsonObject

TRANSLATED = ("chat", "responses", "gemini", "kiro")
COUNTED = ScriptedReply((Text("Well."),), tokens=Tokens(input=4321, output=7))
WORDS = "word " * 2000


def ask(rig: Rig, upstream: str, text: str = WORDS) -> tuple[JsonObject, JsonObject]:
    """Return the counts at the beginning and at the end of the stream."""
    events = rig.ask("messages", upstream, text, stream=True).events
    [first] = [event["message"]["usage"] for event in events if event["type"] == "message_start"]
    [last] = [event["usage"] for event in events if event["type"] == "message_delta"]
    return first, last


def test_the_first_event_has_an_estimate_and_the_last_the_counts(tmp_path: Path) -> None:
    with run_rig(tmp_path, upstreams=(*TRANSLATED, "messages")) as rig:
        for upstream in TRANSLATED:
            rig.play(upstream, COUNTED)
            first, last = ask(rig, upstream)
            size = len(msgspec.json.encode(make_body("messages", rig.model(upstream), WORDS, stream=True)))
            assert first["input_tokens"] == (11 if upstream == "gemini" else size // 4), upstream
            assert (first["output_tokens"], first["cache_read_input_tokens"]) == (0, 0), upstream
            if upstream != "kiro":  # it reports no counts of its own
                assert (last["input_tokens"], last["output_tokens"]) == (4321, 7), upstream
        large = "word " * 40_000  # parsed in a thread
        rig.play("chat", COUNTED)
        assert 50_000 <= ask(rig, "chat", large)[0]["input_tokens"] <= 50_100
        sent = encode_messages.encode_stream(COUNTED)
        rig.play("messages", Answer(sent))
        assert rig.ask("messages", "messages", WORDS, stream=True).body == sent


def test_the_row_has_the_counts_of_the_upstream(tmp_path: Path) -> None:
    with run_rig(tmp_path, upstreams=("chat",)) as rig:
        rig.play("chat", COUNTED)
        body = make_body("messages", rig.model("chat"), WORDS, stream=True)
        reply = rig.send("POST", PATHS["messages"], body)
        usage = rig.gateway.outcome(reply.headers["x-request-id"]).usage
        assert usage is not None
        assert (usage.input, usage.output, usage.source.value) == (4321, 7, "reported")
