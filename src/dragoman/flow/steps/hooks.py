"""The seat of hooks: they see a call whose routes are known, and may change or refuse it before anything is queued."""

from typing import TYPE_CHECKING

from dragoman.flow.call import Call

if TYPE_CHECKING:  # imported when such a request comes
    from dragoman.flow.relay import RelayedCall


def run_hooks(call: "Call | RelayedCall") -> None:
    """Do nothing: there are no hooks yet. One that refuses raises RequestError."""
