"""Choose the protocol of an upstream request, and whether the client's own bytes may pass."""

from msgspec import Struct

from dragoman.proxy.call import Call
from dragoman.proxy.runtime import TargetSettings
from dragoman.translate.hub.ports import Protocol


class ProtocolChoice(Struct, frozen=True):
    protocol: Protocol
    unchanged: bool = False


def choose_protocol(call: Call, speaks: tuple[str, ...], settings: TargetSettings) -> ProtocolChoice:
    """Prefer the client's own protocol if the upstream has it and accepts the body, else the first that accepts it."""
    client, body, refusing = call.protocol.name, call.body, settings.profile.no_tools_in
    if refusing and b'"tools"' in body:  # some models take function tools in other protocols only
        speaks = tuple(name for name in speaks if name not in refusing) or speaks
    if client not in speaks:
        return ProtocolChoice(settings.protocols[speaks[0]])
    # An envelope of ours must be opened for its issuer, and taken out for anyone else.
    has_envelope = call.client.envelope_start in body
    return ProtocolChoice(settings.protocols[client], not has_envelope)
