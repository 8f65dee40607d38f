"""Echo as a provider: no address, no key, and its models are known without asking."""

from collections.abc import Mapping

from dragoman.config.settings import ProviderConfig
from dragoman.net.headers import Header
from dragoman.providers.echo.models import LISTED, MODELS
from dragoman.providers.echo.upstream import Echo
from dragoman.providers.provider import ModelInfo, Provider, SendRequest, configured


def make(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
    async def authorize(protocol: str) -> tuple[Header, ...]:
        return ()

    return configured(
        config,
        Echo().send,
        environ,
        protocols=("native",),
        endpoint="http://echo.invalid",
        authorize=authorize,
        models=tuple(ModelInfo(name, text, owned_by="dragoman") for name, text in MODELS if name in LISTED),
        lists_models=False,
    )
