"""Why the bytes of a call pass unchanged, or are translated: the reason stands in headers, captures and the console."""

from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct


class Why(Struct, frozen=True):
    """A choice and its reason, a short phrase."""

    passes: bool
    reason: str

    def __str__(self) -> str:
        return f"{'passed' if self.passes else 'translated'}; {self.reason}"


@lru_cache(maxsize=64)
def same_protocol(protocol: str) -> Why:
    """Return why a request passes whose upstream speaks the client's protocol."""
    return Why(True, f"the upstream speaks {protocol}")


@lru_cache(maxsize=64)
def other_protocols(speaks: tuple[str, ...]) -> Why:
    """Return why a request is translated whose upstream speaks other protocols, as of most."""
    return Why(False, f"the provider speaks {join_names(speaks)} only")


RELAYED = Why(True, "this path is not translated")


def join_names(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


class Obstacles(Struct, frozen=True):
    """What keeps a request from passing unchanged; where there are several, the first is the reason."""

    client: str  # the client's protocol
    chosen: str  # protocol of the request that is sent
    continues_stored: bool = False  # the request refers to what the gateway stores
    is_stored: bool = False  # the gateway stores the reply
    is_converted: bool = False  # the body is not in the protocol of the reply
    has_envelope: bool = False  # the history has reasoning that the gateway has wrapped
    tools: tuple[str, ...] = ()  # that the gateway runs
    is_changed: bool = False  # after a refusal
    may_continue: bool = False  # another target continues the reply if it breaks off


def explain_translation(found: Obstacles) -> Why:
    """Return why a request is translated although its upstream speaks the client's protocol."""
    return Why(False, _find_reason(found))


def _find_reason(found: Obstacles) -> str:
    if found.continues_stored:
        return "the response continues a stored one"
    if found.is_stored:
        return "the gateway stores the response"
    if found.chosen != found.client:
        return f"the model takes this request as {found.chosen} only"
    if found.tools:
        return f"{join_names(found.tools)} {'runs' if len(found.tools) == 1 else 'run'} in the gateway"
    if found.has_envelope:
        return "the history has reasoning of another provider"
    if found.is_converted:
        return "the request has another form than its reply"
    if found.is_changed:
        return "the upstream refused the request as it was"
    if found.may_continue:
        return "another target may continue the stream"
    return "the provider's replies are adapted"
