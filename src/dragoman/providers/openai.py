"""OpenAI: the Responses and Chat protocols, with the key as a bearer token."""

from collections.abc import Mapping

from dragoman.config.settings import ProviderConfig
from dragoman.hub.failure import Failure
from dragoman.net.headers import Header
from dragoman.providers.connection import api_key_reader, read_catalogue, read_dial, read_headers, read_secrets
from dragoman.providers.failures import adjust_chat_tools, adjust_reasoning
from dragoman.providers.provider import Adjustment, Auth, Endpoint, Provider, RequestRules, SendRequest


def make_openai(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
    read_key = api_key_reader(config, environ)

    async def authorize(protocol: str) -> tuple[Header, ...]:
        key = read_key()
        return ((b"authorization", b"Bearer " + key),) if key else ()

    def adjust(failure: Failure) -> Adjustment | None:
        """Use the model's other endpoint, or drop reasoning that it can no longer read."""
        return adjust_chat_tools(failure, config.protocols) or adjust_reasoning(failure)

    return Provider(
        name=config.name,
        kind=config.kind,
        issuer="openai",
        endpoint=Endpoint(
            url=config.endpoint or "",
            protocols=config.protocols,
            send=send,
            dial=read_dial(config, environ),
            headers=read_headers(config, environ),
            relays=frozenset(config.paths),
            counts_tokens=True,
            keeps_replies=config.keeps_responses is not False,
            first_token_timeout_s=config.first_token_timeout_s,
        ),
        auth=Auth(authorize, secrets=read_secrets(config, environ)),
        catalogue=read_catalogue(config),
        requests=RequestRules(
            adjust=adjust, hosted_tools=frozenset(("web_search",)) if config.hosted_tools else frozenset()
        ),
    )
