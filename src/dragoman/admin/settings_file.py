"""A settings file and its new text come in; the file is backed up and replaced in one step, or put back as it was."""

import difflib
import os
import re
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from dragoman.admin.settings_text import CannotMerge
from dragoman.framing.redaction import MASK, redact

OTHERS_KEY = re.compile(
    r"""(?P<before>\w*(?:key|token|secret|password)["']?\s*[:=]\s*["']?)(?!DRAGOMAN_|\{env:|[$*])[^\s"',]{6,}""",
    re.IGNORECASE,
)
BACKUP = ".dragoman-backup-"
MAX_BYTES = 4 * 1024 * 1024


def read_text(path: Path) -> str | None:
    """The file's text; None if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) > MAX_BYTES:
        raise CannotMerge("it is too large for a settings file")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CannotMerge("it is not UTF-8 text") from error


def difference(path: Path, old: str, new: str) -> str:
    """What would change; other tools' keys that stand nearby are masked."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), str(path), str(path), "now", "then", lineterm="")
    return OTHERS_KEY.sub(rf"\g<before>{MASK}", redact("\n".join(lines)))


def back_up(path: Path, old: str | None) -> Path:
    """An empty backup says that there was no file."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    backup = path.with_name(f"{path.name}{BACKUP}{stamp}")
    replace(backup, old or "", 0o600)
    return backup


def newest_backup(path: Path) -> Path | None:
    found = sorted(path.parent.glob(f"{path.name}{BACKUP}*")) if path.parent.is_dir() else []
    return found[-1] if found else None


def put_back(path: Path, backup: Path) -> None:
    """The backup becomes the file again; the next older one is then the newest."""
    text = read_text(backup)
    if text:
        replace(path, text, mode_of(path))
    else:
        path.unlink(missing_ok=True)
    backup.unlink()


def replace(path: Path, text: str, mode: int) -> None:
    """Readers see the old file or the new one, never half of either. A link stays a link."""
    path = path.resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def mode_of(path: Path) -> int:
    """The mode of a file that is there; a new one is its owner's alone."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return 0o600
