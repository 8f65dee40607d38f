"""The environment and a home directory come in; where our own and other tools' credentials may lie goes out."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from dragoman.config.problems import ConfigError, Problem
from dragoman.config.settings import ServerName

MAX_BYTES = 1024 * 1024
CLI_DATABASE = "data.sqlite3"


def home_directory(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HOME") or environ.get("USERPROFILE")
    return Path(home) if home else None


def data_directory(environ: Mapping[str, str], home: Path) -> Path:
    """Where what we make ourselves is kept."""
    return _shared(environ, home) / "dragoman"


def kiro_credential_paths(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Where a Kiro account's credentials may lie, in order: `dragoman login`, the IDE, kiro-cli, its predecessor."""
    roots = [_shared(environ, home), home / "Library" / "Application Support"]
    if environ.get("APPDATA"):
        roots.append(Path(environ["APPDATA"]))
    return (
        data_directory(environ, home) / "kiro.json",
        home / ".aws" / "sso" / "cache" / "kiro-auth-token.json",
        *(root / "kiro-cli" / CLI_DATABASE for root in roots),
        *(root / "amazon-q" / CLI_DATABASE for root in roots),
    )


def codex_credential_paths(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Where a ChatGPT account's may lie: `dragoman login`, `codex login`."""
    codex = Path(environ.get("CODEX_HOME") or home / ".codex")
    return data_directory(environ, home) / "codex.json", codex / "auth.json"


def copilot_credential_paths(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Where a GitHub account's may lie: `dragoman login`, then Copilot's editor plugins, newer and older."""
    settings = Path(environ.get("XDG_CONFIG_HOME") or environ.get("LOCALAPPDATA") or home / ".config")
    plugins = settings / "github-copilot"
    return data_directory(environ, home) / "copilot.json", plugins / "apps.json", plugins / "hosts.json"


def find_credentials(environ: Mapping[str, str], home: Path) -> dict[str, Path]:
    """Of each kind the first place that has a credential: Codex may be signed in with a mere API key."""
    found = {
        "kiro": find_kiro_credentials(environ, home),
        "codex": next(
            (path for path in codex_credential_paths(environ, home) if _mentions(path, b'"access_token"')), None
        ),
        "copilot": next(
            (path for path in copilot_credential_paths(environ, home) if _mentions(path, b'"oauth_token"')), None
        ),
    }
    return {kind: path for kind, path in found.items() if path is not None}


def find_kiro_credentials(environ: Mapping[str, str], home: Path) -> Path | None:
    """The first of those places that has a file."""
    return next((path for path in kiro_credential_paths(environ, home) if path.is_file()), None)


def _mentions(path: Path, words: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return words in file.read(MAX_BYTES)
    except OSError:
        return False


def _shared(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")


HOST = "127.0.0.1"
VARIABLE = "DRAGOMAN_LOCAL_PORTS"
USUAL_PORTS: Mapping[str, int] = MappingProxyType({"ollama": 11434, "lmstudio": 1234, "vllm": 8000, "llamacpp": 8080})


class LocalServer(Struct, frozen=True):
    """A model server that answers on this machine: what it is called, where, and what it is known for."""

    name: str
    port: int
    quirks: tuple[ServerName, ...] = ()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}/v1"


def local_ports(environ: Mapping[str, str]) -> Mapping[str, int]:
    """Where to look, by the name of what is expected there: `ollama=11434,vllm=8000`; set to nothing, nowhere."""
    text = environ.get(VARIABLE)
    if text is None:
        return USUAL_PORTS
    ports = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, port = entry.partition("=")
        if name not in USUAL_PORTS or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            known = ", ".join(USUAL_PORTS)
            problem = f'expected NAME=PORT, NAME being one of {known}; got "{entry}"'
            raise ConfigError([Problem("environment", None, VARIABLE, problem)])
        ports[name] = int(port)
    return ports
