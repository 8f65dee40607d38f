"""Every wire language; a new one is one folder and one line here."""

from dragoman.hub.ports import Protocol
from dragoman.protocols import chat, kiro, messages, native, responses

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (chat.PROTOCOL, responses.PROTOCOL, messages.PROTOCOL, kiro.PROTOCOL, native.PROTOCOL)
}
