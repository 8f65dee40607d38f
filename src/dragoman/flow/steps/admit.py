"""The seat of limits and budgets: the last step before an upstream is paid for."""

from typing import TYPE_CHECKING

from dragoman.flow.call import Call

if TYPE_CHECKING:  # imported when such a request comes
    from dragoman.flow.relay import RelayedCall


def admit(call: "Call | RelayedCall") -> None:
    """Do nothing: there are no limits yet. A call that is over one raises RequestError; `observe` settles the rest."""
