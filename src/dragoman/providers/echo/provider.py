"""Echo: a provider inside the gateway, without an address or a key and with a fixed list of models."""

from collections.abc import Mapping

from dragoman.config.settings import ProviderConfig
from dragoman.net.headers import Header
from dragoman.providers.connection import read_dial, read_headers, read_secrets
from dragoman.providers.echo.models import LISTED, MODELS
from dragoman.providers.echo.upstream import Echo
from dragoman.providers.provider import Auth, Catalogue, Endpoint, ModelInfo, Provider, SendRequest


def make(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
    async def authorize(protocol: str) -> tuple[Header, ...]:
        return ()

    models = tuple(ModelInfo(name, text, owned_by="dragoman") for name, text in MODELS if name in LISTED)
    return Provider(
        name=config.name,
        kind=config.kind,
        issuer=config.name,
        endpoint=Endpoint(
            url="http://echo.invalid",
            protocols=("native",),
            send=Echo().send,
            dial=read_dial(config, environ),
            headers=read_headers(config, environ),
            first_token_timeout_s=config.first_token_timeout_s,
        ),
        auth=Auth(authorize, secrets=read_secrets(config, environ)),
        catalogue=Catalogue(models=models, has_list=False),
    )
