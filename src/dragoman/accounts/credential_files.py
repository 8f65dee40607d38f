"""Credential files: read while others write them, replaced atomically, locked while a credential is renewed."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from dragoman.accounts.credential import CredentialError

if sys.platform != "win32":  # on Windows, processes rely on the comparison before each write
    import fcntl
from collections.abc import Callable, Mapping

from dragoman.config.problems import ConfigError
from dragoman.config.secret import SecretSource, resolve_secret

MAX_BYTES = 1024 * 1024
READ_TRIES = 4  # a program that writes in place leaves half a file for a moment
READ_PAUSE_S = 0.05

Table = dict[str, object]

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
        raise CredentialError(f"{path} cannot be read: {error.strerror}") from error
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


log = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 20.0
LOCK_POLL_S = 0.05
LOCK_SUFFIX = ".dragoman-lock"


@asynccontextmanager
async def hold_lock(path: Path | None) -> AsyncIterator[None]:
    """Hold the advisory lock beside a file; go on without it if it cannot be acquired in time."""
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
                log.warning(
                    "another process has held a credential's lock for %g s: going on without it", LOCK_TIMEOUT_S
                )
                return
        await asyncio.sleep(LOCK_POLL_S)


PATH_STARTS = ("/", "~", "./", "../", "\\\\")
PATH_ENDS = (".json", ".sqlite3", ".sqlite", ".db")  # of any vendor's credentials


def holds_object(path: Path) -> bool:
    return (read_bytes(path) or b"").lstrip().startswith(b"{")


def find_named_file(
    secret: SecretSource, ends: tuple[str, ...] = (".json",), holds: Callable[[Path], bool] = holds_object
) -> Path | None:
    """Return the file that a setting names, or None if the setting is the secret itself.

    Tokens contain slashes too, but do not begin with one or end like a file name. `holds` tells whether the file behind
    `file:` is a credential with all its fields; otherwise it contains the bare secret.
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
    """Return where the secret is set, without the secret."""
    return secret.key if str(secret) == "***" else str(secret)
