"""An upstream that keeps responses itself stays their keeper: bytes pass, and each id belongs to one client key."""

import json
from collections.abc import Iterator

import openai
import pytest

from fakes.upstream import Answer, ReceivedRequest
from raw_http import dial, request_bytes
from state.state_rig import HELLO, StateRig, state_rigged
from waiting import wait_until


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateRig]:
    with state_rigged(tmp_path_factory.mktemp("keepers")) as shared:
        yield shared


def answer_kept(request: ReceivedRequest) -> Answer | None:
    return keeper(request) if "/responses" in request.path else None


def keeper(request: ReceivedRequest) -> Answer:
    """A vendor that stores one response, and repeats the request for it."""
    body: dict[str, object]
    if request.path.startswith("/v1/responses/resp_up"):
        body = {"id": "resp_up", "object": "response", "how": f"{request.method} {request.path}", "output": []}
        return Answer(json.dumps(body).encode(), content_type="application/json")
    body = {"id": "resp_up", "object": "response", "status": "completed", "output": [], "spaced": 1}
    if json.loads(request.body).get("stream"):
        event = {"type": "response.completed", "response": body, "sequence_number": 0}
        created = {"type": "response.created", "response": {**body, "status": "in_progress"}, "sequence_number": 0}
        return Answer(b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in (created, event)))
    return Answer(json.dumps(body, indent=1).encode(), content_type="application/json")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_bytes_pass_and_later_requests_go_to_the_keeper_alone(rig: StateRig, stream: bool) -> None:
    rig.fakes["openai"].intercept = answer_kept
    first = {"model": "openai/m", "input": "Hi", "stream": stream}
    reply = rig.http("POST", "/responses", body=first)
    assert reply.status == 200
    expected = keeper(rig.calls("openai")[-1])
    assert reply.body == expected.body
    later = {**first, "previous_response_id": "resp_up"}
    assert rig.http("POST", "/responses", body=later).body == expected.body
    assert rig.calls("openai")[-1].json["previous_response_id"] == "resp_up"
    found = rig.http("GET", "/responses/resp_up?include%5B%5D=x")
    assert found.json["how"] == "GET /v1/responses/resp_up?include%5B%5D=x"
    listed = rig.http("GET", "/responses/resp_up/input_items?limit=2")
    assert listed.json["how"] == "GET /v1/responses/resp_up/input_items?limit=2"
    assert rig.http("POST", "/responses/resp_up/cancel").json["how"] == "POST /v1/responses/resp_up/cancel"
    calls = len(rig.fakes["openai"].requests)
    for method, path, body in (
        ("POST", "/responses", later),
        ("GET", "/responses/resp_up", None),
        ("DELETE", "/responses/resp_up", None),
        ("POST", "/responses/resp_up/cancel", None),
        ("GET", "/responses/resp_up/input_items", None),
    ):
        assert rig.http(method, path, "bob", body).status in (400, 404)
    assert len(rig.fakes["openai"].requests) == calls, "another key's ids never reach the shared account"
    assert rig.http("DELETE", "/responses/resp_up").json["how"] == "DELETE /v1/responses/resp_up"
    assert rig.http("GET", "/responses/resp_up").status == 404


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_item_that_the_vendor_keeps_is_referred_to_by_its_owner_alone(rig: StateRig, stream: bool) -> None:
    rig.play("openai", HELLO, HELLO, stream=stream)
    made = rig.create(stream=stream, model="openai/m", input="Hi")
    items = [{"type": "item_reference", "id": made.output[0].id}, {"role": "user", "content": "More"}]
    rig.create(stream=stream, model="openai/m", input=items)
    assert rig.calls("openai")[-1].json["input"] == items
    calls = len(rig.calls("openai"))
    for key, model in (("bob", "openai/m"), ("alice", "chat/m")):
        assert rig.http("POST", "/responses", key, {"model": model, "input": items}).status in (400, 404)
    assert len(rig.calls("openai")) == calls


def test_a_keeper_runs_background_responses_itself(rig: StateRig) -> None:
    rig.fakes["openai"].intercept = answer_kept
    started = rig.http("POST", "/responses", body={"model": "openai/m", "input": "Hi", "background": True})
    assert (started.status, started.json["id"]) == (200, "resp_up")
    assert rig.calls("openai")[-1].json["background"] is True
    assert rig.http("POST", "/responses/resp_up/cancel").json["how"] == "POST /v1/responses/resp_up/cancel"
    assert rig.http("GET", "/responses/resp_up?stream=true").json["how"] == "GET /v1/responses/resp_up?stream=true"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_keeper_gets_a_background_response_whose_client_has_left(rig: StateRig, stream: bool) -> None:
    rig.fakes["openai"].intercept = answer_kept
    body = json.dumps({"model": "openai/m", "input": "Hi", "background": True, "stream": stream}).encode()
    for _ in range(50):
        with dial(rig.port) as client:
            client.sendall(request_bytes("/v1/responses", body, key=rig.gateway.keys["alice"]))
    wait_until(lambda: len(rig.calls("openai")) == 50)


def test_a_response_that_its_keeper_could_not_delete_is_still_known(rig: StateRig) -> None:
    rig.fakes["openai"].intercept = answer_kept
    rig.http("POST", "/responses", body={"model": "openai/m", "input": "Hi"})
    rig.fakes["openai"].intercept = lambda request: Answer(b"{}", status=500) if request.method == "DELETE" else None
    assert rig.http("DELETE", "/responses/resp_up").status == 500
    rig.fakes["openai"].intercept = answer_kept
    assert rig.http("DELETE", "/responses/resp_up").json["how"] == "DELETE /v1/responses/resp_up"


def test_what_one_provider_keeps_cannot_be_continued_by_another(rig: StateRig) -> None:
    rig.fakes["openai"].intercept = answer_kept
    rig.http("POST", "/responses", body={"model": "openai/m", "input": "Hi"})
    with pytest.raises(openai.BadRequestError) as refused:
        rig.create(model="chat/m", input="Go on", previous_response_id="resp_up")
    assert (refused.value.param, "'openai' keeps" in refused.value.message) == ("model", True)


def test_a_setting_makes_the_gateway_the_keeper(tmp_path_factory: pytest.TempPathFactory) -> None:
    with state_rigged(tmp_path_factory.mktemp("forced"), openai="keeps_responses = false\n") as rig:
        rig.play("openai", HELLO, HELLO)
        first = rig.create(model="openai/gpt-5.5", input="Hi")
        sent = rig.calls("openai")[-1].json
        assert (sent["store"], sent["include"]) == (False, ["reasoning.encrypted_content"])
        second = rig.create(model="openai/gpt-5.5", input="More", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        sent = rig.calls("openai")[-1].json
        assert "previous_response_id" not in sent
        assert b"Hello Ada." in rig.calls("openai")[-1].body


def test_a_chain_that_the_gateway_keeps_may_go_on_at_a_keeper(rig: StateRig) -> None:
    rig.play("chat", HELLO)
    rig.play("openai", HELLO)
    first = rig.create(model="chat/m", input="Hi")
    second = rig.create(model="openai/gpt-5.5", input="More", previous_response_id=first.id)
    assert rig.calls("openai")[-1].json["store"] is False
    assert rig.openai.responses.retrieve(second.id).previous_response_id == first.id
