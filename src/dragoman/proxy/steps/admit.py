"""The seat of limits and budgets: the last step before an upstream is paid for."""

from dragoman.proxy.call import Call


def admit(call: Call) -> None:
    """Do nothing: there are no limits yet. A call that is over one raises RequestError; `observe` settles the rest."""
