"""All kinds of providers. A new kind is a module and one line here; a compatible server needs only a section."""

from collections.abc import Callable, Mapping
from importlib import import_module

from dragoman.config.settings import ProviderConfig
from dragoman.upstreams.provider import Provider, SendRequest

MakeProvider = Callable[[ProviderConfig, SendRequest, Mapping[str, str]], Provider]


def _import_when_used(module: str, name: str) -> MakeProvider:
    """Return a function that imports the one it calls: most users have one or two kinds, and each costs memory."""

    def make(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
        function: MakeProvider = vars(import_module(f"dragoman.upstreams.{module}"))[name]
        return function(config, send, environ)

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
