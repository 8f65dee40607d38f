"""Redact known secrets in an upstream's reply, however they are escaped and wherever they are cut.

A secret may appear unchanged, quoted for a URL, in base64, or with any of its characters written as `\\u0073`. The
last form costs time only where a text contains such an escape of an ASCII character, which is rare.
"""

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from functools import cached_property
from operator import itemgetter
from urllib.parse import quote_from_bytes

import msgspec

from dragoman.translate.framing.redaction import MARK, MARK_BYTES, SHORTEST, find_all, unescape_with_places

MASK_BYTES = b"***"

Secrets = tuple[bytes, ...]
Span = tuple[int, int]

COMMON = " etaoinsrhldcumfpgwybvkxjqz"  # the most frequent first
STARTS = 4  # the first characters of a secret, which are searched for first
_value_of = itemgetter(1)  # of a field
_PARTIAL_ESCAPES = tuple(MARK[:count] for count in range(1, len(MARK)))
_PARTIAL_ESCAPE = re.compile(r"\\+(?:u(?:0(?:0[2-7]?)?)?)?\Z")


class SecretForms(Secrets):
    """All forms of some secrets, and what finds them; both are freed with the last request that uses them."""

    @cached_property
    def finder(self) -> "SecretFinder":
        return SecretFinder(self)


def list_secrets(credentials: tuple[tuple[bytes, bytes], ...], others: tuple[bytes, ...] = ()) -> SecretForms:
    """Return all forms of the secrets in credential headers (without the scheme) and in `others`."""
    words = (*(value.rpartition(b" ")[2] for _, value in credentials), *others)
    return SecretForms(form for word in words if len(word) >= SHORTEST for form in _encoded_forms(word))


class LatestForms:
    """Remembers the forms of the secrets that are in use; those of a credential that was replaced are forgotten."""

    __slots__ = ("_forms", "_made_of")

    def __init__(self) -> None:
        self._made_of: tuple[object, object] = ((), ())
        self._forms = SecretForms()

    def find(self, credentials: tuple[tuple[bytes, bytes], ...], others: tuple[bytes, ...]) -> SecretForms:
        """Return what `list_secrets` returns."""
        made_of = (credentials, others)
        if made_of != self._made_of:
            self._made_of, self._forms = made_of, list_secrets(credentials, others)
        return self._forms


def _encoded_forms(word: bytes) -> Secrets:
    """Return the word unchanged, and as it appears in JSON, URLs and base64."""
    forms = {
        word: None,
        msgspec.json.encode(word.decode("latin-1"))[1:-1]: None,
        word.replace(b"/", b"\\/"): None,
        quote_from_bytes(word, safe="").encode(): None,
        **dict.fromkeys(_in_base64(word)),
    }
    return tuple(forms)


def _in_base64(word: bytes) -> Iterator[bytes]:
    """Return the part of its base64 form that does not depend on its neighbours, for each of three alignments."""
    for before in range(3):
        for encode in (b64encode, urlsafe_b64encode):
            text = encode(b"\0" * before + word)[4 if before else 0 :]
            if len(text) - 4 >= SHORTEST:
                yield text[:-4]


def redact_known(text: bytes, secrets: Secrets) -> bytes:
    for secret in secrets:
        text = text.replace(secret, MASK_BYTES)  # the same bytes where there is none: to look first takes longer
    if secrets and text.find(MARK_BYTES) >= 0:
        spans = make_finder(secrets).spans(text.decode("latin-1"))
        if not spans:
            return text
        pieces, at = [], 0
        for start, end in spans:
            pieces += [text[at:start], MASK_BYTES]
            at = end
        return b"".join([*pieces, text[at:]])
    return text


def redact_known_in_fields(fields: list[tuple[bytes, bytes]], secrets: Secrets) -> list[tuple[bytes, bytes]]:
    values = b"\n".join(map(_value_of, fields))
    if redact_known(values, secrets) is values:
        return fields
    return [(name, redact_known(value, secrets)) for name, value in fields]


class StreamRedactor:
    """Redact secrets in a stream of bytes, wherever it is cut into chunks."""

    __slots__ = ("_held", "_secrets")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""  # what may be the beginning of a secret

    def feed(self, chunk: bytes) -> bytes:
        if self._held:
            chunk, self._held = self._held + chunk, b""
        text = redact_known(chunk, self._secrets)
        if not self._secrets or text.endswith(b"\n"):  # the end of an event; no secret contains it
            return text
        finder = make_finder(self._secrets)
        partial = finder.partial_length(text[-finder.reach :].decode("latin-1"))
        if partial == 0:
            return text
        self._held = text[-partial:]
        return text[:-partial]

    def finish(self) -> bytes:
        """Return the bytes held back, or a mask if they are so much of a secret that the rest could be guessed."""
        held, self._held = self._held, b""
        return MASK_BYTES if len(held) >= SHORTEST else held


class SecretFinder:
    """Find a set of secrets in text, escaped or not, and partial secrets at the end of a text."""

    def __init__(self, secrets: Secrets) -> None:
        self._forms = tuple(secret.decode("latin-1") for secret in secrets)
        # The number of last characters that decide whether a secret begins at the end of a text.
        self.reach = 6 * max(map(len, self._forms), default=0) + 6
        self._starts = (*{form[:STARTS]: None for form in self._forms}, MARK)
        # One character of each start, the rarest: a text without any of them contains no start.
        self.rare_characters = frozenset(map(_find_rarest, self._starts))

    def may_contain(self, text: str) -> bool:
        """Return quickly whether a text may contain a secret, or more than three characters of one at its end."""
        for start in self._starts:
            if start in text:
                return True
        return text.endswith(_PARTIAL_ESCAPES)

    def spans(self, text: str) -> list[Span]:
        """Return the spans of secrets, in order and without overlaps."""
        found = [*find_all(text, self._forms)]
        if MARK in text:
            plain, place = unescape_with_places(text)
            found += [(place(start), place(end)) for start, end in find_all(plain, self._forms)]
        return _merge_overlaps(found)

    def partial_length(self, text: str) -> int:
        """Return how many of the last characters may be the beginning of a secret, or of an escape in a secret."""
        if "\\" not in text:
            return max((_prefix_at_end(text, form) for form in self._forms), default=0)
        escape = _PARTIAL_ESCAPE.search(text)
        whole = text if escape is None else text[: escape.start()]
        plain, place = unescape_with_places(whole)
        partial = max((_prefix_at_end(plain, form) for form in self._forms), default=0)
        return len(text) - place(len(plain) - partial)


def make_finder(secrets: Secrets) -> SecretFinder:
    return secrets.finder if isinstance(secrets, SecretForms) else SecretFinder(secrets)


def _merge_overlaps(found: list[Span]) -> list[Span]:
    spans: list[Span] = []
    for start, end in sorted(found):
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _find_rarest(text: str) -> str:
    """Return the character that is rarest in the text of models; of an escape, its backslash."""
    return max(text, key=lambda character: COMMON.index(character) if character in COMMON else len(COMMON))


def _prefix_at_end(text: str, secret: str) -> int:
    """Return how many of the last characters are the first characters of the secret."""
    at = text.find(secret[:4], max(0, len(text) - len(secret) + 1))
    while at >= 0:
        if secret.startswith(text[at:]):
            return len(text) - at
        at = text.find(secret[:4], at + 1)
    return next((count for count in (3, 2, 1) if text.endswith(secret[:count])), 0)
