"""Secrets that are stored encrypted: the keys of `$DRAGOMAN_SECRET_KEY` or a file, and what is sealed with them.

A sealed value says which key opens it, by a name that is derived from the key and reveals nothing of it.
"""

import binascii
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes

VARIABLE = "DRAGOMAN_SECRET_KEY"
KEY_BYTES = 32
MAX_KEYS = 16
FORM = f"the base64 of {KEY_BYTES} bytes, or several of these with commas between (openssl rand -base64 {KEY_BYTES})"
FILE_NAME = "secret.key"  # beside the file of SQLite
MAX_FILE_BYTES = 4096
NO_CRYPTOGRAPHY = (
    "needs the package cryptography; run: pip install cryptography (with pipx: pipx inject dragoman cryptography)"
)
NO_KEY = f"needs a key, and PostgreSQL keeps none: set ${VARIABLE} to {FORM}, the same for every gateway"
NO_FILE = "needs its key, and {file} does not exist: put it back, or set $" + VARIABLE

_VERSION = b"\x01"
_NAME_BYTES = 8
_NONCE_BYTES = 12


class BadSecretKey(Exception):
    """A key has another form. The message names the place, never the value."""


class SealError(Exception):
    """Something cannot be sealed or opened. The message goes on after its name, and says why and what to do."""


class CannotOpen(SealError):
    """Something was sealed with another key, or was changed since."""


class SecretKeys:
    """The keys of a gateway: the first seals, all open. Nothing prints them."""

    __slots__ = ("_keys", "place")

    def __init__(self, keys: tuple[bytes, ...], place: str) -> None:
        self._keys = keys
        self.place = place  # where they are from, for messages

    def derive(self, purpose: str) -> tuple[bytes, ...]:
        """Return the keys for one purpose, from which the others cannot be found. Raises SealError."""
        try:
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        except ImportError as missing:
            raise SealError(NO_CRYPTOGRAPHY) from missing
        info = f"dragoman {purpose}".encode()
        return tuple(HKDF(SHA256(), KEY_BYTES, None, info).derive(key) for key in self._keys)

    def __repr__(self) -> str:
        return f"SecretKeys({len(self._keys)} from {self.place})"


def parse_secret_keys(text: str, place: str) -> SecretKeys:
    """Read keys from the text of the variable or the file. Raises BadSecretKey."""
    items = text.strip().split(",")
    keys = [_parse_key(item.strip()) for item in items[:MAX_KEYS]]
    whole = tuple(key for key in keys if key is not None)
    if len(whole) < len(items):
        which = f" (item {keys.index(None) + 1} is not)" if len(items) > 1 and None in keys else ""
        raise BadSecretKey(f"{place} must be {FORM}{which}, at most {MAX_KEYS}")
    return SecretKeys(whole, place)


def read_secret_variable(environ: Mapping[str, str]) -> SecretKeys | None:
    """Return the keys of the environment; None if it has none. Raises BadSecretKey."""
    text = environ.get(VARIABLE, "")
    return parse_secret_keys(text, f"${VARIABLE}") if text.strip() else None


def read_secret_file(path: Path) -> SecretKeys | None:
    """Return the keys in a file; None if there is no such file. Raises BadSecretKey, OSError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    return parse_secret_keys(content.decode("ascii", "replace"), str(path))


def find_secret_keys(environ: Mapping[str, str], file: Path | None) -> SecretKeys:
    """Return the keys of the environment, else those of the file. Raises SealError, BadSecretKey, OSError."""
    keys = read_secret_variable(environ)
    if keys is None and file is None:
        raise SealError(NO_KEY)
    if keys is None and file is not None:
        keys = read_secret_file(file)
    if keys is None:
        raise SealError(NO_FILE.format(file=file))
    return keys


def make_secret_keys(environ: Mapping[str, str], file: Path | None) -> SecretKeys:
    """Do the same, and make the file if there are no keys."""
    if file is None or read_secret_variable(environ) is not None:
        return find_secret_keys(environ, file)
    return make_secret_file(file)


def make_secret_file(path: Path) -> SecretKeys:
    """Return the keys in a file, which is made with a new one, readable by its owner only, if it does not exist.

    Processes that make it at the same time have the same key afterwards. Raises BadSecretKey, OSError.
    """
    keys = read_secret_file(path)
    if keys is not None:
        return keys
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{token_bytes(4).hex()}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(b64encode(token_bytes(KEY_BYTES)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    keys = read_secret_file(path)
    assert keys is not None
    return keys


class Sealer:
    """Seals with AES-GCM for one purpose. What belongs to a value (its name and version) is bound to it."""

    def __init__(self, keys: SecretKeys, purpose: str) -> None:
        """Raises SealError if the package is missing."""
        derived = keys.derive(purpose)
        names = [name[:_NAME_BYTES] for name in keys.derive(f"{purpose}, name of the key")]
        self._keys = dict(zip(names, derived, strict=True))
        self._first = names[0]
        self._place = keys.place

    def seal(self, content: bytes, bound: bytes) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = token_bytes(_NONCE_BYTES)
        return _VERSION + self._first + nonce + AESGCM(self._keys[self._first]).encrypt(nonce, content, bound)

    def open(self, sealed: bytes, bound: bytes) -> bytes:
        """Return the content. Raises SealError."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        at = len(_VERSION) + _NAME_BYTES
        name, nonce, content = sealed[len(_VERSION) : at], sealed[at : at + _NONCE_BYTES], sealed[at + _NONCE_BYTES :]
        if not sealed.startswith(_VERSION) or len(nonce) < _NONCE_BYTES:
            raise CannotOpen("was damaged or changed in the database: it is no sealed value")
        if name not in self._keys:
            raise CannotOpen(
                f"is sealed with a key that {self._place} does not have: add that key behind the first one"
            )
        try:
            return AESGCM(self._keys[name]).decrypt(nonce, content, bound)
        except InvalidTag:
            raise CannotOpen("was changed in the database, or is from another name or version") from None

    def has_first_key(self, sealed: bytes) -> bool:
        """Return whether something is sealed with the key that seals now."""
        return sealed[len(_VERSION) :].startswith(self._first)


def _parse_key(item: str) -> bytes | None:
    try:
        key = b64decode(item.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None
