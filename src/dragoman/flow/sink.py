"""The client's end of a line, which outlives an upstream: events come in, the client's bytes go out."""

from collections.abc import Callable, Iterable, Sequence

from dragoman.hub.events import Event
from dragoman.hub.failure import Failure
from dragoman.hub.loss import Ledger
from dragoman.hub.stage import Stage
from dragoman.hub.usage import Usage
from dragoman.observers.watch import Watch
from dragoman.stages.carry_on import CarryOn

MakeStages = Callable[[Callable[[Failure], None]], Sequence[Stage[Event, Event]]]  # given who is told a failure


class _CurrentWatch:
    """Which upstream's watch is told a failure. The stages refer to this and not to the sink, which holds them."""

    __slots__ = ("watch",)

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def fail(self, failure: Failure) -> None:
        self.watch.fail(failure)


class Sink:
    """The stages and the encoder of one client, behind the machine that joins one upstream's reply to the next."""

    __slots__ = ("_carry", "_encoder", "_stages", "_watch")

    def __init__(self, make_stages: MakeStages, encoder: Stage[Event, bytes], watch: Watch) -> None:
        self._carry = CarryOn()
        self._watch = _CurrentWatch(watch)
        self._stages = make_stages(self._watch.fail)
        self._encoder = encoder

    @property
    def broken(self) -> Failure | None:
        """Why the upstream broke off, while another may go on."""
        return self._carry.broken

    @property
    def said(self) -> str:
        return self._carry.said

    @property
    def spent(self) -> Usage | None:
        """What the upstreams before this one have used."""
        return self._carry.spent

    def resume(self, spent: Usage, marker: str) -> None:
        self._carry.resume(spent, marker)

    def begin_upstream(self, watch: Watch) -> None:
        """What comes now is another upstream's, which this watch sees."""
        self._watch.watch = watch
        self._carry.begin_upstream()

    def gone_on(self, ledger: Ledger) -> None:
        self._carry.gone_on(ledger)

    def seal(self) -> None:
        """Nobody goes on: the next failure is told."""
        self._carry.seal()

    def feed(self, event: Event) -> list[bytes]:
        return self._encoded(self._carry.feed(event))

    def finish(self) -> list[bytes]:
        if self.broken is not None:
            return []
        events: list[Event] = []
        for stage in self._stages:
            events = [out for event in events for out in stage.feed(event)]
            events += stage.finish()
        told = [piece for event in events for piece in self._encoder.feed(event)]
        return [*told, *self._encoder.finish()]

    def _encoded(self, events: Iterable[Event]) -> list[bytes]:
        for stage in self._stages:
            events = [out for event in events for out in stage.feed(event)]
        return [piece for event in events for piece in self._encoder.feed(event)]
