"""A compatible server: whichever protocols its stanza names, and a key only if it has one."""

from collections.abc import Collection, Mapping
from functools import partial

from dragoman.config.settings import ProviderConfig
from dragoman.hub.events import Event
from dragoman.hub.failure import Failure, Kind
from dragoman.hub.request import Request
from dragoman.hub.stage import Stage
from dragoman.net.headers import Header
from dragoman.protocols import PROTOCOLS
from dragoman.providers.amends import refused_chat_tools, unreadable_reasoning
from dragoman.providers.compatible.quirks import quirks_of
from dragoman.providers.provider import Amend, Provider, SendRequest, api_key, configured

# What a server names when it refuses a field that OpenAI knows, and how requests are built for it from then on.
OBJECTIONS = {
    "max_completion_tokens": "max_tokens",
    "developer": "no_developer",
    "custom": "no_custom_tools",
    **dict.fromkeys(("prompt_cache", "verbosity", "safety_identifier", "metadata", "service_tier"), "plain"),
}


def make(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
    read_key = api_key(config, environ)

    async def authorize(protocol: str) -> tuple[Header, ...]:
        key = read_key()
        if not key:
            return ()
        bearer = (b"authorization", b"Bearer " + key)
        # Servers that imitate Messages differ in which of the two headers they read.
        return (bearer, (b"x-api-key", key)) if protocol == "messages" else (bearer,)

    quirks = quirks_of(config.quirks)
    spoken = tuple(name for name in config.protocols if name in PROTOCOLS)  # a stanza may know of more than we do
    return configured(
        config,
        send,
        environ,
        authorize=authorize,
        protocols=spoken,
        counts_tokens="messages" in spoken,
        quirks=quirks,
        stages=told_anew if "cut_then_done" in quirks else None,
        amend=partial(amend, protocols=spoken),
    )


def told_anew(request: Request) -> list[Stage[Event, Event]]:
    """No stage, but bytes do not pass: as they come, a stream that was cut looks whole to a client of Chat as well."""
    return []


def amend(failure: Failure, protocols: Collection[str]) -> Amend | None:
    """The field that a server did not know is left out from then on; the ledger says so."""
    other_way = refused_chat_tools(failure, protocols) or unreadable_reasoning(failure)
    if other_way is not None or failure.kind is not Kind.BAD_REQUEST:
        return other_way
    complaint = failure.message + (failure.at or "")
    for word, quirk in OBJECTIONS.items():
        if word in complaint:
            return Amend(quirk, quirk=quirk)
    return None
