"""Where credentials of this and other tools, and local model servers, may be found on this machine."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from dragoman.config.problems import ConfigError, Problem
from dragoman.config.settings import ServerName

MAX_BYTES = 1024 * 1024
CLI_DATABASE = "data.sqlite3"

DATA_VARIABLE = "DRAGOMAN_DATA"


def home_directory(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HOME") or environ.get("USERPROFILE")
    return Path(home) if home else None


def data_directory(environ: Mapping[str, str], home: Path) -> Path:
    """Return the directory for files that the gateway creates: $DRAGOMAN_DATA, else one below $XDG_DATA_HOME."""
    named = environ.get(DATA_VARIABLE)
    return Path(named).absolute() if named else _shared_data_directory(environ, home) / "dragoman"


def kiro_credential_paths(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Return the paths of a Kiro account's credentials, in order: `dragoman login`, the IDE, kiro-cli, Amazon Q."""
    roots = [_shared_data_directory(environ, home), home / "Library" / "Application Support"]
    if environ.get("APPDATA"):
        roots.append(Path(environ["APPDATA"]))
    return (
        data_directory(environ, home) / "kiro.json",
        home / ".aws" / "sso" / "cache" / "kiro-auth-token.json",
        *(root / "kiro-cli" / CLI_DATABASE for root in roots),
        *(root / "amazon-q" / CLI_DATABASE for root in roots),
    )


def codex_credential_paths(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Return the paths of a ChatGPT account's credentials, in order: `dragoman login`, `codex login`."""
    codex = Path(environ.get("CODEX_HOME") or home / ".codex")
    return data_directory(environ, home) / "codex.json", codex / "auth.json"


def copilot_credential_paths(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Return the paths of a GitHub account's credentials, in order: `dragoman login`, new and old editor plugins."""
    settings = Path(environ.get("XDG_CONFIG_HOME") or environ.get("LOCALAPPDATA") or home / ".config")
    plugins = settings / "github-copilot"
    return data_directory(environ, home) / "copilot.json", plugins / "apps.json", plugins / "hosts.json"


def find_credentials(environ: Mapping[str, str], home: Path) -> dict[str, Path]:
    """Return the first file with a credential for each kind of provider. Codex's file may contain only an API key."""
    found = {
        "kiro": find_kiro_credentials(environ, home),
        "codex": next(
            (path for path in codex_credential_paths(environ, home) if _contains(path, b'"access_token"')), None
        ),
        "copilot": next(
            (path for path in copilot_credential_paths(environ, home) if _contains(path, b'"oauth_token"')), None
        ),
    }
    return {kind: path for kind, path in found.items() if path is not None}


def find_own_credentials(environ: Mapping[str, str], home: Path) -> frozenset[Path]:
    """Return the files that `dragoman login` and the console have stored, each of which makes a provider."""
    directory = data_directory(environ, home)
    return frozenset(path for kind in ("kiro", "codex", "copilot") if (path := directory / f"{kind}.json").is_file())


def find_kiro_credentials(environ: Mapping[str, str], home: Path) -> Path | None:
    """Return the first of Kiro's credential paths that is a file."""
    return next((path for path in kiro_credential_paths(environ, home) if path.is_file()), None)


def _contains(path: Path, text: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return text in file.read(MAX_BYTES)
    except OSError:
        return False


def _shared_data_directory(environ: Mapping[str, str], home: Path) -> Path:
    return Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")


HOST = "127.0.0.1"
VARIABLE = "DRAGOMAN_LOCAL_PORTS"
DEFAULT_PORTS: Mapping[str, int] = MappingProxyType({"ollama": 11434, "lmstudio": 1234, "vllm": 8000, "llamacpp": 8080})


class LocalServer(Struct, frozen=True):
    """A model server on this machine: its name, its port, its quirks, and the models that it lists."""

    name: str
    port: int
    quirks: tuple[ServerName, ...] = ()
    models: tuple[str, ...] = ()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}/v1"


def local_ports(environ: Mapping[str, str]) -> Mapping[str, int]:
    """Return the ports to probe, by the name of the expected server.

    DRAGOMAN_LOCAL_PORTS sets them: `ollama=11434,vllm=8000`; empty means none. Raises ConfigError.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return DEFAULT_PORTS
    ports = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, port = entry.partition("=")
        if name not in DEFAULT_PORTS or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            known = ", ".join(DEFAULT_PORTS)
            problem = f'expected NAME=PORT with NAME one of {known}, got "{entry}"'
            raise ConfigError([Problem("environment", None, VARIABLE, problem)])
        ports[name] = int(port)
    return ports
