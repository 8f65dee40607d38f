"""What is recorded of the settings that a request is answered with."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from dragoman.config.settings import Config
from dragoman.proxy.capture.format import CapturedSettings
from dragoman.proxy.capture.masking import describe_provider
from dragoman.translate.framing.known_secrets import list_secrets
from dragoman.translate.hub.request import Json
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.routing import Route

ListModels = Callable[[], dict[str, tuple[str, ...]]]  # provider -> names


class RecordedSettings(Struct):
    """The configuration, as far as the request uses it, and what was found with it."""

    config: Config | None = None
    list_models: ListModels | None = None  # called if no model of that name exists
    quirks: dict[str, tuple[str, ...]] = {}
    known_models: dict[str, tuple[str, ...]] = {}
    tools: dict[str, Json] = {}
    tool_backends: dict[str, dict[str, str]] = {}
    providers: dict[str, Json] = {}
    hidden_headers: set[bytes] = set()  # names of headers that the configuration sets
    routes: tuple[Route, ...] = ()
    owner: bool = True  # the request came with the key of the environment
    default_thinking: str | int | None = None  # of the client's key

    def add_provider(self, provider: Provider) -> set[bytes]:
        """Record a provider, and return its secrets."""
        if provider.name in self.providers or self.config is None:
            return set()
        section = self.config.providers.get(provider.name)
        if section is not None:
            self.hidden_headers |= {name.lower().encode("latin-1") for name in section.headers}
        hidden = self.hidden_headers
        self.providers[provider.name] = describe_provider(provider, section, hidden)
        set_values = {value for name, value in provider.endpoint.headers if name in hidden}
        return set_values.union(list_secrets((), provider.auth.secrets))

    def make_record(self) -> CapturedSettings:
        config = self.config
        if config is None:
            return CapturedSettings()
        return CapturedSettings(
            server=msgspec.to_builtins(config.server),
            retry=msgspec.to_builtins(config.retry),
            effort=msgspec.to_builtins(config.effort),
            providers=self.providers,
            quirks={name: self.quirks[name] for name in self.providers if name in self.quirks},
            known_models=self.known_models,
            routes=tuple(map(str, self.routes)),
            tools=self.tools,
            tool_backends={name: self.tool_backends[name] for name in self.providers if name in self.tool_backends},
            owner=self.owner,
            default_thinking=self.default_thinking,
        )
