"""Change a file that belongs to the user: show the difference, keep a backup, replace it in one step."""

import difflib
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from dragoman.operate.clients.settings_format import CannotMerge
from dragoman.translate.framing.redaction import MASK, redact

OTHERS_KEY = re.compile(
    r"""(?P<before>(?:key|token|secret|password)["']?\s*[:=]\s*["']?)(?!DRAGOMAN_|\{env:|[$*])[^\s"',]{6,}""",
    re.IGNORECASE,
)
REFERENCE = re.compile(r"""(?<=["'])(\{env:\w+\}|env:\w+)(?=["'])""")  # names where a secret is
BACKUP_MARK = ".dragoman-backup-"
KEPT_BACKUPS = 5  # of one file
MAX_BYTES = 4 * 1024 * 1024


class FileEdit(Struct, frozen=True):
    """A change of a file that has not been made yet; `old` is None where there is no file."""

    path: Path
    old: str | None
    new: str

    @property
    def is_change(self) -> bool:
        return self.new != self.old

    def diff(self) -> str:
        """Return a unified diff; keys of other tools that stand nearby are masked."""
        old, new = (self.old or "").splitlines(), self.new.splitlines()
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), "before", "after", lineterm="")
        parts = REFERENCE.split("\n".join(lines))  # every second one is a reference
        return "".join(
            part if index % 2 else OTHERS_KEY.sub(rf"\g<before>{MASK}", redact(part))
            for index, part in enumerate(parts)
        )

    def apply(self) -> Path | None:
        """Replace the file and return the backup of the old one; None if there was no file."""
        backup = None
        if self.old is not None:
            time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
            backup = self.path.with_name(f"{self.path.name}{BACKUP_MARK}{time}")
            replace_file(backup, self.old, 0o600)
            for outdated in list_backups(self.path)[:-KEPT_BACKUPS]:
                outdated.unlink(missing_ok=True)
        replace_file(self.path, self.new, _mode_of(self.path))
        return backup

    def create(self) -> None:
        """Write a file that does not exist yet."""
        replace_file(self.path, self.new, _mode_of(self.path))


def plan_edit(path: Path, change: Callable[[str], str]) -> FileEdit:
    """Return the change of a file's text; raise CannotMerge where that is not safe."""
    old = read_text(path)
    return FileEdit(path, old, change(old or ""))


def read_text(path: Path) -> str | None:
    """Return the text of a settings file; None if there is no file."""
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


def list_backups(path: Path) -> list[Path]:
    """Return the backups of a file, the newest last."""
    return sorted(path.parent.glob(f"{path.name}{BACKUP_MARK}*")) if path.parent.is_dir() else []


def replace_file(path: Path, text: str, mode: int) -> None:
    """Replace a file in one step, so that readers see the old one or the new one. A symbolic link stays one."""
    path = path.resolve()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    import tempfile  # 1 MB: `serve` uses this module too, and writes nothing

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


def _mode_of(path: Path) -> int:
    """Return the mode of a file; a new one is readable by its owner alone."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return 0o600
