"""Name the conversation that a request belongs to: by what its client sends, else by how it begins."""

from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec import Struct

from dragoman.flow.call import Call
from dragoman.framing.jsonread import JSON_ERRORS
from dragoman.hub.failure import RequestError
from dragoman.hub.request import Request, Role, Text
from dragoman.net.headers import Headers
from dragoman.passes.adapt_turns import INSTRUCTION_ROLES

SESSION_HEADERS = (
    b"x-claude-code-session-id",
    b"session-id",
    b"session_id",
    b"thread-id",
    b"conversation_id",
    b"x-session-id",
    b"x-session-affinity",
)
LONGEST_SESSION_NAME = 256
SESSION_MARK = "session_"  # how Claude Code writes it into the user's id

FIRST_CHARACTERS = 128  # of the first user message: what some clients send after them changes with every turn


class _SessionFields(Struct):
    previous_response_id: object = None
    conversation: object = None
    prompt_cache_key: object = None
    metadata: object = None


class _UserId(Struct):
    session_id: str


_decoder = msgspec.json.Decoder(_SessionFields)


def find_session(call: Call, known: Callable[[str], bool]) -> str | None:
    """Return a name for the conversation; None if there is none. `known`: whether a name has been used before."""
    body = _read_session_fields(call.body)
    earlier = response_name(body.previous_response_id)
    if earlier is not None and known(earlier):
        return earlier
    user_id = body.metadata.get("user_id") if isinstance(body.metadata, dict) else None
    name = _find_name(call.headers, body.prompt_cache_key, body.conversation, user_id)
    if name is not None or earlier is not None:
        return name or earlier
    try:
        return _digest_beginning(call.request())
    except RequestError:  # a body that only its own protocol can read
        return None


def name_session(headers: Headers, request: Request) -> str:
    """Return a name for the conversation of a request that was parsed, with all that it refers to.

    Such names may be shared by several conversations: of subagents, or of one day.
    """
    name = _find_name(headers, request.cache_key, request.raw.get("conversation"), request.user)
    return _digest_beginning(request) if name is None else shorten_name(name)


def _find_name(headers: Headers, cache_key: object, conversation: object, user_id: object) -> str | None:
    for header in SESSION_HEADERS:
        value = headers.get(header)
        if value:
            return value.decode("latin-1")
    for name in (cache_key, _id_in(conversation), _in_user_id(user_id)):
        if isinstance(name, str) and name:
            return name
    return None


def tenant_session(tenant: str, name: str | None) -> str | None:
    """Return the name under which a pool knows a conversation: two client keys never share one."""
    return None if name is None else f"{tenant}\0{shorten_name(name)}"


def shorten_name(name: str) -> str:
    """Return the name, or its digest if it is long: thousands of names are remembered."""
    if len(name) <= LONGEST_SESSION_NAME:
        return name
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def response_name(id: object) -> str | None:
    """Return the name of a reply that its upstream stores: only that credential can continue from it."""
    return f"response {id}" if isinstance(id, str) and id else None


def _read_session_fields(body: bytes) -> _SessionFields:
    try:
        return _decoder.decode(body)
    except JSON_ERRORS:
        return _SessionFields()


def _id_in(conversation: object) -> object:
    return conversation.get("id") if isinstance(conversation, dict) else conversation


def _in_user_id(user_id: object) -> str | None:
    """Return a session in a user id; not the user id itself, which would put all conversations on one credential."""
    if not isinstance(user_id, str):
        return None
    try:
        return msgspec.json.decode(user_id, type=_UserId).session_id
    except JSON_ERRORS:
        return user_id.rpartition(SESSION_MARK)[2] if SESSION_MARK in user_id else None


def _digest_beginning(request: Request) -> str:
    """Return a digest of the instructions and of how the first user message begins: both stay from turn to turn."""
    digest = blake2b(digest_size=16)
    for turn in request.turns:
        texts = [part.text for part in turn.parts if isinstance(part, Text)]
        if turn.role is Role.USER:
            digest.update(b"user\0" + texts[0][:FIRST_CHARACTERS].encode(errors="surrogatepass") if texts else b"")
            break
        if turn.role in INSTRUCTION_ROLES:
            for text in texts:
                digest.update(text.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()
