"""An upstream's words come in; they go out without the credential that it was sent."""

from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.hub.events import Event, Failed
from dragoman.hub.failure import Failure
from dragoman.net.headers import Header

HIDDEN = b"***"
SHORTEST = 8  # a shorter word is no secret, and would be found everywhere

Secrets = tuple[bytes, ...]


def secrets_in(credentials: Iterable[Header]) -> Secrets:
    """The words that only the upstream and we may know: the values of its credential headers, without their scheme."""
    words = (value.rpartition(b" ")[2] for _, value in credentials)
    return tuple(word for word in words if len(word) >= SHORTEST)


def hide(text: bytes, secrets: Secrets) -> bytes:
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, HIDDEN)
    return text


def hushed(failure: Failure, secrets: Secrets) -> Failure:
    said = failure.message.encode()
    hidden = hide(said, secrets)
    return failure if hidden is said else replace(failure, message=hidden.decode())


def discreet(events: Iterable[Event], secrets: Secrets) -> list[Event]:
    return [Failed(hushed(event.failure, secrets)) if isinstance(event, Failed) else event for event in events]
