"""The registry of protocols. A new one is a folder and a line here."""

from collections.abc import Callable, Sequence
from urllib.parse import unquote_to_bytes

from dragoman.translate.hub.ports import Header, KeyPlaces, Protocol
from dragoman.translate.protocols import chat, gemini, kiro, messages, responses
from dragoman.translate.protocols import echo as native
from dragoman.translate.protocols.relayed_paths import RELAYED_PATHS

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

# A server may send or read the headers of another vendor than that of its protocol.
ACCOUNT_CHOICES = frozenset(name for one in PROTOCOLS.values() for name in one.vendor_headers.account_choice)
ACCOUNT_NAMES = frozenset(name for one in PROTOCOLS.values() for name in one.vendor_headers.account_name)
REPLY_CHOICES = tuple(sorted({name for one in PROTOCOLS.values() for name in one.vendor_headers.reply_choice}))

OPERATIONS = {name: protocol.operation for name, protocol in PROTOCOLS.items()}  # gen_ai.operation.name of each
OPERATIONS |= {name: path.operation for name, path in RELAYED_PATHS.items()}


def find_client_keys(fields: Sequence[Header], query: str) -> tuple[bytes, ...]:
    """Return the keys in a request, in any place that one of the protocols uses.

    Some clients send two, one of them for another server: either may be the right one.
    """
    return find_presented_keys(dict(reversed(fields)).get, query)


def find_presented_keys(header: Callable[[bytes], bytes | None], query: str) -> tuple[bytes, ...]:
    """Return the same, from a function that returns the first value of a header field."""
    found: list[bytes] = []
    authorization = header(b"authorization")
    if authorization is not None:
        scheme, _, credential = authorization.strip().partition(b" ")
        if scheme.lower() == b"bearer":
            found.append(credential.strip())
    for name in KEY_PLACES.headers:
        value = header(name)
        if value is not None:
            found.append(value.strip())
    for pair in query.split("&") if query else ():
        name_in_query, _, text = pair.partition("=")
        if name_in_query in KEY_PLACES.parameters:
            found.append(unquote_to_bytes(text))
            break
    return tuple(filter(None, found))
