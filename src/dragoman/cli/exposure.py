"""A provider's stanza comes in; which of the files that hold its secrets others can read goes out."""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from dragoman.accounts.credential_files import PATH_ENDS, find_named_file
from dragoman.config import ProviderConfig
from dragoman.config.discovery import find_credentials, home_directory
from dragoman.config.providers import list_credentials
from dragoman.config.secret import SecretSource
from dragoman.providers.account_state import WARNING, Finding

OTHERS = 0o077


def exposed(config: ProviderConfig, environ: Mapping[str, str]) -> Iterator[Finding]:
    for path in _files(config, environ):
        mode = _mode(path)
        if mode & OTHERS:
            found = f"{path} can be read by others (mode {mode:o})"
            yield Finding(f"secrets of {config.name}", WARNING, found, f"chmod 600 {path}")


def _files(config: ProviderConfig, environ: Mapping[str, str]) -> Iterator[Path]:
    """Those that are configured, else the one that is found."""
    configured = list_credentials(config)
    home = home_directory(environ)
    if not configured and home is not None:
        found = find_credentials(environ, home).get(config.kind)
        if found is not None:
            yield found
    for credential in configured:
        path = _file(credential) if isinstance(credential, SecretSource) else credential
        if path is not None:
            yield path


def _file(secret: SecretSource) -> Path | None:
    if secret.text.startswith("file:"):
        return Path(secret.text.removeprefix("file:"))
    return find_named_file(secret, PATH_ENDS)


def _mode(path: Path) -> int:
    """Nothing where there is no such file, or modes mean nothing."""
    try:
        return stat.S_IMODE(path.stat().st_mode) if os.name == "posix" else 0
    except OSError:
        return 0
