"""Headers and query of an upstream request: which of the client's are forwarded, and what its protocol adds."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode

from dragoman.net.headers import CREDENTIAL_FIELDS, JSON, Header, Headers, LastingFields, names_in_connection
from dragoman.translate.hub.ports import Upstream
from dragoman.translate.hub.request import Request
from dragoman.translate.protocols import ACCOUNT_CHOICES, KEY_PLACES
from dragoman.upstreams.provider import Provider

IDENTITY = (b"accept-encoding", b"identity")
JSON_IDENTITY: tuple[Header, ...] = (JSON, IDENTITY)

# Headers for the gateway, not for the upstream: credentials, the connection, the client's address.
KEPT_BACK = frozenset(
    (
        b"authorization proxy-authorization cookie host content-length content-encoding "
        b"content-type accept-encoding connection keep-alive proxy-connection te trailer transfer-encoding upgrade "
        b"expect origin referer forwarded via user-agent x-request-id"
    ).split()
) | frozenset((*KEY_PLACES.headers, *CREDENTIAL_FIELDS))
NOTHING: frozenset[bytes] = frozenset()
KEPT_BACK_PREFIXES = (b"x-dragoman-", b"x-forwarded-", b"x-real-", b"cf-", b"sec-")


def protocol_headers(request: Request, upstream: Upstream) -> tuple[Header, ...]:
    """Return the headers that the upstream's protocol has for a request that was built."""
    accept = (b"accept", b"text/event-stream" if request.stream else b"application/json")
    return (accept, *upstream.required_headers, *upstream.request_headers(request))


def client_headers(headers: Headers, is_owner: bool, provider: Provider, upstream: Upstream) -> tuple[Header, ...]:
    """Return the client's headers for an upstream of the same protocol, without duplicates: vendors join them."""
    # Only the owner may choose which organisation of the upstream account pays. Another client's choice would be
    # refused, and the refusal would count against the gateway's credential.
    withheld = NOTHING if is_owner else ACCOUNT_CHOICES
    if headers.lasting is None:
        forwards, required = provider.requests.forwards_header, upstream.required_headers
        return _select_fields(headers.fields, withheld, forwards, required)
    return _select_lasting(headers.lasting, withheld, provider.requests.forwards_header, upstream.required_headers)


@lru_cache(maxsize=256)
def _select_lasting(
    sent: LastingFields,
    withheld: frozenset[bytes],
    forwards: Callable[[bytes], bool],
    required: tuple[Header, ...],
) -> tuple[Header, ...]:
    """Do the same for fields that a client sends again and again."""
    return _select_fields(sent.fields, withheld, forwards, required)


def _select_fields(
    sent: Sequence[Header],
    withheld: frozenset[bytes],
    forwards: Callable[[bytes], bool],
    required: tuple[Header, ...],
) -> tuple[Header, ...]:
    """Return which of these headers of a client are forwarded."""
    of_connection = names_in_connection(Headers(list(sent)))
    kept = [
        field
        for field in sent
        if field[0] not in KEPT_BACK
        and field[0] not in withheld
        and field[0] not in of_connection
        and not field[0].startswith(KEPT_BACK_PREFIXES)
        and forwards(field[0])
    ]
    names = dict(kept)
    return (*dict.fromkeys(kept), *[field for field in required if field[0] not in names])


def client_query(query: str) -> str:
    """Return the client's query without its key."""
    if not query:
        return ""
    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode([(name, value) for name, value in pairs if name not in KEY_PLACES.parameters])


def merge_queries(own: str, client: str) -> str:
    """Return both; a parameter of the protocol's own replaces the client's."""
    if not own or not client:
        return own or client
    return urlencode(dict(parse_qsl(client, keep_blank_values=True)) | dict(parse_qsl(own)))
