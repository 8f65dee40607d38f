"""The registry of protocols. A new one is a folder and a line here."""

from dragoman.hub.ports import KeyPlaces, Protocol
from dragoman.protocols import chat, gemini, kiro, messages, native, responses

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        chat.PROTOCOL,
        responses.PROTOCOL,
        messages.PROTOCOL,
        gemini.PROTOCOL,
        kiro.PROTOCOL,
        native.PROTOCOL,
    )
}

# A client of any protocol may send its key in any of these places.
KEY_PLACES = KeyPlaces(
    headers=tuple(name for protocol in PROTOCOLS.values() for name in protocol.keys.headers),
    parameters=tuple(name for protocol in PROTOCOLS.values() for name in protocol.keys.parameters),
)

OPERATIONS = {name: protocol.operation for name, protocol in PROTOCOLS.items()}  # gen_ai.operation.name of each
