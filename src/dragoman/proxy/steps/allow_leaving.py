"""Decide from when on a client that leaves cancels its call."""

from dragoman.net.sink import ReplySink
from dragoman.state.stored_call import StoredCall


def allow_leaving(state: StoredCall | None, sink: ReplySink) -> None:
    """Let a client that leaves cancel its call from now on; raises ClientDisconnected if it has left.

    One that its upstream runs in the background is sent whether its client waits or not.
    """
    if state is not None and state.raw.get("background"):
        sink.on_reader_gone(_do_nothing)
    sink.allow_leaving()


def _do_nothing() -> None:
    return
