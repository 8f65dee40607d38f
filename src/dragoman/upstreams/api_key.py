"""Providers that need only an API key: OpenAI, Anthropic, and servers that are compatible with them."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from dragoman.config.settings import ProviderConfig, Quirk
from dragoman.net.headers import Header
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.ports import Stage
from dragoman.translate.hub.request import Request
from dragoman.upstreams import Surroundings
from dragoman.upstreams.provider import (
    Auth,
    Provider,
    ReplyRules,
    RequestRules,
    UnsignedRequest,
)
from dragoman.upstreams.rejections.reasoning import adjust_reasoning
from dragoman.upstreams.section import api_key_reader, read_catalogue, read_endpoint, read_secrets


def make_openai(config: ProviderConfig, around: Surroundings) -> Provider:
    read_key = api_key_reader(config, around.environ)

    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        key = read_key()
        return ((b"authorization", b"Bearer " + key),) if key else ()

    return Provider(
        name=config.name,
        kind=config.kind,
        issuer="openai",
        endpoint=replace(
            read_endpoint(config, around.send, around.environ),
            relays=frozenset(config.paths),
            counts_tokens=True,
            stores_replies=config.keeps_responses is not False,
        ),
        auth=Auth(authorize, secrets=read_secrets(config, around.environ)),
        catalogue=read_catalogue(config),
        requests=RequestRules(
            adjust=adjust_reasoning, hosted_tools=frozenset(("web_search",)) if config.hosted_tools else frozenset()
        ),
    )


HOSTED_TOOLS = frozenset(("web_search", "web_fetch"))


def make_anthropic(config: ProviderConfig, around: Surroundings) -> Provider:
    read_key = api_key_reader(config, around.environ)

    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        key = read_key()
        return ((b"x-api-key", key),) if key else ()

    return Provider(
        name=config.name,
        kind=config.kind,
        issuer="anthropic",
        endpoint=replace(read_endpoint(config, around.send, around.environ), counts_tokens=True),
        auth=Auth(authorize, secrets=read_secrets(config, around.environ)),
        catalogue=read_catalogue(config),
        requests=RequestRules(
            adjust=adjust_reasoning, hosted_tools=HOSTED_TOOLS if config.hosted_tools else frozenset()
        ),
    )


# By ServerName: what was observed, reported, or documented by the vendor. docs/quirks.md explains each quirk.
SERVERS: Mapping[str, frozenset[Quirk]] = MappingProxyType(
    {
        "llama-cpp-python": frozenset(
            {
                "max_tokens",
                "no_developer",
                "no_custom_tools",
                "json_object_schema",
                "no_required",
                "text_content",
                "needs_parameters",
                "cut_then_done",
            }
        ),
        "llama.cpp": frozenset(),
        "ollama": frozenset({"max_tokens", "no_custom_tools"}),
        "vllm": frozenset(),
        "deepseek": frozenset({"replay_reasoning", "no_custom_tools"}),
        "mistral": frozenset(
            {"max_tokens", "no_developer", "no_custom_tools", "plain", "no_stream_options", "short_call_ids"}
        ),
    }
)


def make_compatible(config: ProviderConfig, around: Surroundings) -> Provider:
    read_key = api_key_reader(config, around.environ)
    key_header = None if config.key_header is None else config.key_header.lower().encode()

    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        key = read_key()
        if not key:
            return ()
        if key_header is not None:
            return ((key_header, b"Bearer " + key if key_header.endswith(b"authorization") else key),)
        if request.protocol == "gemini":
            return ((b"x-goog-api-key", key),)
        bearer = (b"authorization", b"Bearer " + key)
        # Servers that imitate Messages differ in which of the two headers they read.
        return (bearer, (b"x-api-key", key)) if request.protocol == "messages" else (bearer,)

    quirks = expand_quirks(config.quirks)
    return Provider(
        name=config.name,
        kind=config.kind,
        issuer=config.name,
        endpoint=replace(
            read_endpoint(config, around.send, around.environ),
            urls={str(protocol): url for protocol, url in config.endpoints.items()},
            relays=frozenset(config.paths),
            counts_tokens="messages" in config.protocols,
            stores_replies=config.keeps_responses is not False,
        ),
        auth=Auth(authorize, secrets=read_secrets(config, around.environ)),
        catalogue=replace(read_catalogue(config), servers=frozenset(config.quirks) & frozenset(SERVERS)),
        requests=RequestRules(quirks=quirks, adjust=adjust_reasoning),
        replies=ReplyRules(stages=no_stages if "cut_then_done" in quirks else None),
    )


def no_stages(request: Request) -> list[Stage[Event, Event]]:
    """Return no stage, but have the reply decoded: passed through unchanged, a truncated stream looks complete."""
    return []


def expand_quirks(names: Iterable[str]) -> frozenset[str]:
    """Return all quirks that are named, and those of all servers that are named."""
    return frozenset().union(*(SERVERS.get(name, {name}) for name in names))
