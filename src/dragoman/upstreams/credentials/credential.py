"""Credentials of upstream accounts: what they have in common, why none may be usable, and the files they are in."""

import asyncio
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Generic, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from dragoman.config.problems import ConfigError
from dragoman.config.secret import STORE, SecretSource, resolve_secret
from dragoman.store.file_lock import hold_file_lock
from dragoman.translate.hub.failure import Kind, describe_cause

log = logging.getLogger(__name__)

NEVER_EXPIRES = float("inf")

Table = dict[str, object]

_PRINTABLE = re.compile(r"[!-~]*")


class Credential(Struct, frozen=True):
    """A token of any vendor. Its repr never contains one."""

    access_token: str = ""
    refresh_token: str = ""  # empty: it cannot be renewed
    expires_at: float = 0.0  # seconds since the epoch, without a safety margin
    account: str = ""  # empty: any account that signs in is accepted

    @property
    def secrets(self) -> tuple[str, ...]:
        """All that must be redacted in messages."""
        return (self.access_token, self.refresh_token)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(***)"


C = TypeVar("C", bound=Credential)


class CredentialForm(ABC, Generic[C]):
    """How a vendor's JSON object holds a credential. Fields that it does not know stay as they are."""

    kind: ClassVar[str]  # of the providers that it is for
    remedy: ClassVar[str]  # what makes a file that is missing or broken

    @abstractmethod
    def parse(self, table: Table, location: str) -> C:
        """Raise CredentialError if the object holds no credential."""

    def read_refresh_token(self, table: Table) -> str:
        """Return the token that a renewal replaces; of a credential that is not written, none."""
        return ""

    def renewed_fields(self, table: Table, fresh: C) -> Table:
        """Return the fields that a renewal changes; none if it is not written."""
        return {}

    def is_written(self, credential: C) -> bool:
        """Return whether its renewals are written; else each process has its own."""
        return True


class CredentialSource(ABC, Generic[C]):
    """Where a credential is stored. It is read again at each use, since others write it."""

    remedy = ""  # what to do if it cannot be renewed, where that is not the issuer's remedy

    def __init__(self, location: str) -> None:
        self.location = location

    @abstractmethod
    async def load(self) -> C: ...
    @abstractmethod
    async def save(self, consumed: C, fresh: C) -> bool:
        """Store what was renewed; return False if another process has renewed the stored credential since."""

    @abstractmethod
    def hold(self, stored: C) -> AbstractAsyncContextManager["CredentialSource[C]"]:
        """Keep our other processes from renewing the credential, which was just read; yield the source meanwhile."""


class LocalSource(CredentialSource[C]):
    """A source on this machine, which is read and written on a thread."""

    @property
    def lock(self) -> Path | None:
        """The file beside which processes lock each other out."""
        return None

    @abstractmethod
    def read(self) -> C: ...
    def write(self, consumed: C, fresh: C) -> bool:
        """Store what was renewed; return False if another program has renewed the stored credential since."""
        return True

    async def load(self) -> C:
        return await asyncio.to_thread(self.read)

    async def save(self, consumed: C, fresh: C) -> bool:
        return await asyncio.to_thread(self.write, consumed, fresh)

    @asynccontextmanager
    async def hold(self, stored: C) -> AsyncIterator[CredentialSource[C]]:
        async with hold_lock(self.lock):
            yield self


class GivenSource(LocalSource[C]):
    """A source that is never written: a secret, a command, or a file that only another program writes."""

    def __init__(self, location: str, read: Callable[[], C]) -> None:
        super().__init__(location)
        self._read = read

    def read(self) -> C:
        return self._read()


class FileSource(LocalSource[C]):
    """A file that other programs renew too, with a lock file beside it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    @property
    def lock(self) -> Path | None:
        return self.path


class JsonSource(FileSource[C]):
    """A JSON file in a vendor's form."""

    def __init__(self, path: Path, form: CredentialForm[C]) -> None:
        super().__init__(path)
        self.form = form

    def read(self) -> C:
        return self.form.parse(self.read_object(), self.location)

    def read_object(self) -> Table:
        """Return the whole object, with what the vendor keeps in files beside it."""
        return load_table(self.path, self.form.remedy)[1]

    def write(self, consumed: C, fresh: C) -> bool:
        if not self.form.is_written(consumed):
            return True
        content, table = load_table(self.path, self.form.remedy)
        if self.form.read_refresh_token(table) != consumed.refresh_token:
            return False
        return replace_file(self.path, encode_table({**table, **self.form.renewed_fields(table, fresh)}), content)


class CredentialError(Exception):
    """There is no usable credential. The message names files and remedies, never a secret."""

    def __init__(self, message: str, kind: Kind = Kind.CREDENTIAL) -> None:
        super().__init__(message)
        self.kind = kind


class AccountChanged(CredentialError):
    """Another account has signed in at the source: the old token is no longer used, even if it is still valid."""


class TokenRejected(Exception):
    """The issuer rejected this refresh token with `code`.

    If `is_permanent`, it is not tried again until another token is stored. `kind` is the kind of failure to report.
    """

    def __init__(self, code: str, *, is_permanent: bool = False, kind: Kind = Kind.CREDENTIAL) -> None:
        super().__init__(code)
        self.code = code
        self.is_permanent = is_permanent
        self.kind = kind


def make_missing_source(how: str) -> LocalSource[C]:
    """Return the source for a provider without a credential: it says how to get one."""

    def refuse() -> NoReturn:
        raise CredentialError(f"no credential found. {how}")

    return GivenSource("no credential", refuse)


def is_sendable(token: str) -> bool:
    """Return whether a token may be sent in a header."""
    return _PRINTABLE.fullmatch(token) is not None


MAX_BYTES = 1024 * 1024
READ_TRIES = 4  # a program that writes in place leaves half a file for a moment
READ_PAUSE_S = 0.05

_table = msgspec.json.Decoder(dict[str, object])


def load_table(path: Path, remedy: str) -> tuple[bytes, Table]:
    """Return a JSON file's bytes and its object. Raises CredentialError, with the remedy, if there is none."""
    for left in range(READ_TRIES - 1, -1, -1):
        content = _read_bounded(path, remedy)
        try:
            return content, _table.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if left:
                time.sleep(READ_PAUSE_S)
    raise CredentialError(f"{path} is not a JSON object: {remedy}")


def encode_table(table: Table) -> bytes:
    return msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n"


def read_text(table: Table, key: str) -> str:
    value = table.get(key)
    return value.strip() if isinstance(value, str) else ""


def read_table(table: Table, key: str) -> Table:
    """Return the object under a key; an empty one if there is none."""
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def _read_bounded(path: Path, remedy: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise CredentialError(f"{path} does not exist: {remedy}") from None
    except OSError as error:
        raise CredentialError(f"{path} cannot be read: {describe_cause(error)}") from error
    if len(content) > MAX_BYTES:
        raise CredentialError(f"{path} is too large for a credential")
    return content


FILE_MODE = 0o600


def replace_file(path: Path, content: bytes, expected: bytes | None) -> bool:
    """Replace exactly the content `expected` (None: no file); return False if another program has written the file."""
    path = path.resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    import tempfile  # 1 MB, only where a credential is written

    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.chmod(temporary, FILE_MODE)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # Writing took a while: another program may have written the file meanwhile, and then its content stays.
        if read_bytes(path) != expected:
            os.unlink(temporary)
            return False
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)
    return True


def read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _sync_directory(path: Path) -> None:
    """Make the rename survive a power cut, where the system can."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


LOCK_TIMEOUT_S = 20.0


@asynccontextmanager
async def hold_lock(path: Path | None) -> AsyncIterator[None]:
    """Hold the advisory lock beside a file; go on without it if it cannot be acquired in time."""
    async with hold_file_lock(path, LOCK_TIMEOUT_S) as is_held:
        if not is_held:
            log.warning("another process has held a credential's lock for %g s: going on without it", LOCK_TIMEOUT_S)
        yield


PATH_STARTS = ("/", "~", "./", "../", "\\\\")
PATH_ENDS = (".json", ".sqlite3", ".sqlite", ".db")  # of any vendor's credentials


def holds_object(path: Path) -> bool:
    return (read_bytes(path) or b"").lstrip().startswith(b"{")


def find_named_file(
    secret: SecretSource, ends: tuple[str, ...] = (".json",), holds: Callable[[Path], bool] = holds_object
) -> Path | None:
    """Return the file that a setting names, or None if the setting is the secret itself.

    Tokens contain slashes too, but do not begin with one or end like a file name. `holds` says whether the file behind
    `file:` is a credential with all its fields; otherwise it contains the bare secret.
    """
    text = secret.text
    if text.startswith(("env:", STORE)):
        return None
    if text.startswith("file:"):
        named = Path(text.removeprefix("file:"))
        return named if holds(named) else None
    if not text.startswith(PATH_STARTS) and not text.lower().endswith(ends):
        return None
    path = Path(text).expanduser()
    return path if path.is_absolute() else Path(secret.file).parent / path


def reveal(secret: SecretSource, environ: Mapping[str, str]) -> str:
    try:
        return resolve_secret(secret, environ).reveal()
    except ConfigError as error:
        raise CredentialError(str(error)) from error


def describe_place(secret: SecretSource) -> str:
    """Return where the secret is set, without the secret."""
    return secret.key if str(secret) == "***" else str(secret)


_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?\s*([Zz]|[+-]\d\d:?\d\d)?")


def parse_timestamp(text: str) -> float | None:
    """Parse RFC 3339 with any number of fractional digits; None if it is not a timestamp."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    offset = "+00:00" if zone is None or zone in "Zz" else zone
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}.{(fraction or '0')[:6].ljust(6, '0')}{offset}")
    except ValueError:
        return None
    return moment.timestamp()


def format_timestamp(seconds: float) -> str:
    """Format as UTC with milliseconds and Z, as the tools do whose files we share."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
