"""The events of a background response, gathered in numbered chunks for the store."""

import asyncio

from dragoman.responses.run_output import MAX_BYTES, MAX_WAITING_BYTES, RunConnection, RunOutput
from dragoman.store.response_rows import EventChunk


def make_output(*, streams: bool = True) -> RunOutput:
    return RunOutput(streams=streams, on_events=lambda: None)


def test_events_are_numbered_whatever_pieces_they_come_in() -> None:
    body = b": alive\n\nevent: a\ndata: {}\n\ndata: 2\n\n: alive\n\ndata: 3\n\ndata: [DONE]\n\n"
    for size in range(1, len(body) + 1):
        output = make_output()
        for at in range(0, len(body), size):
            output.on_body(body[at : at + size])
        assert output.take_rest() == [EventChunk(2, 4, b"event: a\ndata: {}\n\ndata: 2\n\ndata: 3\n\n")], size


def test_the_same_events_are_returned_until_they_are_stored() -> None:
    output = make_output()
    assert output.begin_storing() is None
    output.on_body(b"data: 1\n\n")
    first = output.begin_storing()
    output.on_body(b"data: 2\n\n")
    assert output.begin_storing() == first == EventChunk(2, 2, b"data: 1\n\n")
    output.note_stored()
    assert output.begin_storing() == EventChunk(3, 3, b"data: 2\n\n")
    output.on_body(b"data: 3\n\n")
    assert output.take_rest() == [EventChunk(3, 3, b"data: 2\n\n"), EventChunk(4, 4, b"data: 3\n\n")]


def test_a_whole_reply_has_no_events() -> None:
    output = make_output(streams=False)
    output.on_body(b"{}\n\n{}\n\n")
    assert output.take_rest() == []


def test_the_upstream_waits_while_the_store_does_not_take_events() -> None:
    async def scenario() -> None:
        output = make_output()
        connection = RunConnection(output)
        output.on_body(b"data: " + b"x" * MAX_WAITING_BYTES + b"\n\n")
        assert connection.blocked
        waiting = asyncio.create_task(connection.wait_writable())
        await asyncio.sleep(0)
        assert not waiting.done()
        output.begin_storing()
        await asyncio.wait_for(waiting, 60)
        assert not connection.blocked

    asyncio.run(scenario())


def test_too_many_events_are_not_kept_but_the_last_one_is() -> None:
    output = make_output()
    large = b"data: " + b"x" * (MAX_BYTES // 2) + b"\n\n"
    for _ in range(3):
        output.on_body(large)
        chunk = output.begin_storing()
        output.note_stored()
    assert chunk == EventChunk(4, 4, b"")
    output.on_body(b"data: 5\n\ndata: last\n\n")
    assert output.take_rest() == [EventChunk(5, 6, b""), EventChunk(6, 6, b"data: last\n\n")]
