"""What is kept when the client leaves, the upstream fails, or the store does."""

import openai
import pytest

from rig import ONCE
from scripting.replies import Ending, ScriptedReply, Stop, Text
from state.state_rig import HELLO, OpenStream, StateRig, endless, read_store_field, state_rigged
from waiting import wait_until


def test_a_client_that_leaves_finds_its_response_cancelled(rig: StateRig) -> None:
    rig.play("chat", endless())
    leaving = OpenStream(rig, "POST", "/responses", {"model": "chat/m", "input": "Hi", "stream": True})
    id = next(leaving.events())["response"]["id"]
    leaving.leave()
    wait_until(lambda: rig.http("GET", f"/responses/{id}").status != 404)
    reply = rig.http("GET", f"/responses/{id}")
    assert (reply.json["status"], reply.json["output"], reply.json["error"]) == ("cancelled", [], None)


def test_a_reply_that_breaks_off_is_stored_as_failed_before_its_last_event(rig: StateRig) -> None:
    rig.play("chat", ScriptedReply((Text("Hello"),), ending=Ending.ERROR), stream=True)
    reply = rig.http("POST", "/responses", body={"model": "chat/m", "input": "Hi", "stream": True})
    last = reply.events[-1]
    assert last["type"] == "response.failed"
    found = rig.openai.responses.retrieve(last["response"]["id"])
    assert found.status == "failed"
    assert found.error is not None


def test_an_incomplete_response_can_be_continued(rig: StateRig) -> None:
    rig.play("chat", ScriptedReply((Text("Hello"),), Stop.CAP), HELLO)
    first = rig.create(model="chat/m", input="Hi", max_output_tokens=16)
    assert first.status == "incomplete"
    rig.create(model="chat/m", input="Go on", previous_response_id=first.id)


def test_nothing_is_kept_where_the_configuration_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    with state_rigged(tmp_path_factory.mktemp("off"), ONCE + "[responses]\nstore = false\n") as rig:
        rig.play("chat", HELLO)
        made = rig.create(model="chat/m", input="unmistakable-canary")
        assert read_store_field(made) is False
        with pytest.raises(openai.NotFoundError):
            rig.openai.responses.retrieve(made.id)
        items = [{"role": "user", "content": "unmistakable-canary"}]
        refused = rig.http("POST", "/conversations", body={"items": items})
        assert (refused.status, b"store = false" in refused.body) == (400, True)
        files = [file for file in rig.directory.rglob("*") if file.is_file()]
        assert not any(b"unmistakable-canary" in file.read_bytes() for file in files)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_store_that_fails_costs_no_reply_and_is_reported(
    tmp_path_factory: pytest.TempPathFactory, stream: bool
) -> None:
    with state_rigged(tmp_path_factory.mktemp("broken")) as rig:
        rig.play("chat", HELLO, HELLO, HELLO, stream=stream)
        kept = rig.create(stream=stream, model="chat/m", input="Hi")
        rig.break_store()
        made = rig.create(stream=stream, model="chat/m", input="Hi")
        assert (read_store_field(made), made.output_text) == (False, "Hello Ada.")
        later = rig.http("POST", "/responses", body={"model": "chat/m", "input": "Hi", "stream": stream})
        assert int(later.headers["x-dragoman-loss"]) >= 1
        needs = rig.http("POST", "/responses", body={"model": "chat/m", "input": "?", "previous_response_id": kept.id})
        assert (needs.status, b"store of responses" in needs.body) == (503, True)
