"""The recording of one request while it is answered, from which its capture is made.

Nothing here waits, copies bodies or encodes anything: that is left to the writer's thread.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman import __version__
from dragoman.config.settings import Config
from dragoman.net.client import IncomingResponse
from dragoman.net.errors import describe_fault
from dragoman.net.headers import Header
from dragoman.net.http_request import HttpRequest
from dragoman.proxy.capture import format as capture_format
from dragoman.proxy.capture.format import GAP, Capture, Chunk, LookupName, TimedEvent, utc_text
from dragoman.proxy.capture.masking import Fields, hide_values, to_text
from dragoman.proxy.capture.memory_bounds import TAIL_BYTES, HeadAndTail, MemoryBudget, RecordingMemory
from dragoman.proxy.capture.recorded_settings import ListModels, RecordedSettings
from dragoman.proxy.capture.upstream_exchange import UpstreamExchange
from dragoman.proxy.outcome import CLIENT_GONE, OK, Outcome
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.why import Why
from dragoman.translate.hub.events import Delta, Ended, Event
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Json
from dragoman.upstreams.provider import Provider

log = logging.getLogger(__name__)

EVENT_BYTES = 200  # roughly, without its text

# Parts of a capture that are not complete.
BODY_NOT_READ = "the request's body, which was not read"
AFTER_ERROR = "everything after an error in the recording"

P = ParamSpec("P")
T = TypeVar("T")
Note = Callable[Concatenate["Recording", P], None]


def contain_errors(note: Note[P]) -> Note[P]:
    """Let an error in a note spoil the capture, never the request."""

    @wraps(note)
    def record_or_give_up(recording: "Recording", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            note(recording, *args, **kwargs)
        except Exception as bug:
            recording.give_up(bug)

    return record_or_give_up


class SentResponse(Struct):
    """The response to the client, as far as it was sent."""

    status: int
    headers: Fields
    chunks: HeadAndTail[Chunk]


class RecordedResult(Struct):
    """How the request went, apart from what was sent and received."""

    outcome: Outcome | None = None
    ledger: Ledger | None = None
    request_losses: int = 0  # they precede those of the reply in the ledger
    guard_trips: list[str] = []
    cut_calls: list[str] = []
    interrupted_by: str = ""

    @property
    def failed(self) -> bool:
        failed = self.outcome is None or self.outcome.outcome not in (OK, CLIENT_GONE)
        return failed or bool(self.guard_trips or self.cut_calls)


class Recording:
    """Collects what happens to one request; `on_finished` is called when its response has been sent.

    It listens to the sink of the client's reply; the handler, the gateway and the recording versions of the request's
    surroundings call its `record_...` methods.
    """

    def __init__(
        self, request: HttpRequest, started_at: float, budget: MemoryBudget, on_finished: "Callable[[Recording], None]"
    ) -> None:
        self.memory = RecordingMemory(budget)
        self.memory.truncated[BODY_NOT_READ] = None
        self._on_finished = on_finished
        self._started_at = started_at  # seconds since the epoch
        self._start = time.monotonic()
        path = request.raw_path.decode("latin-1")
        headers = to_text(request.headers)
        self._request = capture_format.ClientRequest(request.method, path, request.query, headers, b"")
        self.client_response: SentResponse | None = None
        self.events: HeadAndTail[tuple[float, int, Event]] = HeadAndTail()
        self.upstream_exchanges: list[UpstreamExchange] = []
        self.lookups: list[capture_format.Lookup] = []
        self.settings = RecordedSettings()
        self.why: Why | None = None  # why the reply passed or was translated, once there is one
        self._result = RecordedResult()
        self.secrets: set[bytes] = set()

    # Calls of the client's sink

    @contain_errors
    def on_head(self, status: int, headers: Iterable[Header]) -> None:
        self.client_response = SentResponse(status, to_text(headers), HeadAndTail(GAP))

    @contain_errors
    def on_body(self, data: bytes) -> None:
        if data and self.client_response is not None:
            self._keep_chunk(self.client_response.chunks, data, "sent")

    @contain_errors
    def on_end(self) -> None:
        self._on_finished(self)

    # Calls of the handler and the gateway

    @contain_errors
    def record_body(self, body: bytes) -> None:
        """Note the client's body, decompressed."""
        self.memory.truncated.pop(BODY_NOT_READ, None)
        headers = tuple(field for field in self._request.headers if field[0] != "content-encoding")
        fits = self.memory.reserve(len(body), "request")
        self._request = replace(self._request, headers=headers, body=body if fits else b"")

    @contain_errors
    def record_settings(self, config: Config, quirks: dict[str, tuple[str, ...]], list_models: ListModels) -> None:
        """Note the configuration; `list_models` is called if no model of that name exists."""
        settings = self.settings
        settings.config, settings.quirks, settings.list_models = config, quirks, list_models

    @contain_errors
    def record_tools(self, settings: dict[str, Json], backends: dict[str, dict[str, str]]) -> None:
        """Note which tools the gateway runs, by provider, and their settings."""
        self.settings.tools, self.settings.tool_backends = settings, backends

    @contain_errors
    def record_built(self, ledger: Ledger | None) -> None:
        """Note that a request for an upstream was built, with the losses so far; None: the client's bytes pass."""
        self._result.ledger, self._result.request_losses = ledger, 0 if ledger is None else len(ledger)

    def make_monitor(self) -> ReplyMonitor:
        return RecordingMonitor(self)

    def record_guard_trips(self, on_guard_trip: Callable[[str], None]) -> Callable[[str], None]:
        """Return a callback that notes what the grammar guard objects to and then calls this one."""

        def record_and_call(message: str) -> None:
            self._result.guard_trips.append(message)
            on_guard_trip(message)

        return record_and_call

    @contain_errors
    def record_interruption(self, client_left: bool) -> None:
        self._result.interrupted_by = capture_format.CLIENT_LEFT if client_left else capture_format.STOPPED

    @contain_errors
    def record_outcome(self, outcome: Outcome, ledger: Ledger | None) -> None:
        result, settings = self._result, self.settings
        result.outcome = outcome
        result.ledger = ledger if ledger is not None else result.ledger
        if result.ledger is not None:
            result.ledger.close()
        if not settings.routes and settings.list_models is not None:
            settings.known_models = settings.list_models()

    def give_up(self, bug: Exception) -> None:
        if AFTER_ERROR not in self.memory.truncated:
            log.error("a request is not captured completely: %s", describe_fault(bug))
        self.memory.truncated[AFTER_ERROR] = None

    # Calls of what the request uses

    def elapsed_s(self) -> float:
        """Return the seconds since the request began."""
        return round(time.monotonic() - self._start, 6)

    def _keep_chunk(self, chunks: HeadAndTail[Chunk], data: bytes, part: str) -> None:
        if chunks.is_complete and self.memory.reserve(len(data), part):
            chunks.add(Chunk(self.elapsed_s(), data))
        elif self.memory.reserve_tail(chunks):
            tail = data[-TAIL_BYTES:]
            chunks.add_to_tail(Chunk(self.elapsed_s(), tail), len(tail))

    @contain_errors
    def record_event(self, index: int, event: Event) -> None:
        """Note a hub event of the reply to the upstream request with this index."""
        size = len(event.text) if type(event) is Delta else 0
        if isinstance(event, Ended) and event.cut:
            self._result.cut_calls += [call.name for call in event.cut]
        timed = (self.elapsed_s(), index, event)
        if self.events.is_complete and self.memory.reserve(EVENT_BYTES + size, "events"):
            self.events.add(timed)
        elif self.memory.reserve_tail(self.events):
            self.events.add_to_tail(timed, EVENT_BYTES + size)

    @contain_errors
    def record_provider(self, provider: Provider) -> None:
        """Note that the request uses this provider."""
        self.secrets.update(self.settings.add_provider(provider))

    @contain_errors
    def record_lookup(self, provider: str, name: LookupName, value: Callable[[], Json]) -> None:
        """Note a value that a replay could not look up again."""
        self.lookups.append(capture_format.Lookup(provider, name.value, value()))

    @contain_errors
    def record_upstream_request(self, exchange: UpstreamExchange) -> None:
        exchange.at = self.elapsed_s()
        self.upstream_exchanges.append(exchange)
        if self.settings.hidden_headers:
            headers = tuple(hide_values(exchange.out.headers, self.settings.hidden_headers))
            exchange.out = replace(exchange.out, headers=headers)
        if not self.memory.reserve(len(exchange.out.body), "upstream request"):
            exchange.out = replace(exchange.out, body=b"")

    @contain_errors
    def record_upstream_response(self, exchange: UpstreamExchange, response: IncomingResponse) -> None:
        exchange.response, exchange.head_at = response, self.elapsed_s()

    @contain_errors
    def record_upstream_chunk(self, exchange: UpstreamExchange, data: bytes) -> None:
        self._keep_chunk(exchange.chunks, data, "upstream reply")

    @contain_errors
    def record_upstream_end(self, exchange: UpstreamExchange, how: str) -> None:
        """Note how a response ended, or why there was none."""
        if exchange.response is None:
            exchange.error = how
        elif not exchange.end:
            exchange.end, exchange.ended_at = how, self.elapsed_s()

    @property
    def failed(self) -> bool:
        """Whether anything went wrong, including a cut tool call and a correction by the grammar guard."""
        return self._result.failed or (self.client_response is not None and self.client_response.status >= 400)

    def make_capture(self, so_far: Outcome | None = None) -> Capture:
        """Return the capture; `so_far` is the outcome of a request that has not ended.

        This takes time: for a capture that is written it is called on the writer's thread.
        """
        result = self._result
        unknown = Outcome(request_id="", started_at=self._started_at, client_protocol="", outcome="bug")
        outcome = result.outcome or so_far or unknown
        last = self.upstream_exchanges[-1] if self.upstream_exchanges else None
        return Capture(
            request_id=outcome.request_id,
            client_request_id=outcome.client_request_id,
            dragoman_version=__version__,
            time=utc_text(self._started_at),
            duration_ms=round(outcome.duration_s * 1000, 3),
            client=outcome.client,
            key=outcome.key,
            user=outcome.user,
            team=outcome.team,
            session=outcome.origin.session,
            agent=outcome.origin.agent,
            parent_agent=outcome.origin.parent_agent,
            tags=outcome.tags,
            lease=outcome.lease,
            cache_possible_tokens=outcome.cache_use.possible_tokens,
            cache_miss=outcome.cache_use.miss,
            cache_miss_path=outcome.cache_use.miss_path,
            client_protocol=outcome.client_protocol,
            upstream_protocol=outcome.upstream_protocol or ("" if last is None else last.protocol),
            route=outcome.route or ("" if last is None else last.route),
            requested_model=outcome.requested_model,
            stream=outcome.stream,
            passthrough=outcome.passthrough or (not outcome.upstream_protocol and result.ledger is None),
            why="" if self.why is None else str(self.why),
            outcome=outcome.outcome,
            error_code=outcome.error_code,
            interrupted_by=result.interrupted_by,
            guard_trips=tuple(result.guard_trips),
            cut_calls=tuple(result.cut_calls),
            upstream_bytes=outcome.upstream_bytes,
            upstream_chunks=outcome.upstream_chunks,
            request=self._request,
            upstream_requests=tuple(exchange.make_record() for exchange in self.upstream_exchanges),
            events=tuple(
                TimedEvent(at, index, capture_format.event_json(event)) for at, index, event in self.events.parts()
            ),
            losses=tuple(result.ledger or ()),
            request_losses=result.request_losses,
            response=self._make_response(),
            lookups=tuple(self.lookups),
            settings=self.settings.make_record(),
            truncated=tuple(self.memory.truncated),
        )

    def _make_response(self) -> capture_format.ClientResponse | None:
        sent = self.client_response
        return None if sent is None else capture_format.ClientResponse(sent.status, sent.headers, sent.chunks.parts())


class RecordingMonitor(ReplyMonitor):
    """A monitor that also records the events."""

    __slots__ = ("_index", "_recording")

    def __init__(self, recording: Recording) -> None:
        super().__init__(time.monotonic)
        self._recording = recording
        self._index: int | None = None  # known at the first event: a monitor may be made before its request is sent

    def observe(self, event: Event) -> None:
        if not isinstance(event, Delta):  # recorded by `observe_run`
            self._record(event)
        super().observe(event)

    def observe_run(self, run: Sequence[Delta], text: str) -> None:
        for event in run:
            self._record(event)
        super().observe_run(run, text)

    def _record(self, event: Event) -> None:
        if self._index is None:
            self._index = len(self._recording.upstream_exchanges) - 1
        self._recording.record_event(self._index, event)
