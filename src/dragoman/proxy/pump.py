"""Pass on what is read of a reply that has begun: one read of the upstream's socket, at most one write."""

import math
from collections.abc import Callable

from dragoman.config.settings import ServerSettings
from dragoman.proxy.prepared import Prepared
from dragoman.proxy.replies.reply import StreamedReply
from dragoman.proxy.reply_bounds import ReplyDeadline
from dragoman.translate.hub.ports import Progress

LINGER_S = 1.0  # how long an upstream may take to end its body after its terminal event


class Pump:
    """Passes on what is read of a reply that has begun: called for each read, with no task in between."""

    __slots__ = ("_clock", "_feed", "_idle_s", "_lingers", "_lull_s", "_pause_s", "_wait", "_watch", "is_over")

    def __init__(
        self, reply: StreamedReply, wait: ReplyDeadline, server: ServerSettings, clock: Callable[[], float]
    ) -> None:
        self._feed = reply.feed
        self._watch = reply.watch
        self._lingers = reply.lingers
        self._wait = wait
        self._clock = clock
        self._idle_s = server.idle_timeout_s
        self._pause_s = server.keep_alive_s if reply.keep_alive is not None else math.inf
        self._lull_s = min(self._idle_s, self._pause_s)
        self.is_over = False  # nothing more is to be read

    def pass_on(self, chunk: bytes) -> float | None:
        """Return how long the next bytes may take; None to stop reading, for a while or for good (`is_over`)."""
        wait, now = self._wait, self._clock()
        has_room = self._feed(chunk)
        if not self._watch.ended:
            wait.deadline = now + self._idle_s
            return self._lull_s if has_room else None
        if not self._lingers or now >= wait.deadline:
            self.is_over = True
            return None
        wait.deadline = min(wait.deadline, now + LINGER_S)  # what follows the terminal event passes too
        return self.choose_timeout() if has_room else None

    def choose_timeout(self) -> float:
        """Return how long the next bytes may take; shorter than the deadline where the client must be kept alive."""
        pause_s = LINGER_S if self._watch.ended else self._pause_s  # all of it may have come in the first read
        left_s = self._wait.seconds_left(self._clock())
        return left_s if left_s < pause_s else pause_s


def is_answering(prepared: Prepared, reply: StreamedReply) -> bool:
    """Whether the model answers, perhaps with hidden thoughts, or with a tool call that is withheld until complete."""
    watch = reply.watch
    return (
        reply.progress in (Progress.WORKING_SILENTLY, Progress.ACTING)
        or watch.has_content
        or (prepared.provider.replies.withholds_cut_calls and watch.started is not None)
    )
