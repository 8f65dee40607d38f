"""Run a captured request through the current code, and write a test fixture that expects what it does now.

The HTTP layer and the gateway are those that serve; only the upstream, the credentials, the clock and the client's
connection are replayed. In a fixture, the upstream's responses and all times stay as they were recorded.
"""

import asyncio
import re
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, TypeVarTuple, Unpack
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from dragoman.config.secret import Secret
from dragoman.config.settings import parse_thinking
from dragoman.net.bodies import ByteBudget
from dragoman.net.errors import ClientDisconnected
from dragoman.net.http_request import HttpRequest
from dragoman.net.request_head import RequestHead
from dragoman.net.sink import CollectorSink, ReplySink
from dragoman.net.tasks import spawn
from dragoman.operate import AdminError
from dragoman.operate.captures.replay.recorded_services import RecordedUpstream
from dragoman.operate.captures.replay.runtime import make_runtime
from dragoman.proxy.capture.files import to_json
from dragoman.proxy.capture.format import (
    CLIENT_LEFT,
    Capture,
    CapturedSettings,
    Chunk,
    ClientResponse,
    TimedEvent,
    UpstreamRequest,
)
from dragoman.proxy.capture.lookups import Lookups, ReplayingLookups, look_up_memories
from dragoman.proxy.capture.masking import encode_headers, mask_capture
from dragoman.proxy.capture.writer import Job, RequestCapture
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.memories import make_memories
from dragoman.tenancy.keys import Access, KeyId, Keyring

HOST = "127.0.0.1"
RUN_HEADER = "x-dragoman-run"
UNLIMITED_BYTES = 1 << 62
KEY = "dgm_replayed-requests-come-with-this"
STORED_KEY = KeyId("key_replayed")
REPLACED_HEADERS = frozenset(
    {"host", "origin", "authorization", "x-api-key", "api-key", "x-goog-api-key", "content-length"}
)

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
Handler = Callable[[HttpRequest, ReplySink], Coroutine[object, object, None]]
MakeHandler = Callable[[Gateway, Keyring, Lookups, str], Handler]
FIXTURES = Path("tests/fixtures/captures")
FIXTURE_SUFFIX = ".json"
MACHINE_ID = re.compile(r"[0-9a-f]{64}")


def rerun(capture: Capture, make_handler: MakeHandler) -> Capture:
    """Run the captured request again and return a capture of that.

    `make_handler` puts the HTTP layer in front of the gateway: `dragoman.server.handler.replay_site`. Raises AdminError
    where the capture is incomplete, or made with something that this version lacks. It runs an event loop of its own:
    where one runs already, call it in a thread.
    """
    if capture.truncated:
        raise AdminError(f"The capture is incomplete ({', '.join(capture.truncated)}), so it cannot be replayed.")
    if _was_given_another_reply(capture):
        raise AdminError("This request got the reply of an earlier one, and called no upstream: replay that one.")
    with asyncio.Runner(loop_factory=_SimulatedLoop) as runner:
        return runner.run(_rerun(capture, make_handler))


def _was_given_another_reply(capture: Capture) -> bool:
    """Return whether a request was joined to another one or resumed its reply."""
    response = capture.response
    if response is None or response.status != 200 or capture.upstream_requests:
        return False
    return any(name == RUN_HEADER for name, _ in response.headers)


async def _rerun(capture: Capture, make_handler: MakeHandler) -> Capture:
    upstream = RecordedUpstream(capture.upstream_requests, time.time() - capture.started_at)
    lookups = ReplayingLookups(capture)
    gateway = Gateway(make_runtime(capture, upstream, lookups), look_up_memories(make_memories(None), lookups))
    gateway.now, gateway.new_id = lookups.now, lookups.new_id
    recorded: list[Job] = []
    gateway.captures = RequestCapture(keep=recorded.append)
    keyring = _Keyring(capture.settings)
    handler = make_handler(gateway, keyring, lookups, capture.request_id)
    request = HttpRequest(_make_head(capture), None, ByteBudget(UNLIMITED_BYTES))
    request.set_body(capture.request.body)
    await _serve(handler, request, capture)
    if not recorded:
        raise AdminError(f"{capture.request.method} {capture.request.path} calls no model, so it cannot be replayed.")
    return mask_capture(recorded[-1].make_capture(), recorded[-1].secrets)


async def _serve(handler: Handler, request: HttpRequest, capture: Capture) -> None:
    """Handle the request, and interrupt it at the recorded time if the client left or the gateway stopped."""
    sink = CollectorSink()
    serving = spawn(handler(request, sink), name="replay")

    def interrupt() -> None:
        sink.reader_gone = capture.interrupted_by == CLIENT_LEFT
        serving.cancel()

    if capture.interrupted_by:
        asyncio.get_running_loop().call_later(capture.duration_ms / 1000, interrupt)
    with suppress(asyncio.CancelledError, ClientDisconnected):
        await serving


class _Keyring(Keyring):
    """Accepts the one key of replayed requests, as the owner's key or as a stored one."""

    def __init__(self, settings: CapturedSettings) -> None:
        super().__init__(None, Secret(KEY))
        self._owner = settings.owner
        self._default_thinking = settings.default_thinking

    def access(self, key: KeyId) -> Access:
        default = self._default_thinking
        return replace(super().access(key), default_thinking=None if default is None else parse_thinking(default))

    def find_valid(self, digest: bytes) -> KeyId | None:
        key = super().find_valid(digest)
        return key if key is None or self._owner else STORED_KEY


def _make_head(capture: Capture) -> RequestHead:
    request = capture.request
    kept = (field for field in request.headers if field[0] not in REPLACED_HEADERS)
    query = "&".join(pair for pair in request.query.split("&") if not pair.startswith("key="))
    own = ((b"host", HOST.encode()), (b"authorization", b"Bearer " + KEY.encode()))
    path, raw_path = unquote(request.path), request.path.encode("latin-1")
    return RequestHead(
        fields=[*encode_headers(kept), *own], method=request.method, path=path, raw_path=raw_path, query=query
    )


class _SimulatedClock(selectors.DefaultSelector):
    """A selector that moves the time forward to the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            ready = super().select(0)
            if not ready:
                self.now += timeout
            return ready
        return super().select(timeout)


class _SimulatedLoop(asyncio.SelectorEventLoop):
    """A loop in which waiting takes no time."""

    def __init__(self) -> None:
        self._clock = _SimulatedClock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        """Do the work at once: while a thread did it, the time would move forward to every timer."""
        done: asyncio.Future[Result] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def write_fixture(recorded: Capture, replayed: Capture, where: str) -> Path:
    """Write the fixture and return its file. `where` is a name below FIXTURES, a directory, or a file."""
    file = choose_file(recorded, where)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(to_json(make_fixture(recorded, replayed)))
    return file


def choose_file(capture: Capture, where: str) -> Path:
    path = Path(where)
    if path.is_dir():
        return path / f"{capture.request_id}{FIXTURE_SUFFIX}"
    if path.suffix == FIXTURE_SUFFIX:
        return path
    return FIXTURES / f"{where}{FIXTURE_SUFFIX}"


def make_fixture(recorded: Capture, replayed: Capture) -> Capture:
    """Return the capture that a test expects, without ids of the machine that recorded it."""
    fixture = replace(
        replayed,
        request_id=recorded.request_id,
        time=recorded.time,
        duration_ms=recorded.duration_ms,
        request=recorded.request,
        upstream_requests=tuple(
            _keep_response(recorded, request, index) for index, request in enumerate(replayed.upstream_requests)
        ),
        events=tuple(_keep_time(recorded, timed, index) for index, timed in enumerate(replayed.events)),
        response=None if replayed.response is None else _keep_times(recorded, replayed.response),
        lookups=recorded.lookups,
        settings=recorded.settings,
    )
    return msgspec.convert(_remove_machine_ids(msgspec.to_builtins(fixture, builtin_types=(bytes,))), Capture)


def _remove_machine_ids(value: object) -> object:
    match value:
        case ["user-agent" | "x-amz-user-agent" as name, str() as text]:
            return [name, MACHINE_ID.sub("0" * 64, text)]
        case dict():
            return {name: _remove_machine_ids(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_remove_machine_ids(inner) for inner in value]
        case _:
            return value


def _keep_response(recorded: Capture, request: UpstreamRequest, index: int) -> UpstreamRequest:
    old = recorded.upstream_requests[index] if index < len(recorded.upstream_requests) else None
    return request if old is None else replace(request, at=old.at, response=old.response, error=old.error)


def _keep_time(recorded: Capture, timed: TimedEvent, index: int) -> TimedEvent:
    return replace(timed, at=recorded.events[min(index, len(recorded.events) - 1)].at) if recorded.events else timed


def _keep_times(recorded: Capture, response: ClientResponse) -> ClientResponse:
    times = [chunk.at for chunk in recorded.response.chunks] if recorded.response is not None else []
    chunks = [
        Chunk(times[min(index, len(times) - 1)] if times else chunk.at, chunk.data)
        for index, chunk in enumerate(response.chunks)
    ]
    return replace(response, chunks=tuple(chunks))
