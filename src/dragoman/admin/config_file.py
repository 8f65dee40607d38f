"""Edit the configuration file as text, without showing its secrets: read, compare, write."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import fields

from dragoman.admin.configuration import PASSWORD_PARAMETER, URL_PASSWORD
from dragoman.admin.errors import AdminError, InvalidArgument
from dragoman.admin.settings_file import OTHERS_KEY, CannotMerge, FileEdit, read_text
from dragoman.config import Config, ConfigError, Secret, SecretSource
from dragoman.config.load import user_config_file
from dragoman.config.secret import find_unreadable_secrets
from dragoman.framing.redaction import SECRET, redact

HIDDEN = re.compile(r"<hidden (\d{1,6})>")
SHORTEST = 4  # a shorter value is not a secret, and would be found everywhere
OWN_REFERENCES = ("env:", "file:")


class ShownFile(Struct, frozen=True):
    """A file whose secrets are replaced by `<hidden N>`; `version` changes with every change of the file."""

    path: Path
    text: str
    version: str
    exists: bool
    is_writable: bool
    hidden: tuple[str, ...] = ()  # never shown


class Literal(Struct, frozen=True):
    """A secret; `is_in_file` where it is certain that the configuration file holds it."""

    value: str
    is_in_file: bool


class CannotShow(AdminError):
    """The file has secrets that cannot be recognised in its text, so it can only be edited by hand."""


def config_path(config: Config, environ: Mapping[str, str], home: Path) -> Path:
    """Return the configuration file, or where a new one belongs."""
    return config.source or user_config_file(environ, home)


def show_file(path: Path, read: Callable[[str], Config]) -> ShownFile:
    """Return the file with its secrets hidden; `read` checks a text as the configuration, or raises ConfigError."""
    try:
        text = read_text(path)
        config = read(text or "")
    except (CannotMerge, OSError, ConfigError) as error:
        raise CannotShow(f"{path} cannot be shown, because it cannot be read: {redact(str(error))}") from None
    shown, hidden = hide_secrets(text or "", find_literals(config, str(path)))
    version = hashlib.sha256((text or "").encode()).hexdigest()[:32]
    return ShownFile(path, shown, version, text is not None, _is_writable(path), hidden)


def hide_secrets(text: str, literals: Iterable[Literal]) -> tuple[str, tuple[str, ...]]:
    """Return the text with each secret replaced by `<hidden N>`, and the secrets in the order of their numbers."""
    known = [literal for literal in literals if len(literal.value) >= SHORTEST]
    if HIDDEN.search(text) or any(literal.is_in_file and literal.value not in text for literal in known):
        raise CannotShow("The file writes a secret in a form that cannot be hidden. Edit it by hand.")
    found = {literal.value for literal in known} | {match[0] for match in SECRET.finditer(text)}
    found |= {match[0][len(match["before"]) :] for match in OTHERS_KEY.finditer(text)}
    found = {secret for secret in found if not secret.startswith(OWN_REFERENCES)}
    if not found:
        return text, ()
    hidden: dict[str, int] = {}
    pattern = re.compile("|".join(re.escape(secret) for secret in sorted(found, key=len, reverse=True)))

    def hide(match: re.Match[str]) -> str:
        return f"<hidden {hidden.setdefault(match[0], len(hidden) + 1)}>"

    return pattern.sub(hide, text), tuple(hidden)


def restore_secrets(text: str, hidden: tuple[str, ...]) -> str:
    """Put the secrets back; raises InvalidArgument for a number that the file did not have."""

    def restore(match: re.Match[str]) -> str:
        number = int(match[1])
        if not 1 <= number <= len(hidden):
            raise InvalidArgument(f"{match[0]} is not in the file. Write the secret itself, or env:NAME.")
        return hidden[number - 1]

    return HIDDEN.sub(restore, text)


def plan_write(shown: ShownFile, text: str) -> FileEdit:
    """Return the change of the file to a text that was made from what was shown."""
    old = restore_secrets(shown.text, shown.hidden) if shown.exists else None
    return FileEdit(shown.path, old, restore_secrets(text, shown.hidden))


def describe_change(shown: ShownFile, text: str) -> str:
    """Return the change as a unified diff, in which secrets are hidden."""
    return FileEdit(shown.path, shown.text, text).diff()


def check_secrets(config: Config, old: Config, environ: Mapping[str, str]) -> None:
    """Raise ConfigError for secrets of changed sections that cannot be read, as a reload does."""
    changed = [section for name, section in config.providers.items() if old.providers.get(name) != section]
    tools = (config.tools.web_search, config.tools.web_fetch) if config.tools != old.tools else ()
    problems = [found for section in (*changed, *tools) for found in find_unreadable_secrets(section, environ)]
    if problems:
        raise ConfigError(problems)


def find_literals(config: Config, file: str) -> Iterator[Literal]:
    """Yield every secret that the configuration has as it is, rather than naming where it is."""
    for section in (config.server, config.debug, config.store, config.fetch, config.tools, *config.providers.values()):
        yield from _find_literals(section, file)


def _find_literals(value: object, file: str) -> Iterator[Literal]:
    match value:
        case SecretSource():
            if not value.text.startswith(OWN_REFERENCES):
                yield Literal(value.text, value.file == file)
        case Secret():
            yield Literal(value.reveal(), is_in_file=False)
        case str():
            yield from (Literal(found[0].partition(":")[2], is_in_file=False) for found in URL_PASSWORD.finditer(value))
            yield from (Literal(found[0], is_in_file=False) for found in PASSWORD_PARAMETER.finditer(value))
        case dict():
            for inner in value.values():
                yield from _find_literals(inner, file)
        case tuple() | list():
            for inner in value:
                yield from _find_literals(inner, file)
        case Struct():
            for field in fields(value):
                yield from _find_literals(getattr(value, field.name), file)
        case _:
            return


def _is_writable(path: Path) -> bool:
    """Return whether the file can be replaced: that needs the right to write to its directory."""
    directory = next(parent for parent in path.parents if parent.exists())
    return os.access(directory, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.W_OK))
