"""The events of a background response, gathered in numbered chunks for the store."""

import asyncio

from dragoman.state.run_output import MAX_BYTES, MAX_WAITING_BYTES, RunOutput, RunSink
from dragoman.store.response_rows import EventChunk


def make_output(*, streams: bool = True) -> RunOutput:
    return RunOutput(streams=streams, on_events=lambda: None)


def test_events_are_numbered_whatever_pieces_they_come_in() -> None:
    body = b": alive\n\nevent: a\ndata: {}\n\ndata: 2\n\n: alive\n\ndata: 3\n\ndata: [DONE]\n\n"
    for size in range(1, len(body) + 1):
        output = make_output()
        for at in range(0, len(body), size):
            output.add(body[at : at + size])
        assert output.take_rest() == [EventChunk(2, 4, b"event: a\ndata: {}\n\ndata: 2\n\ndata: 3\n\n")], size


def test_the_same_events_are_returned_until_they_are_stored() -> None:
    output = make_output()
    assert output.begin_storing() is None
    output.add(b"data: 1\n\n")
    first = output.begin_storing()
    output.add(b"data: 2\n\n")
    assert output.begin_storing() == first == EventChunk(2, 2, b"data: 1\n\n")
    output.record_stored()
    assert output.begin_storing() == EventChunk(3, 3, b"data: 2\n\n")
    output.add(b"data: 3\n\n")
    assert output.take_rest() == [EventChunk(3, 3, b"data: 2\n\n"), EventChunk(4, 4, b"data: 3\n\n")]


def test_a_whole_reply_has_no_events() -> None:
    output = make_output(streams=False)
    output.add(b"{}\n\n{}\n\n")
    assert output.take_rest() == []


def test_the_upstream_waits_while_the_store_does_not_take_events() -> None:
    async def scenario() -> None:
        output = make_output()
        sink = RunSink(output)
        sink.begin(200, [])
        assert not sink.write(b"data: " + b"x" * MAX_WAITING_BYTES + b"\n\n")
        waiting = asyncio.create_task(sink.wait_writable())
        await asyncio.sleep(0)
        assert not waiting.done()
        output.begin_storing()
        await asyncio.wait_for(waiting, 60)
        assert sink.write(b"data: 2\n\n")

    asyncio.run(scenario())


def test_too_many_events_are_not_kept_but_the_last_one_is() -> None:
    output = make_output()
    large = b"data: " + b"x" * (MAX_BYTES // 2) + b"\n\n"
    for _ in range(3):
        output.add(large)
        chunk = output.begin_storing()
        output.record_stored()
    assert chunk == EventChunk(4, 4, b"")
    output.add(b"data: 5\n\ndata: last\n\n")
    assert output.take_rest() == [EventChunk(5, 6, b""), EventChunk(6, 6, b"data: last\n\n")]
