"""Credential files: read while others write them, replaced atomically, locked while a credential is renewed."""

import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from dragoman.accounts.credential import CredentialError

if sys.platform != "win32":  # there, processes rely on the comparison before each write
    import fcntl
from collections.abc import Callable, Mapping

from dragoman.config.problems import ConfigError
from dragoman.config.secret import SecretSource, resolve_secret

MAX_BYTES = 1024 * 1024
READ_TRIES = 4  # a writer that does not rename leaves half a file for a moment
READ_PAUSE_S = 0.05

Table = dict[str, object]

_table = msgspec.json.Decoder(dict[str, object])


def load_table(path: Path, remedy: str) -> tuple[bytes, Table]:
    """Unusable, with the remedy, where there is no such file, or no object in it."""
    for left in range(READ_TRIES - 1, -1, -1):
        content = _read_bounded(path, remedy)
        try:
            return content, _table.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if left:
                time.sleep(READ_PAUSE_S)
    raise CredentialError(f"{path} is no JSON object: {remedy}")


def encode_table(table: Table) -> bytes:
    return msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n"


def read_text(table: Table, key: str) -> str:
    value = table.get(key)
    return value.strip() if isinstance(value, str) else ""


def read_table(table: Table, key: str) -> Table:
    """The object below a key; an empty one where there is none."""
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def _read_bounded(path: Path, remedy: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise CredentialError(f"{path} does not exist: {remedy}") from None
    except OSError as error:
        raise CredentialError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise CredentialError(f"{path} is too large for a credential")
    return content


FILE_MODE = 0o600


def replace_file(path: Path, content: bytes, expected: bytes | None) -> bool:
    """Put the content in place of exactly `expected` (None: of no file); False where somebody else has written."""
    path = path.resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.chmod(temporary, FILE_MODE)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # The disk took its time; whoever wrote meanwhile keeps what they wrote.
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
    """So that the rename survives a power cut; not every system can."""
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


log = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 20.0
LOCK_POLL_S = 0.05
LOCK_SUFFIX = ".dragoman-lock"


@asynccontextmanager
async def hold_lock(path: Path | None) -> AsyncIterator[None]:
    """Advisory, and not for ever: a lock that cannot be had in time is done without."""
    handle = None if path is None or sys.platform == "win32" else _open_lock(path)
    try:
        if handle is not None:
            await _acquire_lock(handle)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _open_lock(path: Path) -> int | None:
    beside = path.resolve()
    try:
        return os.open(beside.with_name(beside.name + LOCK_SUFFIX), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.debug("no lock beside %s: %s", path, error.strerror)
        return None


async def _acquire_lock(handle: int) -> None:
    loop = asyncio.get_running_loop()
    patience = loop.time() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            if loop.time() > patience:
                log.warning("another process holds a credential's lock for too long: going on without it")
                return
        await asyncio.sleep(LOCK_POLL_S)


PATH_STARTS = ("/", "~", "./", "../", "\\\\")
PATH_ENDS = (".json", ".sqlite3", ".sqlite", ".db")  # of any vendor's credentials


def holds_object(path: Path) -> bool:
    return (read_bytes(path) or b"").lstrip().startswith(b"{")


def find_named_file(
    secret: SecretSource, ends: tuple[str, ...] = (".json",), holds: Callable[[Path], bool] = holds_object
) -> Path | None:
    """None where it is the secret itself. Tokens have slashes too, but do not begin with one or end like a file.

    `holds` says of a `file:` whether it is a credential with all its fields; another one holds the bare secret.
    """
    text = secret.text
    if text.startswith("env:"):
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
    """Where it is set, without the secret."""
    return secret.key if str(secret) == "***" else str(secret)
