"""A call and its prepared request come in; the machines that its reply goes through go out, put together."""

from collections.abc import Callable, Iterable
from functools import partial

from dragoman.flow.call import Call
from dragoman.flow.line import Line, Source, Tap, Translation
from dragoman.flow.prepare import Prepared
from dragoman.flow.sink import Sink
from dragoman.hub.events import Event, Failed
from dragoman.hub.failure import Failure, Refused
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Asked
from dragoman.hub.stage import Stage
from dragoman.observers.watch import Watch
from dragoman.providers.count import count_text, estimate
from dragoman.stages.check_calls import CheckCalls
from dragoman.stages.estimate_usage import EstimateUsage
from dragoman.stages.guard import Guard
from dragoman.stages.hold_cut import HoldCut
from dragoman.stages.raise_tools import RaiseTools
from dragoman.stages.serialise_blocks import SerialiseBlocks


def source_of(prepared: Prepared, ledger: Ledger) -> Source:
    """What reads the upstream's bytes."""
    upstream = prepared.upstream
    return Source(upstream.framer(), upstream.decoder(prepared.issuer, ledger))


class LineBuilder:
    """Puts the machines of each reply together; clock, chance and counters are handed in."""

    def __init__(
        self,
        asked: Callable[[Call], Asked],
        watch: Callable[[], Watch],
        on_trip: Callable[[str], None],
    ) -> None:
        self.asked = asked
        self.watch = watch
        self._on_trip = on_trip

    def line(self, call: Call, prepared: Prepared, sink: Sink | None) -> Line:
        if not prepared.passthrough:
            return self.translation(call, prepared, sink)
        return Tap(source_of(prepared, Ledger()), call.client, self.watch(), prepared.secrets)

    def translation(self, call: Call, prepared: Prepared, sink: Sink | None) -> Translation:
        ledger = prepared.ledger if prepared.ledger is not None else Ledger()
        source = source_of(prepared, ledger)
        stages = self._stages(prepared)
        hold = HoldCut() if prepared.provider.withholds_cut_calls else None
        watch = self.watch()
        if sink is not None:
            sink.begin_upstream(watch)
            return Translation(source, hold, stages, sink, watch, prepared.secrets)
        last = partial(self._client_stages, call.client.serial)
        encoder = call.client.encoder(self.asked(call), ledger)
        if call.continues:
            return Translation(source, hold, stages, Sink(last, encoder, watch), watch, prepared.secrets)
        return Translation(source, hold, [*stages, *last(watch.fail)], encoder, watch, prepared.secrets)

    def error_event(self, call: Call, failure: Failure) -> bytes:
        """How a stream ends of which nothing but keep-alives was sent."""
        try:
            encoder = call.client.encoder(self.asked(call), Ledger())
        except Refused:  # what only its own protocol understands passes unread
            return call.client.repair(failure, None, 0)
        return b"".join([*encoder.feed(Failed(failure)), *encoder.finish()])

    def staged(self, events: Iterable[Event], prepared: Prepared) -> list[Event]:
        """Return the events of a whole reply after every stage; blocks need no serialising, for they are folded."""
        for stage in (*self._stages(prepared), *self._client_stages(False)):
            events = [out for event in events for out in stage.feed(event)] + list(stage.finish())
        return list(events)

    def _client_stages(
        self, serial: bool, on_failure: Callable[[Failure], None] = lambda failure: None
    ) -> list[Stage[Event, Event]]:
        """Return the stages in front of every client's encoder."""
        serialise = (SerialiseBlocks(),) if serial else ()
        return [CheckCalls(), *serialise, Guard(self._on_trip, on_failure)]

    def _stages(self, prepared: Prepared) -> list[Stage[Event, Event]]:
        stages: list[Stage[Event, Event]] = []
        request, model = prepared.request, prepared.route.model
        if request is not None and prepared.provider.stages is not None:
            stages += prepared.provider.stages(request)
        if prepared.tools:
            stages.append(RaiseTools(prepared.tools))
        if request is not None:
            stages.append(EstimateUsage(count_text, lambda: estimate(request, model)))
        return stages
