"""Items as the server keeps them: which requests need state, ids, contexts, and compactions."""

import msgspec
import pytest

from dragoman.translate.hub.failure import RequestError
from dragoman.translate.hub.opaque import ENVELOPE_PREFIX
from dragoman.translate.hub.request import Json
from dragoman.translate.protocols.responses.state_items import (
    Compaction,
    ItemIdReader,
    check_context,
    complete_item,
    find_item_ids,
    make_summary_request,
    open_compaction,
    read_input,
    seal_compaction,
    uses_state,
)
from laws import cuts

USER: dict[str, Json] = {"type": "message", "role": "user", "content": "hi"}
CALL: dict[str, Json] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT: dict[str, Json] = {"type": "function_call_output", "call_id": "c", "output": "1"}
STREAM = (
    b'event: response.output_item.done\ndata: {"type":"response.output_item.done","item":{"id":"rs_1"}}\n\n'
    b'data: {"type":"response.output_text.delta","delta":"response.output_item.done"}\n\n'
    b'data: {"type":"response.output_item.done","item":{"id":"msg_2"}}\n\n'
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"store": True}, True),
        ({"previous_response_id": "resp_1"}, True),
        ({"background": True}, True),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, True),
        ({"input": [{"type": "reasoning", "id": "rs_1"}]}, True),
        ({"input": [{"type": "reasoning", "id": "rs_1", "encrypted_content": "x"}]}, False),
    ],
)
def test_a_request_uses_state_if_it_stores_or_refers_to_something(fields: dict[str, Json], expected: bool) -> None:
    body = msgspec.json.encode({"model": "m", "input": "hi", **fields})
    assert uses_state(body, stores=False) is expected
    assert uses_state(body, stores=True) is True


def test_the_ids_of_a_stream_are_found_however_it_is_cut() -> None:
    for pieces in cuts(STREAM):
        reader = ItemIdReader()
        for piece in pieces:
            reader.feed(piece)
        assert reader.ids == ["rs_1", "msg_2"]


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"output":[{"id":7}]}', b'{"output":[{"id":"\xff"}]}', b"{}"])
def test_a_body_that_is_no_reply_has_no_ids(body: bytes) -> None:
    assert find_item_ids(body) == []


def test_the_ids_of_a_whole_reply_are_found() -> None:
    assert find_item_ids(b'{"output":[{"id":"rs_1"},{"type":"message"},{"id":"msg_2"}]}') == ["rs_1", "msg_2"]


def test_a_string_is_a_message_of_the_user_and_is_listed_with_id_status_and_parts() -> None:
    [item] = read_input({"input": "hi"})
    assert item == USER
    assert complete_item(item, lambda prefix: f"{prefix}1") == {
        "id": "msg_1",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "hi"}],
    }


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([CALL], "No tool output found for function call c."),
        ([OUTPUT], "No tool call found for function call output with call_id c."),
        ([USER | {"id": "msg_1"}, USER | {"id": "msg_1"}], "Duplicate item found with id msg_1."),
    ],
)
def test_a_context_with_unpaired_calls_or_an_item_twice_is_refused(items: list[dict[str, Json]], message: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_context((), items)
    assert refused.value.failure.message.startswith(message)
    check_context([USER, CALL], [OUTPUT])


def test_a_compaction_is_read_back_and_no_other_value_is() -> None:
    compaction = Compaction("They agreed on 42.", "m", "digest")
    sealed = seal_compaction(compaction)
    assert open_compaction(sealed) == compaction
    for other in ("", "gAAAA", sealed[:-5], ENVELOPE_PREFIX + "c.", ENVELOPE_PREFIX + "c.%"):
        assert open_compaction(other) is None


def test_a_summary_is_requested_with_the_settings_and_instructions_of_the_request() -> None:
    request = make_summary_request({"model": "m", "instructions": "Be brief.", "tools": [CALL]}, [USER])
    assert (request["model"], request["store"], "tools" in request) == ("m", False, False)
    given = request["input"]
    assert isinstance(given, list)
    assert [item["role"] for item in given if isinstance(item, dict)] == ["developer", "user", "user"]
