"""Name the conversation of a call for a pool of credentials."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from dragoman.proxy.call import Call
from dragoman.translate.caching.session_names import digest_beginning, find_name, shorten_name
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.hub.failure import RequestError


class _SessionFields(Struct):
    previous_response_id: object = None
    conversation: object = None
    prompt_cache_key: object = None
    metadata: object = None


_decoder = msgspec.json.Decoder(_SessionFields)


def find_session(call: Call, known: Callable[[str], bool]) -> str | None:
    """Return a name for the conversation; None if there is none. `known`: whether a name has been used before."""
    body = _read_session_fields(call.body)
    earlier = None if _is_rebuilt_here(call) else response_name(body.previous_response_id)
    if earlier is not None and known(earlier):
        return earlier
    user_id = body.metadata.get("user_id") if isinstance(body.metadata, dict) else None
    name = find_name(call.headers.get, body.prompt_cache_key, body.conversation, user_id)
    if name is not None or earlier is not None:
        return name or earlier
    try:
        return digest_beginning(call.request())
    except RequestError:  # a body that only its own protocol can read
        return None


def _is_rebuilt_here(call: Call) -> bool:
    """Whether the gateway keeps the earlier response: any credential can continue it, and it has a new id each turn."""
    return call.state is not None and call.state.is_rebuilt and not call.state.pinned


def tenant_session(tenant: str, name: str | None) -> str | None:
    """Return the name under which a pool knows a conversation: two client keys never share one."""
    return None if name is None else f"{tenant}\0{shorten_name(name)}"


def response_name(id: object) -> str | None:
    """Return the name of a reply that its upstream stores: only that credential can continue from it."""
    return f"response {id}" if isinstance(id, str) and id else None


def _read_session_fields(body: bytes) -> _SessionFields:
    try:
        return _decoder.decode(body)
    except JSON_ERRORS:
        return _SessionFields()
