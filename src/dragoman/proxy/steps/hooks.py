"""The seat of hooks: they see a call whose routes are known, and may change or refuse it before anything is queued."""

from dragoman.proxy.call import Call


def run_hooks(call: Call) -> None:
    """Do nothing: there are no hooks yet. One that refuses raises RequestError."""
