"""OpenAI: Responses and Chat, with the key as a bearer token."""

from collections.abc import Mapping

from dragoman.config.settings import ProviderConfig
from dragoman.hub.failure import Failure
from dragoman.net.headers import Header
from dragoman.providers.amends import refused_chat_tools, unreadable_reasoning
from dragoman.providers.provider import Amend, Provider, SendRequest, api_key, configured


def make(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
    read_key = api_key(config, environ)

    async def authorize(protocol: str) -> tuple[Header, ...]:
        key = read_key()
        return ((b"authorization", b"Bearer " + key),) if key else ()

    def amend(failure: Failure) -> Amend | None:
        """Another way to the same model, or the conversation without what it cannot read any more."""
        return refused_chat_tools(failure, config.protocols) or unreadable_reasoning(failure)

    return configured(config, send, environ, issuer="openai", authorize=authorize, counts_tokens=True, amend=amend)
