"""All kinds of providers. A new kind is a module and one line here; a compatible server needs only a section."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.config.settings import ProviderConfig
from dragoman.upstreams.credentials.credential import Table
from dragoman.upstreams.credentials.stored import StoredCredentials
from dragoman.upstreams.provider import Provider, SendRequest

if TYPE_CHECKING:
    from dragoman.upstreams.credentials.shared_cooldowns import CooldownBoard


class Surroundings(Struct, frozen=True):
    """What the providers of a gateway use."""

    send: SendRequest
    environ: Mapping[str, str]
    stored: StoredCredentials | None = None
    board: "CooldownBoard | None" = None  # the cooldowns shared with other gateways; None: those of this process


# Makes the provider of a section with one credential, which the store may have.
MakeProvider = Callable[[ProviderConfig, Surroundings], Provider]


def _import_when_used(module: str, name: str) -> MakeProvider:
    """Return a function that imports the one it calls: most users have one or two kinds, and each costs memory."""

    def make(config: ProviderConfig, around: Surroundings) -> Provider:
        function: MakeProvider = vars(import_module(f"dragoman.upstreams.{module}"))[name]
        return function(config, around)

    return make


KINDS: dict[str, MakeProvider] = {
    "anthropic": _import_when_used("api_key", "make_anthropic"),
    "openai": _import_when_used("api_key", "make_openai"),
    "openai-compatible": _import_when_used("api_key", "make_compatible"),
    "codex": _import_when_used("codex.provider", "make_codex"),
    "copilot": _import_when_used("copilot.provider", "make_copilot"),
    "gemini": _import_when_used("gemini.provider", "make_gemini"),
    "kiro": _import_when_used("kiro.provider", "make_kiro"),
    "echo": _import_when_used("echo.provider", "make_echo"),
}

ReadAccountFile = Callable[[Path], Table | None]  # None: the file is another vendor's; raises CredentialError


def _import_reader_when_used(module: str) -> ReadAccountFile:
    def read(file: Path) -> Table | None:
        function: ReadAccountFile = import_module(f"dragoman.upstreams.{module}").read_account_file
        return function(file)

    return read


# What the store keeps of a credential file, by the kind of provider that it is for.
ACCOUNT_FILES: dict[str, ReadAccountFile] = {
    "kiro": _import_reader_when_used("kiro.credential_sources"),
    "codex": _import_reader_when_used("codex.credential"),
    "copilot": _import_reader_when_used("copilot.credential"),
    "gemini": _import_reader_when_used("gemini.credential"),
}
