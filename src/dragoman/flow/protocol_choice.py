"""Choose the protocol in which an upstream is asked, and whether the client's bytes may pass unchanged."""

from msgspec import Struct

from dragoman.hub.opaque import TAG
from dragoman.hub.profile import Profile

ENVELOPE = b'"' + TAG.encode()  # an envelope is always the whole of a JSON string


class ProtocolChoice(Struct, frozen=True):
    protocol: str
    unchanged: bool = False


def choose_protocol(client: str, speaks: tuple[str, ...], profile: Profile, body: bytes) -> ProtocolChoice:
    """Prefer the client's own protocol where the upstream speaks it, else the first that it speaks."""
    if client == "chat" and "responses" in speaks and not profile.chat_tools and b'"tools"' in body:
        return ProtocolChoice("responses")  # this model's Chat endpoint refuses function tools
    if client not in speaks:
        return ProtocolChoice(speaks[0])
    # An envelope of ours must be opened for its issuer and taken out for anyone else.
    return ProtocolChoice(client, unchanged=ENVELOPE not in body)
