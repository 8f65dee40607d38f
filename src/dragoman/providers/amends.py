"""A refusal comes in; what more than one kind of provider can change about it goes out."""

import re
from collections.abc import Collection

from dragoman.hub.failure import Failure, Kind
from dragoman.passes.drop_reasoning import drop_reasoning
from dragoman.providers.provider import Adjustment

NO_CHAT_TOOLS = "no_chat_tools"
# Anthropic's words for a thought that it does not take back: it is bound to other turns, a model or an account.
THOUGHT_REFUSED = re.compile(
    r"invalid `(signature|data)` in `(redacted_)?thinking`|\bthinking\b.*\b(bound to a different|cannot be modified)",
    re.I | re.S,
)
CHAT_TOOLS_REFUSED = re.compile(r"\btools?\b.*\bnot supported\b.*chat/completions.*\bv1/responses", re.I | re.S)


def refused_chat_tools(failure: Failure, protocols: Collection[str]) -> Adjustment | None:
    """Some models take function tools on their Responses endpoint only, and say so on the other."""
    if failure.kind is not Kind.BAD_REQUEST or "responses" not in protocols:
        return None
    if not CHAT_TOOLS_REFUSED.search(failure.message):
        return None
    return Adjustment("other endpoint", quirk=NO_CHAT_TOOLS, of_model=True, reroutes=True)


def unreadable_reasoning(failure: Failure) -> Adjustment | None:
    """Opaque reasoning is bound to the account, and some to the turns, it was given to; without it, all can go on."""
    refused = failure.kind is Kind.BAD_REQUEST and THOUGHT_REFUSED.search(failure.message)
    if not refused and failure.code != "invalid_encrypted_content":
        return None
    return Adjustment("reasoning dropped", drop_reasoning)
