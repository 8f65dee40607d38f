"""One exchange is watched from all sides as it happens; a capture of it goes out once it is over.

Nothing here waits, copies bodies or encodes anything: that is left to the thread that writes.
"""

import logging
import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman import __version__
from dragoman.config.settings import Config
from dragoman.flow.capture import format as kept
from dragoman.flow.capture.format import Capture, Chunk, TimedEvent, utc_text
from dragoman.flow.capture.head_and_tail import TAIL_BYTES, Kept
from dragoman.flow.capture.provider_description import Fields, covered, described, texts
from dragoman.flow.capture.writer import Room
from dragoman.framing.known_secrets import list_secrets
from dragoman.hub.events import Delta, Ended, Event
from dragoman.hub.loss import Ledger
from dragoman.hub.outcome import CLIENT_GONE, OK, Outcome
from dragoman.hub.request import Json
from dragoman.net.client import IncomingResponse, OutgoingRequest
from dragoman.net.exchange import Exchange
from dragoman.net.headers import Header
from dragoman.net.tasks import describe_fault
from dragoman.observers.watch import Watch
from dragoman.providers.provider import Provider
from dragoman.routing.resolve import Route

log = logging.getLogger(__name__)

MAX_BYTES = 8 * 1024 * 1024  # of one capture; the middle of what exceeds it is left out, and that is said
EVENT_BYTES = 200  # roughly, besides its text

GAP = Chunk(0.0, b"")  # stands for what is left out

UNREAD = "the request's body, which was not read"
BUG = "what came after a fault in the recording itself"

Names = Callable[[], dict[str, tuple[str, ...]]]


P = ParamSpec("P")
T = TypeVar("T")
Note = Callable[Concatenate["Recording", P], None]


def noted(note: Note[P]) -> Note[P]:
    """A note that fails costs the capture, never the request."""

    @wraps(note)
    def kept_harmless(recording: "Recording", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            note(recording, *args, **kwargs)
        except Exception as bug:
            recording.give_up(bug)

    return kept_harmless


class Question:
    """One request to an upstream and, as far as it has come, the answer."""

    def __init__(self, route: str, provider: Provider, protocol: str, out: OutgoingRequest) -> None:
        self.at = 0.0
        self.route = route
        self.kind = provider.kind
        self.protocol = protocol
        self.out = out
        self.answer: IncomingResponse | None = None
        self.head_at = 0.0
        self.chunks = Kept(GAP)
        self.end = ""
        self.ended = 0.0
        self.fault = ""

    def kept(self) -> kept.UpstreamRequest:
        out, answer = self.out, None
        if self.answer is not None:
            fields = texts(self.answer.headers)
            answer = kept.UpstreamResponse(
                self.head_at, self.answer.status, fields, self.chunks.all(), self.end, self.ended
            )
        return kept.UpstreamRequest(
            at=self.at,
            route=self.route,
            kind=self.kind,
            protocol=self.protocol,
            method=out.method,
            url=out.url,
            headers=texts(out.headers),
            body=out.body,
            response=answer,
            error=self.fault,
        )


class Sending(Struct):
    status: int
    fields: Fields
    chunks: Kept[Chunk]


class Recording:
    """Told by the exchange, the providers and the watches; its owner is told when it is `over`."""

    def __init__(self, exchange: Exchange, began: float, room: Room, on_over: "Callable[[Recording], None]") -> None:
        self._room = room
        self._on_over = on_over
        self._epoch = began
        self._started = time.monotonic()
        path = exchange.raw_path.decode("latin-1")
        self._asked = kept.ClientRequest(exchange.method, path, exchange.query, texts(exchange.headers), b"")
        self._sent: Sending | None = None
        self._events: Kept[tuple[float, int, Event]] = Kept()
        self._hidden: set[bytes] = set()  # names of header fields that the configuration sets
        self._trips: list[str] = []
        self._cut: list[str] = []
        self._ledger: Ledger | None = None
        self._request_losses = 0
        self._interrupted = ""
        self._shortened: dict[str, None] = {UNREAD: None}
        self._config: Config | None = None
        self._names: Names | None = None
        self._learnt: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, tuple[str, ...]] = {}
        self._outcome: Outcome | None = None
        self.size = 0  # bytes that it holds
        self.questions: list[Question] = []
        self.told: list[kept.Lookup] = []
        self._stanzas: dict[str, Json] = {}
        self.routes: tuple[Route, ...] = ()
        self.owner = True  # the request came with the key of the environment
        self.secrets: set[bytes] = set()

    # What the exchange tells

    @noted
    def on_head(self, status: int, headers: Iterable[Header]) -> None:
        self._sent = Sending(status, texts(headers), Kept(GAP))

    @noted
    def on_body(self, data: bytes) -> None:
        if data and self._sent is not None:
            self._keep(self._sent.chunks, data, "sent")

    @noted
    def on_end(self) -> None:
        self._on_over(self)

    # What the site and the gateway tell

    @noted
    def asked_for(self, body: bytes) -> None:
        """The client's body, unpacked."""
        self._shortened.pop(UNREAD, None)
        fields = tuple(field for field in self._asked.headers if field[0] != "content-encoding")
        whole = self.takes(len(body), "request")
        self._asked = replace(self._asked, headers=fields, body=body if whole else b"")

    @noted
    def enters(self, config: Config, learnt: dict[str, tuple[str, ...]], names: Names) -> None:
        """This is what the request meets; `names`: the models that there are, should it matter."""
        self._config = config
        self._learnt = learnt
        self._names = names

    @noted
    def built(self, ledger: Ledger) -> None:
        """A request for an upstream is ready, with these losses so far."""
        self._ledger, self._request_losses = ledger, len(ledger)

    def watch(self) -> Watch:
        return RecordingWatch(self)

    def hearing(self, tripped: Callable[[str], None]) -> Callable[[str], None]:
        """The same ear for the grammar guard, with a note."""

        def hear(what: str) -> None:
            self._trips.append(what)
            tripped(what)

        return hear

    @noted
    def interrupted(self, client_left: bool) -> None:
        self._interrupted = kept.CLIENT_LEFT if client_left else kept.STOPPED

    @noted
    def concluded(self, outcome: Outcome, ledger: Ledger | None) -> None:
        self._outcome = outcome
        self._ledger = ledger if ledger is not None else self._ledger
        if not self.routes and self._names is not None:
            self._known = self._names()

    def give_up(self, bug: Exception) -> None:
        if BUG not in self._shortened:
            log.error("a request is not captured: %s", describe_fault(bug))
        self._shortened[BUG] = None

    # What is noted on the way

    def now(self) -> float:
        return round(time.monotonic() - self._started, 6)

    def takes(self, size: int, part: str) -> bool:
        """Whether there is room for so many bytes more."""
        if self.size + size > MAX_BYTES or not self._room.take(size):
            self._shortened[part] = None
            return False
        self.size += size
        return True

    def _keep(self, chunks: Kept[Chunk], data: bytes, part: str) -> None:
        if chunks.is_whole and self.takes(len(data), part):
            chunks.add(Chunk(self.now(), data))
        elif self._has_tail(chunks):
            chunks.add_last(Chunk(self.now(), data[-TAIL_BYTES:]), len(data[-TAIL_BYTES:]))

    def _has_tail(self, part: Kept[T]) -> bool:
        """Room for it is taken when it begins, beyond what one capture may hold."""
        if part.is_whole:
            if not self._room.take(TAIL_BYTES):
                return False
            self.size += TAIL_BYTES
        return True

    @noted
    def saw(self, question: int, event: Event) -> None:
        size = len(event.text) if type(event) is Delta else 0
        if isinstance(event, Ended) and event.cut:
            self._cut += [call.name for call in event.cut]
        moment = (self.now(), question, event)
        if self._events.is_whole and self.takes(EVENT_BYTES + size, "events"):
            self._events.add(moment)
        elif self._has_tail(self._events):
            self._events.add_last(moment, EVENT_BYTES + size)

    @noted
    def meets(self, provider: Provider) -> None:
        """This one has a part in the answer."""
        if provider.name in self._stanzas or self._config is None:
            return
        stanza = self._config.providers.get(provider.name)
        if stanza is not None:
            self._hidden |= {name.lower().encode("latin-1") for name in stanza.headers}
        self._stanzas[provider.name] = described(provider, stanza, self._hidden)
        self.secrets.update(value for name, value in provider.endpoint.headers if name in self._hidden)
        self.secrets.update(list_secrets((), provider.auth.secrets))

    @noted
    def hears(self, provider: str, name: kept.LookupName, value: Callable[[], Json]) -> None:
        """What a provider told, which another world would not tell again."""
        self.told.append(kept.Lookup(provider, name.value, value()))

    @noted
    def asks(self, question: Question) -> None:
        question.at = self.now()
        self.questions.append(question)
        if self._hidden:
            question.out = replace(question.out, headers=tuple(covered(question.out.headers, self._hidden)))
        if not self.takes(len(question.out.body), "upstream request"):
            question.out = replace(question.out, body=b"")

    @noted
    def answers(self, question: Question, answer: IncomingResponse) -> None:
        question.answer, question.head_at = answer, self.now()

    @noted
    def gives(self, question: Question, data: bytes) -> None:
        self._keep(question.chunks, data, "upstream reply")

    @noted
    def ends(self, question: Question, how: str) -> None:
        """An answer, or the hope for one."""
        if question.answer is None:
            question.fault = how
        elif not question.end:
            question.end, question.ended = how, self.now()

    @property
    def failed(self) -> bool:
        """Whether something went wrong that is worth a look: also a cut tool call, and an order put right by force."""
        result = "bug" if self._outcome is None else self._outcome.outcome
        status = 0 if self._sent is None else self._sent.status
        return result not in (OK, CLIENT_GONE) or status >= 400 or bool(self._trips or self._cut)

    def capture(self) -> Capture:
        """Everything put together; called where it holds up nobody."""
        outcome = self._outcome or Outcome(request_id="", started_at=self._epoch, client_protocol="", outcome="bug")
        sent = self._sent
        moments = tuple(TimedEvent(at, question, kept.event_json(event)) for at, question, event in self._events.all())
        return Capture(
            request_id=outcome.request_id,
            dragoman_version=__version__,
            time=utc_text(self._epoch),
            duration_ms=round(outcome.duration_s * 1000, 3),
            client=outcome.client,
            client_protocol=outcome.client_protocol,
            upstream_protocol=outcome.upstream_protocol or (self.questions[-1].protocol if self.questions else ""),
            route=outcome.route or (self.questions[-1].route if self.questions else ""),
            requested_model=outcome.requested_model,
            stream=outcome.stream,
            passthrough=outcome.passthrough or (not outcome.upstream_protocol and self._ledger is None),
            outcome=outcome.outcome,
            error_code=outcome.error_code,
            interrupted_by=self._interrupted,
            guard_trips=tuple(self._trips),
            cut_calls=tuple(self._cut),
            request=self._asked,
            upstream_requests=tuple(question.kept() for question in self.questions),
            events=moments,
            losses=tuple(self._ledger or ()),
            request_losses=self._request_losses,
            response=None if sent is None else kept.ClientResponse(sent.status, sent.fields, sent.chunks.all()),
            lookups=tuple(self.told),
            settings=self._settings(),
            truncated=tuple(self._shortened),
        )

    def _settings(self) -> kept.Settings:
        config = self._config
        if config is None:
            return kept.Settings()
        return kept.Settings(
            server=msgspec.to_builtins(config.server),
            retry=msgspec.to_builtins(config.retry),
            effort=msgspec.to_builtins(config.effort),
            providers=self._stanzas,
            quirks={name: self._learnt[name] for name in self._stanzas if name in self._learnt},
            known_models=self._known,
            routes=tuple(map(str, self.routes)),
            owner=self.owner,
        )


class RecordingWatch(Watch):
    __slots__ = ("_question", "_recording")

    def __init__(self, recording: Recording) -> None:
        super().__init__(time.monotonic)
        self._recording = recording
        self._question: int | None = None  # known at the first event: a watch may be made before its question is asked

    def see(self, event: Event) -> None:
        if self._question is None:
            self._question = len(self._recording.questions) - 1
        self._recording.saw(self._question, event)
        super().see(event)
