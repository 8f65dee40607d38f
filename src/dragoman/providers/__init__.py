"""All kinds of providers. A new kind is a module and one line here; a compatible server needs only a section."""

from collections.abc import Callable, Mapping

from dragoman.config.settings import ProviderConfig
from dragoman.providers.anthropic import make_anthropic
from dragoman.providers.codex.provider import make_codex
from dragoman.providers.compatible.provider import make_compatible
from dragoman.providers.copilot.provider import make_copilot
from dragoman.providers.echo.provider import make_echo
from dragoman.providers.gemini.provider import make_gemini
from dragoman.providers.kiro.provider import make_kiro
from dragoman.providers.openai import make_openai
from dragoman.providers.provider import Provider, SendRequest

MakeProvider = Callable[[ProviderConfig, SendRequest, Mapping[str, str]], Provider]

KINDS: dict[str, MakeProvider] = {
    "anthropic": make_anthropic,
    "openai": make_openai,
    "openai-compatible": make_compatible,
    "codex": make_codex,
    "copilot": make_copilot,
    "gemini": make_gemini,
    "kiro": make_kiro,
    "echo": make_echo,
}
