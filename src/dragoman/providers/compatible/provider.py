"""A compatible server: whichever protocols its stanza names, and a key only if it has one."""

from collections.abc import Mapping

from dragoman.config.settings import ProviderConfig
from dragoman.net.headers import Header
from dragoman.providers.provider import Provider, Send, api_key, configured


def make(config: ProviderConfig, send: Send, environ: Mapping[str, str]) -> Provider:
    read_key = api_key(config, environ)

    async def authorize(protocol: str) -> tuple[Header, ...]:
        key = read_key()
        if not key:
            return ()
        bearer = (b"authorization", b"Bearer " + key)
        # Servers that imitate Messages differ in which of the two headers they read.
        return (bearer, (b"x-api-key", key)) if protocol == "messages" else (bearer,)

    return configured(config, send, environ, authorize=authorize, counts_tokens="messages" in config.protocols)
