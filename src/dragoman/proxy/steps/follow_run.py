"""Send the reply of a run to a client that comes back for it, or whose request is the same."""

import asyncio
import re

from dragoman.net.bodies import BudgetShare
from dragoman.net.headers import JSON
from dragoman.net.sink import ReplySink, SinkPhase
from dragoman.proxy.call import Call
from dragoman.proxy.reply_bounds import charge_bytes
from dragoman.proxy.response_writer import APART_S
from dragoman.proxy.run_headers import make_unknown_run
from dragoman.proxy.steps.find_run import JoinedRun
from dragoman.proxy.steps.parked_runs import BY_CURSOR, ParkedRuns
from dragoman.state.parked_run import NOT_COUNTED, ParkedRun
from dragoman.state.remote_runs import LOSSES
from dragoman.state.run_index import MAX_RUN_BYTES
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.ports import EVENT_STREAM

EVENTS_AT_ONCE = 256  # of those that a client comes back for
BYTES_AT_ONCE = 64 * 1024  # after which no further event is added to them
_OWN_ID = re.compile(rb"(?:\A|[\r\n])id:")


async def follow(parked: ParkedRuns, call: Call, sink: ReplySink, joined: JoinedRun) -> None:
    """Send what a client does not have yet of a run, then what is still written."""
    run = joined.run
    sink.allow_leaving()
    parked.joined[joined.how] += 1
    call.record.record_joined(run.id, run.model)
    parked.join(run)
    try:
        while not run.status and not run.is_done:
            await run.wait()
        if joined.how == BY_CURSOR:  # of others, the body says it
            call.record.stream = run.is_stream
        if run.is_stream:
            await _send_events(call, sink, joined)
        else:
            await _send_whole(call, sink, joined)
        run.is_delivered = run.is_delivered or sink.phase is SinkPhase.ENDED
    finally:
        parked.leave(run)


async def _send_events(call: Call, sink: ReplySink, joined: JoinedRun) -> None:
    run, cursor = joined.run, joined.cursor
    sink.begin(200, run.headers_for(call.id))
    await sink.send(b"")
    place, signs = 0, run.signs
    while run.is_resumable:
        pending = _take_events(run.blocks, place)
        if pending:
            place += len(pending)
            # The bytes of the events after the cursor.
            selected = []
            for number, block in pending:
                if number > cursor.after or number == NOT_COUNTED:
                    is_marked = cursor.with_ids and number != NOT_COUNTED
                    selected.append(_mark(b"id: %b:%d" % (run.id.encode(), number), block) if is_marked else block)
            await _send_counted(call.buffered, sink, b"".join(selected))
        elif run.is_done:
            break
        elif signs != run.signs:
            signs = run.signs
            await sink.send(b"" if cursor.with_ids else run.sign)
        else:
            await run.wait()
    if run.failure in LOSSES:  # of the replica that makes it, or of the way to it
        await _send_failure(call, sink, run, run.failure)
        return
    if not run.is_resumable or not run.is_whole:
        sink.abort()
        return
    if run.rest and not run.wants_array:  # it is not an event: some clients must read it by itself
        await asyncio.sleep(APART_S)
    sink.end(run.rest)


async def _send_failure(call: Call, sink: ReplySink, run: ParkedRun, failure: Failure) -> None:
    """End a stream with the protocol's error event, after its last whole event."""
    stream_type = JSON[1] if run.wants_array else EVENT_STREAM
    await sink.send(call.client.render_stream_error(failure, None, run.event_count, stream_type))
    await asyncio.sleep(APART_S)
    sink.end(call.client.repeat_stream_error(failure, stream_type))


async def _send_whole(call: Call, sink: ReplySink, joined: JoinedRun) -> None:
    run = joined.run
    while not run.is_done:
        await run.wait()
    if run.failure is not None:
        raise RequestError(run.failure)
    if not run.is_resumable:
        message = f"The reply to this request is larger than {MAX_RUN_BYTES} bytes, and was not kept."
        raise RequestError(Failure(Kind.BAD_REQUEST, message, should_retry=False))
    if joined.cursor.after != -1:
        raise make_unknown_run(run.id)
    body = b"".join([block for _, block in run.blocks])
    charge_bytes(call.buffered, len(body))
    sink.respond(run.status, run.headers_for(call.id), body)


def _take_events(blocks: list[tuple[int, bytes]], place: int) -> list[tuple[int, bytes]]:
    """Return the events from this place on that are sent at once: a few large ones, or many small ones."""
    size = 0
    for end in range(place, min(place + EVENTS_AT_ONCE, len(blocks))):
        size += len(blocks[end][1])
        if size > BYTES_AT_ONCE:
            return blocks[place : end + 1]
    return blocks[place : place + EVENTS_AT_ONCE]


async def _send_counted(share: BudgetShare, sink: ReplySink, data: bytes) -> None:
    """Send bytes, and count them in what the request holds until its client has read them.

    Raises BufferBudgetExceeded.
    """
    held = share.held
    share.hold(len(data))
    try:
        await sink.send(data)
    finally:
        share.release_to(held)


def _mark(id: bytes, event: bytes) -> bytes:
    """Return an event with this id: last if the upstream gave it another one, since the last one counts."""
    if not _OWN_ID.search(event):
        return id + b"\n" + event
    end = b"\r\n" if event.endswith(b"\r\n") else event[-1:]
    return event[: -len(end)] + id + end + end
