"""What a request may not refer to, and the error that it gets then."""

import pytest

from state.state_rig import CALL, HELLO, WEATHER, StateRig
from wire_json import JsonObject

ASK = {"model": "chat/m", "input": "Hi"}
RESULT = {"type": "function_call_output", "call_id": "call_9", "output": "Rain."}


def refusal(rig: StateRig, body: object, key: str = "alice", path: str = "/responses") -> JsonObject:
    calls = len(rig.calls("chat"))
    reply = rig.http("POST", path, key, body)
    assert len(rig.calls("chat")) == calls, "nothing is spent on a request that cannot work"
    error = reply.json["error"]
    assert isinstance(error, dict)
    assert error.pop("type") == "invalid_request_error"
    return {"status": reply.status, **error}


def test_an_unknown_parent_is_400(rig: StateRig) -> None:
    assert refusal(rig, {**ASK, "previous_response_id": "resp_x"}) == {
        "status": 400,
        "message": "Previous response with id 'resp_x' not found.",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }


def test_a_response_that_was_not_stored_is_no_parent(rig: StateRig) -> None:
    rig.play("chat", HELLO)
    made = rig.create(model="chat/m", input="Hi", store=False)
    assert refusal(rig, {**ASK, "previous_response_id": made.id})["code"] == "previous_response_not_found"


def test_a_malformed_parent_is_400(rig: StateRig) -> None:
    error = refusal(rig, {**ASK, "previous_response_id": "resp x!"})
    assert (error["status"], error["param"]) == (400, "previous_response_id")
    assert str(error["message"]).startswith("Invalid 'previous_response_id': 'resp x!'. Expected an ID that contains")


def test_a_parent_and_a_conversation_exclude_each_other(rig: StateRig) -> None:
    error = refusal(rig, {**ASK, "previous_response_id": "resp_x", "conversation": "conv_x"})
    assert (error["status"], error["code"]) == (400, "mutually_exclusive_parameters")
    assert str(error["message"]).startswith("Mutually exclusive parameters: Ensure you are only providing one of")


@pytest.mark.parametrize("conversation", ["conv_x", {"id": "conv_x"}], ids=["id", "object"])
def test_an_unknown_conversation_is_404(rig: StateRig, conversation: object) -> None:
    error = refusal(rig, {**ASK, "conversation": conversation})
    assert error == {"status": 404, "message": "Conversation with id 'conv_x' not found.", "param": None, "code": None}


@pytest.mark.parametrize("item", [{"type": "item_reference", "id": "rs_x"}, {"id": "rs_x"}], ids=["typed", "bare"])
@pytest.mark.parametrize("store", [True, False])
def test_an_unknown_item_is_404(rig: StateRig, item: object, store: bool) -> None:
    error = refusal(rig, {"model": "chat/m", "input": [item], "store": store})
    assert (error["status"], error["param"], error["code"]) == (404, "input", None)
    assert str(error["message"]).startswith("Item with id 'rs_x' not found.")


def test_an_item_may_not_come_twice(rig: StateRig) -> None:
    rig.play("chat", HELLO)
    made = rig.create(model="chat/m", input="Hi")
    again = {"type": "item_reference", "id": made.output[0].id}
    error = refusal(rig, {"model": "chat/m", "input": [again], "previous_response_id": made.id})
    assert error["status"] == 400
    assert str(error["message"]).startswith(f"Duplicate item found with id {made.output[0].id}.")


def test_a_call_needs_its_result_and_a_result_its_call(rig: StateRig) -> None:
    rig.play("chat", CALL)
    made = rig.create(model="chat/m", input="Hi", tools=[WEATHER])
    error = refusal(rig, {**ASK, "previous_response_id": made.id})
    assert (error["message"], error["param"]) == ("No tool output found for function call call_1.", "input")
    result = {**RESULT, "call_id": "call_1"}
    error = refusal(rig, {"model": "chat/m", "input": [result, RESULT], "previous_response_id": made.id})
    assert error["message"] == "No tool call found for function call output with call_id call_9."


def test_an_id_of_another_type_of_item_is_400(rig: StateRig) -> None:
    call = {"type": "function_call", "id": "msg_1", "call_id": "call_9", "name": "weather", "arguments": "{}"}
    error = refusal(rig, {"model": "chat/m", "input": [{"role": "user", "content": "Hi"}, call, RESULT]})
    assert (error["param"], error["code"]) == ("input[1].id", "invalid_value")
    assert error["message"] == "Invalid 'input[1].id': 'msg_1'. Expected an ID that begins with 'fc'."


def test_ids_that_a_client_makes_itself_are_legal(rig: StateRig) -> None:
    rig.play("chat", HELLO)
    call = {"type": "function_call", "id": "fc-7", "call_id": "call_9", "name": "weather", "arguments": "{}"}
    rig.create(model="chat/m", input=[{"role": "user", "content": "Hi", "id": "msg_own-1"}, call, RESULT])


def test_a_response_that_is_not_there_is_404_on_every_path(rig: StateRig) -> None:
    for method, path in (("GET", ""), ("GET", "/input_items"), ("DELETE", ""), ("POST", "/cancel")):
        reply = rig.http(method, f"/responses/resp_x{path}")
        assert (reply.status, reply.json["error"]) == (
            404,
            {
                "message": "Response with id 'resp_x' not found.",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            },
        )


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    "metadata",
    [{str(n): "" for n in range(17)}, {"k" * 65: ""}, {"k": "v" * 513}, {"k": 1}],
    ids=["pairs", "key", "value", "type"],
)
def test_metadata_beyond_its_bounds_is_not_stored(rig: StateRig, metadata: object, background: bool) -> None:
    error = refusal(rig, {**ASK, "metadata": metadata, "background": background})
    assert (error["status"], error["param"]) == (400, "metadata")


USER = {"role": "user", "content": "Hi"}
CALLED = {"type": "function_call", "call_id": "call_9", "name": "weather", "arguments": "{}"}


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([USER, RESULT], "No tool call found for function call output with call_id call_9."),
        ([USER, CALLED, USER], "No tool output found for function call call_9."),
        ([{**USER, "id": "msg_1"}, {**USER, "id": "msg_1"}], "Duplicate item found with id msg_1. Remove duplicate"),
    ],
    ids=["result", "call", "twice"],
)
def test_an_input_that_could_not_be_continued_is_not_stored(rig: StateRig, items: object, message: str) -> None:
    error = refusal(rig, {"model": "chat/m", "input": items})
    assert (error["status"], error["param"]) == (400, "input")
    assert str(error["message"]).startswith(message)
    rig.play("chat", HELLO)
    assert rig.http("POST", "/responses", body={"model": "chat/m", "input": items, "store": False}).status == 200
