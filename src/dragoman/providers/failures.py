"""What failures mean that more than one vendor reports, and how a refused request is sent again."""

import re
from collections.abc import Collection

from dragoman.hub.failure import Failure, Kind
from dragoman.passes.drop_reasoning import drop_reasoning
from dragoman.providers.provider import Adjustment

NO_CHAT_TOOLS = "no_chat_tools"
# Anthropic's messages about reasoning that it does not accept: it belongs to other turns, another model or account.
REASONING_REJECTED = re.compile(
    r"invalid `(signature|data)` in `(redacted_)?thinking`|\bthinking\b.*\b(bound to a different|cannot be modified)",
    re.I | re.S,
)
CHAT_TOOLS_REJECTED = re.compile(r"\btools?\b.*\bnot supported\b.*chat/completions.*\bv1/responses", re.I | re.S)
# Some vendors answer 403 to a bad token: that is a rejected credential, not a missing entitlement.
BAD_TOKEN_CODES = frozenset({"invalid_api_key", "token_expired", "token_invalidated", "invalid_token", "expired_token"})
BAD_TOKEN = re.compile(
    r"\b(?:token|api[ -]?key)\b.{0,60}\b(?:invalid|expired|revoked|malformed)\b"
    r"|\b(?:invalid|incorrect|expired|bad)\b.{0,60}\b(?:token|(?:api[ -]?)?key|credentials?)\b",
    re.IGNORECASE | re.DOTALL,
)


def adjust_chat_tools(failure: Failure, protocols: Collection[str]) -> Adjustment | None:
    """Switch to the Responses endpoint where a model rejects function tools on the Chat endpoint."""
    if failure.kind is not Kind.BAD_REQUEST or "responses" not in protocols:
        return None
    if not CHAT_TOOLS_REJECTED.search(failure.message):
        return None
    return Adjustment("other endpoint", quirk=NO_CHAT_TOOLS, of_model=True, reroutes=True)


def adjust_reasoning(failure: Failure) -> Adjustment | None:
    """Drop opaque reasoning that the upstream cannot read: it is bound to an account, and sometimes to its turns."""
    rejected = failure.kind is Kind.BAD_REQUEST and REASONING_REJECTED.search(failure.message)
    if not rejected and failure.code != "invalid_encrypted_content":
        return None
    return Adjustment("reasoning dropped", drop_reasoning)


def is_bad_token(failure: Failure) -> bool:
    """Return whether an HTTP 403 is about the credential itself."""
    return failure.code in BAD_TOKEN_CODES or BAD_TOKEN.search(failure.message) is not None
