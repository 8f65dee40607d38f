"""Anthropic: the Messages protocol, with the key in x-api-key."""

from collections.abc import Mapping

from dragoman.config.settings import ProviderConfig
from dragoman.net.headers import Header
from dragoman.providers.connection import api_key_reader, read_catalogue, read_dial, read_headers, read_secrets
from dragoman.providers.failures import adjust_reasoning
from dragoman.providers.provider import Auth, Endpoint, Provider, RequestRules, SendRequest

HOSTED_TOOLS = frozenset(("web_search", "web_fetch"))


def make_anthropic(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
    read_key = api_key_reader(config, environ)

    async def authorize(protocol: str) -> tuple[Header, ...]:
        key = read_key()
        return ((b"x-api-key", key),) if key else ()

    return Provider(
        name=config.name,
        kind=config.kind,
        issuer="anthropic",
        endpoint=Endpoint(
            url=config.endpoint or "",
            protocols=config.protocols,
            send=send,
            dial=read_dial(config, environ),
            headers=read_headers(config, environ),
            counts_tokens=True,
            first_token_timeout_s=config.first_token_timeout_s,
        ),
        auth=Auth(authorize, secrets=read_secrets(config, environ)),
        catalogue=read_catalogue(config),
        requests=RequestRules(
            adjust=adjust_reasoning, hosted_tools=HOSTED_TOOLS if config.hosted_tools else frozenset()
        ),
    )
