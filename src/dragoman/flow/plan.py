"""Whether bytes pass through or are translated, and into which protocol: a pure decision."""

from msgspec import Struct

from dragoman.hub.opaque import TAG
from dragoman.hub.profile import Profile

ENVELOPE = b'"' + TAG.encode()  # an envelope is always the whole of a JSON string


class Passthrough(Struct, frozen=True):
    protocol: str


class Translate(Struct, frozen=True):
    protocol: str


Plan = Passthrough | Translate


def plan(client: str, speaks: tuple[str, ...], profile: Profile, body: bytes, altered: bool = False) -> Plan:
    """The client's own protocol is preferred where the upstream speaks it, else the first of its list.

    `altered`: the provider's replies go through stages, so they cannot pass as they are.
    """
    if client == "chat" and "responses" in speaks and not profile.chat_tools and b'"tools"' in body:
        return Translate("responses")  # this model's Chat endpoint refuses function tools
    if client not in speaks:
        return Translate(speaks[0])
    # An envelope of ours must be opened for its issuer and taken out for anyone else.
    return Translate(client) if altered or ENVELOPE in body else Passthrough(client)
