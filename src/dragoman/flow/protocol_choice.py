"""Choose the protocol in which an upstream is asked, and whether the client's bytes may pass unchanged."""

from collections.abc import Mapping

from msgspec import Struct

from dragoman.hub.opaque import ENVELOPE_PREFIX
from dragoman.hub.ports import Protocol
from dragoman.hub.profile import Profile

ENVELOPE = b'"' + ENVELOPE_PREFIX.encode()  # an envelope is always the whole of a JSON string


class ProtocolChoice(Struct, frozen=True):
    protocol: Protocol
    unchanged: bool = False


def choose_protocol(
    client: str, speaks: tuple[str, ...], protocols: Mapping[str, Protocol], profile: Profile, body: bytes
) -> ProtocolChoice:
    """Prefer the client's own protocol where the upstream speaks it and takes the body, else the first that does."""
    own = protocols[client] if client in speaks else None
    if own is not None and _accepts(own, profile, body):
        # An envelope of ours must be opened for its issuer and taken out for anyone else.
        return ProtocolChoice(own, unchanged=ENVELOPE not in body)
    accepting = [protocols[name] for name in speaks if _accepts(protocols[name], profile, body)]
    if accepting:
        return ProtocolChoice(accepting[0])
    return ProtocolChoice(protocols[speaks[0]]) if own is None else ProtocolChoice(own, unchanged=ENVELOPE not in body)


def _accepts(protocol: Protocol, profile: Profile, body: bytes) -> bool:
    assert protocol.upstream is not None
    return protocol.upstream.accepts(profile, body)
