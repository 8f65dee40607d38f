"""Name the conversation that a request belongs to: by what its client sends, else by how it begins."""

from functools import lru_cache
from hashlib import blake2b
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import Struct

from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.hub.ports import GetHeader
from dragoman.translate.hub.request import Request, Role, Text
from dragoman.translate.passes.adapt_turns import INSTRUCTION_ROLES

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

_USER = Role.USER  # looked up once: on Python 3.11, each look-up of a member is slow
FIRST_CHARACTERS = 128  # of the first user message: what some clients send after them changes with every turn


class _UserId(Struct):
    session_id: str


def name_session(header: GetHeader, request: Request) -> str:
    """Return a name for the conversation of a request that was parsed, with all that it refers to.

    Such names may be shared by several conversations: of subagents, or of one day.
    """
    return read_name(header, request) or digest_beginning(request)


def read_name(header: GetHeader, request: Request) -> str | None:
    """Return the name that the client of a parsed request gives to its conversation."""
    name = find_name(header, request.cache_key, request.raw.get("conversation"), request.attribution.user)
    return None if name is None else shorten_name(name)


def find_name(header: GetHeader, cache_key: object, conversation: object, user_id: object) -> str | None:
    """Return the name that a client gives to its conversation, in headers or in these fields of the body."""
    for name in SESSION_HEADERS:
        value = header(name)
        if value:
            return value.decode("latin-1")
    if isinstance(cache_key, str) and cache_key:
        return cache_key
    id = _id_in(conversation) if conversation else None
    if isinstance(id, str) and id:
        return id
    return (_in_user_id(user_id) or None) if user_id else None


@lru_cache(maxsize=256)
def derive_key(tenant: str, session: str) -> str:
    """Return the id of a session for upstreams: the same everywhere, and never that of another client key."""
    return str(uuid5(NAMESPACE_URL, f"{tenant}\0{session}"))


def shorten_name(name: str) -> str:
    """Return the name, or its digest if it is long, since thousands are remembered, or cannot be written as UTF-8."""
    if len(name) <= LONGEST_SESSION_NAME and name.isprintable():
        return name
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def digest_beginning(request: Request) -> str:
    """Return a digest of the instructions and of how the first user message begins: both stay from turn to turn."""
    beginning = ""
    for turn in request.turns:
        role = turn.role
        if role is _USER:
            for part in turn.parts:
                if type(part) is Text:
                    beginning += "user\0" + part.text[:FIRST_CHARACTERS]
                    break
            break
        if role in INSTRUCTION_ROLES:
            for part in turn.parts:
                if type(part) is Text:
                    beginning += part.text + "\0"
    return blake2b(beginning.encode(errors="surrogatepass"), digest_size=16).hexdigest()


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
