"""Every upstream; a new kind is one folder and one line here, a merely compatible one only a stanza."""

from collections.abc import Callable, Mapping

from dragoman.config.settings import ProviderConfig
from dragoman.protocols import PROTOCOLS
from dragoman.providers.anthropic.provider import make as anthropic
from dragoman.providers.codex.provider import make as codex
from dragoman.providers.compatible.provider import make as compatible
from dragoman.providers.copilot.provider import make as copilot
from dragoman.providers.echo.provider import make as echo
from dragoman.providers.kiro.provider import make as kiro
from dragoman.providers.openai.provider import make as openai
from dragoman.providers.provider import Provider, SendRequest

Make = Callable[[ProviderConfig, SendRequest, Mapping[str, str]], Provider]

KINDS: dict[str, Make] = {
    "anthropic": anthropic,
    "openai": openai,
    "openai-compatible": compatible,
    "codex": codex,
    "copilot": copilot,
    "kiro": kiro,
    "echo": echo,
}


def lacking(stanza: ProviderConfig) -> str | None:
    """What a stanza demands that is not in this version yet; None where its provider can be made."""
    if stanza.kind not in KINDS:
        return f"kind {stanza.kind}"
    if stanza.protocols and not any(name in PROTOCOLS and PROTOCOLS[name].upstream for name in stanza.protocols):
        return f"protocol {', '.join(stanza.protocols)}"
    return None
