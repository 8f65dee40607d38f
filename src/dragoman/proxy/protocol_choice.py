"""Choose the protocol of an upstream request, and whether the client's own bytes may pass."""

from msgspec import Struct

from dragoman.proxy.call import Call
from dragoman.proxy.runtime import TargetSettings
from dragoman.translate.hub.ports import Protocol
from dragoman.translate.hub.profile import Profile


class ProtocolChoice(Struct, frozen=True):
    protocol: Protocol
    unchanged: bool = False


def choose_protocol(call: Call, speaks: tuple[str, ...], settings: TargetSettings) -> ProtocolChoice:
    """Prefer the client's own protocol if the upstream has it and accepts the body, else the first that accepts it."""
    client, body, profile, protocols = call.protocol.name, call.body, settings.profile, settings.protocols
    own = protocols[client] if client in speaks else None
    if own is not None and _accepts(own, profile, body):
        return ProtocolChoice(own, not _has_envelope(own, body))
    for name in speaks:
        if _accepts(protocols[name], profile, body):
            return ProtocolChoice(protocols[name])
    if own is None:
        return ProtocolChoice(protocols[speaks[0]])
    return ProtocolChoice(own, not _has_envelope(own, body))


def _has_envelope(protocol: Protocol, body: bytes) -> bool:
    """Whether a body has an envelope of ours, which must be opened for its issuer and taken out for anyone else."""
    return protocol.client is not None and body.find(protocol.client.envelope_start) >= 0


def _accepts(protocol: Protocol, profile: Profile, body: bytes) -> bool:
    assert protocol.upstream is not None
    return protocol.upstream.accepts(profile, body)
