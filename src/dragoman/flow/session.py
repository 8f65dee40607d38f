"""Identify the conversation of a call: by the client's own id, else by how it began."""

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec import Struct

from dragoman.flow.call import Call
from dragoman.hub.failure import RequestError
from dragoman.hub.request import Request, Role, Text

HEADERS = (
    b"x-claude-code-session-id",
    b"session-id",
    b"session_id",
    b"thread-id",
    b"conversation_id",
    b"x-session-id",
    b"x-session-affinity",
)
LONGEST_NAME = 256
SESSION_MARK = "session_"  # how Claude Code writes it into the user's id


class _Body(Struct):
    previous_response_id: object = None
    conversation: object = None
    prompt_cache_key: object = None
    metadata: object = None


class _UserId(Struct):
    session_id: str


_body = msgspec.json.Decoder(_Body)


def find_session(call: Call, known: Callable[[str], bool]) -> str | None:
    """Return a name for the conversation; None if there is none. `known`: whether a name has been used before."""
    body = _read(call.body)
    earlier = response_name(body.previous_response_id)
    if earlier is not None and known(earlier):
        return earlier
    for header in HEADERS:
        value = call.headers.get(header)
        if value:
            return value.decode("latin-1")
    for name in (body.prompt_cache_key, _id_in(body.conversation), _in_user_id(body.metadata), earlier):
        if isinstance(name, str) and name:
            return name
    try:
        return _beginning(call.request())
    except RequestError:  # a body that only its own protocol can read
        return None


def tenant_session(tenant: str, name: str | None) -> str | None:
    """Return the name under which a pool knows a conversation: two client keys never share one."""
    if name is not None and len(name) > LONGEST_NAME:  # a pool remembers thousands of names
        name = blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return None if name is None else f"{tenant}\0{name}"


def response_name(id: object) -> str | None:
    """Return the name of a reply that its upstream stores: only that credential can continue from it."""
    return f"response {id}" if isinstance(id, str) and id else None


def _read(body: bytes) -> _Body:
    try:
        return _body.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Body()


def _id_in(conversation: object) -> object:
    return conversation.get("id") if isinstance(conversation, dict) else conversation


def _in_user_id(metadata: object) -> str | None:
    """Return a session in a user id; not the user id itself, which would put all conversations on one credential."""
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user_id, str):
        return None
    try:
        return msgspec.json.decode(user_id, type=_UserId).session_id
    except (msgspec.MsgspecError, RecursionError):
        return user_id.rpartition(SESSION_MARK)[2] if SESSION_MARK in user_id else None


def _beginning(request: Request) -> str:
    """Return everything up to the first user message: it stays the same from turn to turn."""
    digest = blake2b(digest_size=16)
    for turn in request.turns:
        for part in turn.parts:
            if isinstance(part, Text):
                digest.update(part.text.encode(errors="surrogatepass") + b"\0")
        if turn.role is Role.USER:
            break
    return digest.hexdigest()
