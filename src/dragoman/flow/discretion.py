"""An upstream's words come in; they go out without the secrets that it was sent."""

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from urllib.parse import quote_from_bytes

import msgspec
from msgspec.structs import replace

from dragoman.framing.redact import SHORTEST
from dragoman.hub.events import Event, Failed
from dragoman.hub.failure import Failure
from dragoman.net.headers import Header

HIDDEN = b"***"

Secrets = tuple[bytes, ...]


def secrets_in(credentials: Iterable[Header], others: Iterable[bytes] = ()) -> Secrets:
    """The words that only the upstream and we may know: the values of its credential headers, without their scheme."""
    words = (*(value.rpartition(b" ")[2] for _, value in credentials), *others)
    return tuple(form for word in words if len(word) >= SHORTEST for form in _disguises(word))


@lru_cache(maxsize=256)
def _disguises(word: bytes) -> Secrets:
    """The word as it is, and as JSON, URLs and base64 may write it."""
    forms = {
        word: None,
        msgspec.json.encode(word.decode("latin-1"))[1:-1]: None,
        word.replace(b"/", b"\\/"): None,
        quote_from_bytes(word, safe="").encode(): None,
        **dict.fromkeys(_in_base64(word)),
    }
    return tuple(forms)


def _in_base64(word: bytes) -> Iterator[bytes]:
    """What of it does not depend on what stands around it, for each of the three places where it may begin."""
    for before in range(3):
        for encode in (b64encode, urlsafe_b64encode):
            text = encode(b"\0" * before + word)[4 if before else 0 :]
            if len(text) - 4 >= SHORTEST:
                yield text[:-4]


def hide(text: bytes, secrets: Secrets) -> bytes:
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, HIDDEN)
    return text


def hide_in_fields(fields: Iterable[Header], secrets: Secrets) -> list[Header]:
    return [(name, hide(value, secrets)) for name, value in fields]


class Veil:
    """Hides secrets in bytes that come piece by piece, wherever they are cut."""

    __slots__ = ("_held", "_secrets")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""  # what may be the beginning of one

    def feed(self, chunk: bytes) -> bytes:
        if self._held:
            chunk, self._held = self._held + chunk, b""
        text = hide(chunk, self._secrets)
        if text.endswith(b"\n"):  # so end events, and no secret has one
            return text
        begun = max((_begun(text, secret) for secret in self._secrets), default=0)
        if begun == 0:
            return text
        self._held = text[-begun:]
        return text[:-begun]

    def finish(self) -> bytes:
        """What was held back; if so much of a secret that the rest could be guessed, not even that."""
        held, self._held = self._held, b""
        return HIDDEN if len(held) >= SHORTEST else held


def _begun(text: bytes, secret: bytes) -> int:
    """How many of the last bytes are the first ones of the secret."""
    at = text.find(secret[:4], max(0, len(text) - len(secret) + 1))
    while at >= 0:
        if secret.startswith(text[at:]):
            return len(text) - at
        at = text.find(secret[:4], at + 1)
    return next((count for count in (3, 2, 1) if text.endswith(secret[:count])), 0)


def hushed(failure: Failure, secrets: Secrets) -> Failure:
    """The vendor's words, its code and its details."""
    said = msgspec.json.encode((failure.message, failure.code, failure.detail))
    hidden = hide(said, secrets)
    if hidden is said:
        return failure
    message, code, detail = msgspec.json.decode(hidden, type=tuple[str, str | None, dict[str, object] | None])
    return replace(failure, message=message, code=code, detail=detail)


def discreet(events: Sequence[Event], secrets: Secrets) -> Sequence[Event]:
    """Those who only watch tell of a failure too: this comes before them."""
    if Failed not in map(type, events):
        return events
    return [Failed(hushed(event.failure, secrets)) if isinstance(event, Failed) else event for event in events]
