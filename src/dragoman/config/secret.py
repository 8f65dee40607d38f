"""Secrets: read from `env:NAME`, `file:PATH` or a literal, and never printed."""

import hmac
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import fields

from dragoman.config.problems import ConfigError, Problem

MAX_SECRET_BYTES = 64 * 1024
SHORTEST_OPEN_KEY = 16  # minimum length of a client key if other machines can reach the gateway
PLACEHOLDER_STARTS = ("changeme", "change-me", "your-", "sk-your-", "replace-me", "replaceme", "insert-", "<")
PLACEHOLDER_ENDS = ("...", "…", ">")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
PLACEHOLDERS = frozenset(
    {"", "secret", "password", "api-key", "apikey", "my-secret", "none", "null", "xxx", "my-super-secret-password-123"}
)


class Secret:
    """A secret string. Only `reveal` returns it; printing, formatting and pickling do not."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")


STORE = "store:"  # a credential in the store, sealed, by its name


class SecretSource:
    """The source of a secret, and the place in the configuration that names it."""

    __slots__ = ("_text", "file", "key", "line", "rest", "scheme")

    def __init__(self, text: str, key: str = "", file: str = "", line: int | None = None) -> None:
        self._text = text
        self.scheme, _, self.rest = text.partition(":")
        self.key = key
        self.file = file
        self.line = line

    @property
    def is_literal(self) -> bool:
        """Whether the secret itself is in the configuration, so that it changes only with it."""
        return self.scheme not in ("env", "file", "store")

    @property
    def text(self) -> str:
        """The text in the configuration, which may be a literal secret. Do not print it."""
        return self._text

    def __repr__(self) -> str:
        return f"SecretSource({self})"

    def __str__(self) -> str:
        return "***" if self.is_literal else self._text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SecretSource):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((SecretSource, self._text))

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")

    def make_error(self, message: str) -> ConfigError:
        return ConfigError([Problem(self.file, self.line, self.key, message)])


def resolve_secret(source: SecretSource, environ: Mapping[str, str]) -> Secret:
    """Read the secret. Call this at each use, so that a changed file or variable takes effect; raises ConfigError."""
    if source.scheme == "env":
        value = _from_variable(source, source.rest, environ)
    elif source.scheme == "file":
        value = _from_file(source, Path(source.rest))
    else:
        value = source.text
    if CONTROL.search(value):
        raise source.make_error("the secret contains control characters")
    return Secret(value)


def find_unreadable_secrets(section: Struct, environ: Mapping[str, str]) -> list[Problem]:
    """Return the problems of all secrets of a section: variables that are not set, files that cannot be read."""
    problems: list[Problem] = []
    for info in fields(section):
        value = getattr(section, info.name)
        for source in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,):
            if isinstance(source, SecretSource):
                try:
                    resolve_secret(source, environ)
                except ConfigError as error:
                    problems += error.problems
    return problems


def is_placeholder(value: str) -> bool:
    """Return whether a secret is empty or a sample from documentation."""
    folded = value.strip().lower().replace("_", "-")
    return folded in PLACEHOLDERS or folded.startswith(PLACEHOLDER_STARTS) or folded.endswith(PLACEHOLDER_ENDS)


def _from_variable(source: SecretSource, name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name)
    if value is None:
        raise source.make_error(f"environment variable {name} is not set")
    if not value.strip():
        raise source.make_error(f"environment variable {name} is empty")
    return value.strip()


def _from_file(source: SecretSource, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise source.make_error(f"cannot read secret file {path}: {error.strerror}") from error
    if len(content) > MAX_SECRET_BYTES:
        raise source.make_error(f"secret file {path} is larger than {MAX_SECRET_BYTES} bytes")
    try:
        value = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise source.make_error(f"secret file {path} is not UTF-8 text") from error
    if not value:
        raise source.make_error(f"secret file {path} is empty")
    return value
