"""Compacted contexts: by their own path and by a trigger, over upstreams that know no such thing."""

import openai
import pytest

from scripting.replies import Text
from state.state_rig import AGAIN, HELLO, STATELESS, StateRig
from wire_json import JsonObject

NOTE = (Text("Ada greeted us. Next: answer her."),)
upstreams = pytest.mark.parametrize("upstream", STATELESS)


@upstreams
def test_a_compacted_context_is_the_next_input(rig: StateRig, upstream: str) -> None:
    rig.play(upstream, HELLO, NOTE, AGAIN)
    model = rig.model(upstream)
    first = rig.create(model=model, input="I am Ada.")
    compacted = rig.openai.responses.compact(model=model, input="Remember me.", previous_response_id=first.id)
    assert compacted.object == "response.compaction"
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert compacted.usage.total_tokens > 0
    with pytest.raises(openai.NotFoundError):
        rig.openai.responses.retrieve(compacted.id)
    kept = [item.model_dump(exclude_none=True) for item in compacted.output]
    rig.create(model=model, input=[*kept, {"role": "user", "content": "Who am I?"}])
    sent = rig.calls(upstream)[-1].body
    assert b"Ada greeted us. Next: answer her." in sent
    assert b"Hello Ada." not in sent


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@upstreams
def test_a_trigger_makes_the_response_one_compaction(rig: StateRig, upstream: str, stream: bool) -> None:
    rig.play(upstream, HELLO, NOTE, AGAIN)
    model = rig.model(upstream)
    first = rig.create(model=model, input="I am Ada.", instructions="Be brief.")
    trigger = [{"type": "compaction_trigger"}]
    compacted = rig.create(stream=stream, model=model, input=trigger, previous_response_id=first.id)
    [item] = compacted.output
    assert item.type == "compaction"
    assert rig.openai.responses.retrieve(compacted.id).output == compacted.output
    rig.create(model=model, input="Who am I?", previous_response_id=compacted.id)
    sent = rig.calls(upstream)[-1].body
    assert b"Ada greeted us." in sent
    assert b"I am Ada." not in sent


def refusal(rig: StateRig, body: object, key: str = "alice", path: str = "/responses") -> tuple[int, JsonObject]:
    reply = rig.http("POST", path, key, body)
    error = reply.json["error"]
    assert isinstance(error, dict)
    return reply.status, error


def test_a_trigger_stands_last(rig: StateRig) -> None:
    items = [{"type": "compaction_trigger"}, {"role": "user", "content": "Hi"}]
    status, error = refusal(rig, {"model": "chat/m", "input": items})
    assert (status, error["param"]) == (400, "input[0]")


def test_a_model_is_needed(rig: StateRig) -> None:
    status, error = refusal(rig, {"input": "Hi"}, path="/responses/compact")
    assert (status, error["code"], error["param"]) == (400, "missing_required_parameter", "model")


def test_a_broken_compaction_or_another_keys_is_refused_by_name(rig: StateRig) -> None:
    rig.play("chat", NOTE)
    compacted = rig.openai.responses.compact(model="chat/m", input="I am Ada.")
    item = compacted.output[-1].model_dump(exclude_none=True)
    token = item["encrypted_content"]
    changed = token[:40] + ("A" if token[40] != "A" else "B") + token[41:]
    broken = [("alice", {**item, "encrypted_content": each}) for each in ("dgm1.c.broken", changed, token[:-1])]
    for key, bad in (("bob", item), *broken):
        for store in (True, False):
            body = {"model": "chat/m", "input": [bad, {"role": "user", "content": "Hi"}], "store": store}
            status, error = refusal(rig, body, key)
            assert (status, error["param"]) == (400, "input[0]")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@upstreams
def test_a_compaction_says_who_wrote_it_and_what_was_lost(rig: StateRig, upstream: str, stream: bool) -> None:
    rig.play(upstream, NOTE, NOTE)
    trigger = [{"role": "user", "content": "I am Ada."}, {"type": "compaction_trigger"}]
    for reply in (
        rig.http("POST", "/responses/compact", body={"model": rig.model(upstream), "input": "I am Ada."}),
        rig.http("POST", "/responses", body={"model": rig.model(upstream), "input": trigger, "stream": stream}),
    ):
        assert (reply.status, reply.headers["x-dragoman-route"]) == (200, rig.model(upstream))
        assert int(reply.headers["x-dragoman-loss"]) == (1 if upstream == "messages" else 0)
