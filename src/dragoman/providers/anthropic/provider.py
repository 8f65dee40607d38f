"""Anthropic: Messages, with the key in x-api-key."""

from collections.abc import Mapping

from dragoman.config.settings import ProviderConfig
from dragoman.net.headers import Header
from dragoman.providers.amends import unreadable_reasoning
from dragoman.providers.provider import Provider, SendRequest, api_key, configured


def make(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
    read_key = api_key(config, environ)

    async def authorize(protocol: str) -> tuple[Header, ...]:
        key = read_key()
        return ((b"x-api-key", key),) if key else ()

    return configured(
        config,
        send,
        environ,
        issuer="anthropic",
        authorize=authorize,
        counts_tokens=True,
        amend=unreadable_reasoning,
    )
