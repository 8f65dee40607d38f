"""OpenAI: Responses and Chat, with the key as a bearer token."""

from collections.abc import Mapping

from dragoman.config.settings import ProviderConfig
from dragoman.net.headers import Header
from dragoman.providers.provider import Provider, Send, api_key, configured


def make(config: ProviderConfig, send: Send, environ: Mapping[str, str]) -> Provider:
    read_key = api_key(config, environ)

    async def authorize(protocol: str) -> tuple[Header, ...]:
        key = read_key()
        return ((b"authorization", b"Bearer " + key),) if key else ()

    return configured(config, send, environ, issuer="openai", authorize=authorize)
