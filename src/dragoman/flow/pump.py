"""Pass on what is read of a reply that has begun: one read of the upstream's socket, at most one write."""

import math
from collections.abc import Callable

from dragoman.config.settings import Server
from dragoman.flow.pipes import Pipe, TranslationPipe
from dragoman.flow.prepare import Prepared
from dragoman.flow.reply_bounds import ReplyDeadline
from dragoman.flow.response_writer import ResponseWriter
from dragoman.hub.failure import Failure
from dragoman.hub.ports import Progress

LINGER_S = 1.0  # how long an upstream may take to end its body after its terminal event


class Pump:
    """Passes on what is read of a reply that has begun: called for each read, with no task in between."""

    __slots__ = (
        *(
            "_clock",
            "_idle_s",
            "_hold",
            "_is_translation",
            "_lull_s",
            "_pause_s",
            "_pipe",
            "_wait",
            "_write",
            "_writer",
        ),
        *("failure", "is_over"),
    )

    def __init__(
        self,
        pipe: Pipe,
        writer: ResponseWriter,
        wait: ReplyDeadline,
        server: Server,
        clock: Callable[[], float],
        hold: Callable[[int], Failure | None] | None,  # counts the bytes of a reply that is collected into one body
    ) -> None:
        self._pipe = pipe
        self._writer = writer
        self._write = writer.write
        self._wait = wait
        self._clock = clock
        self._is_translation = isinstance(pipe, TranslationPipe)
        self._idle_s = server.idle_timeout_s
        self._pause_s = server.keep_alive_s if writer.keep_alive else math.inf
        self._lull_s = min(self._idle_s, self._pause_s)
        self._hold = hold
        self.is_over = False  # nothing more is to be read
        self.failure: Failure | None = None  # why, where that is not the end of the reply

    def pass_on(self, chunk: bytes) -> float | None:
        """Return how long the next bytes may take; None to stop reading, for a while or for good (`is_over`)."""
        pipe, wait, now = self._pipe, self._wait, self._clock()
        if self._hold is not None and (no_room := self._hold(len(chunk))) is not None:
            self._stop(no_room)
            return None
        out = pipe.feed(chunk)
        if not pipe.watch.ended:
            wait.deadline = now + self._idle_s
            return self._lull_s if not out or self._write(out) else None
        if self._is_translation or now >= wait.deadline:
            self._writer.keep_for_end(out)
            self.is_over = True
            return None
        wait.deadline = min(wait.deadline, now + LINGER_S)  # what follows the terminal event passes too
        return None if out and not self._write(out) else self.choose_timeout()

    def _stop(self, failure: Failure) -> None:
        self.is_over = True
        self.failure = failure

    def choose_timeout(self) -> float:
        """Return how long the next bytes may take; shorter than the deadline where the client must be kept alive."""
        pause_s = LINGER_S if self._pipe.watch.ended else self._pause_s  # all of it may have come in the first read
        return min(self._wait.seconds_left(self._clock()), pause_s)


def is_answering(prepared: Prepared, pipe: Pipe) -> bool:
    """Whether the model answers, perhaps with hidden thoughts, or with a tool call that is withheld until complete."""
    watch = pipe.watch
    return (
        pipe.decoder.progress in (Progress.WORKING_SILENTLY, Progress.ACTING)
        or watch.has_content
        or (prepared.provider.replies.withholds_cut_calls and watch.started is not None)
    )
