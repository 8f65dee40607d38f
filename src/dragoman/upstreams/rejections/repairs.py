"""Make requests as their upstreams accept them: apply what was learnt, and find what a refusal teaches.

A request that passes unchanged to the protocol's own vendor stays as it is: its client adapts by itself to what the
vendor rejects.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Profile
from dragoman.translate.hub.request import Request
from dragoman.upstreams.provider import Provider
from dragoman.upstreams.rejections.changes import apply, drop_field
from dragoman.upstreams.rejections.complaint import Complaint, make_holes
from dragoman.upstreams.rejections.rules import (
    BY_ID,
    NO_CHAT_TOOLS,
    POSITIONS,
    Found,
    find_rules,
    list_quirks,
    make_edits,
)
from dragoman.upstreams.rejections.sent import Sent

# By protocol: the kinds of providers that are its own vendor. The host does not matter.
OWN_VENDORS = {
    "messages": frozenset(("anthropic",)),
    "chat": frozenset(("openai",)),
    "responses": frozenset(("openai", "codex")),
    "gemini": frozenset(("gemini",)),
}
LEADING_SYSTEM = "leading_system"
# The templates of these models want system messages at the beginning, with servers that use a model's own template.
STRICT_MODELS = re.compile(r"(?:.*/)?qwen-?3.*", re.IGNORECASE)
TEMPLATE_SERVERS = frozenset(("ollama", "vllm", "llama.cpp"))
ANSWERED = 200
# Not a refused credential, a limit, a long context or a policy. CORRUPT: an error that comes as a reply.
_TEACHING = (Kind.BAD_REQUEST, Kind.UPSTREAM, Kind.CORRUPT)


def is_own_vendor(provider: Provider, protocol: str) -> bool:
    return provider.kind in OWN_VENDORS.get(protocol, ())


def list_configured(provider: Provider, model: str) -> tuple[Found, ...]:
    """Return the rules that hold for translated requests because of the configured quirks and server."""
    is_template = not TEMPLATE_SERVERS.isdisjoint(provider.catalogue.servers)
    is_strict = is_template and STRICT_MODELS.fullmatch(model) is not None
    return (Found(LEADING_SYSTEM),) if is_strict or LEADING_SYSTEM in provider.requests.quirks else ()


def adapt_profile(profile: Profile, quirks: frozenset[str]) -> Profile:
    """Return a model's profile with the quirks that its upstream has shown."""
    return replace(profile, no_tools_in=("chat",)) if NO_CHAT_TOOLS in quirks else profile


def apply_rules(sent: Sent, rules: Sequence[Found], ledger: Ledger, request: Request | None = None) -> Sent:
    """Return the request with what these rules change, in the order of the table; the ledger gets what that costs.

    `request` is what it was translated from: the ledger has the places where its client wrote what is changed.
    """
    ordered = sorted(rules, key=lambda found: POSITIONS.get(found.rule, len(POSITIONS)))
    for rule, group in groupby(ordered, key=lambda found: found.rule):
        for together in _group_rules(rule, group):
            edits = make_edits(together, sent)
            if edits:
                sent = apply(sent, edits, f"this upstream rejects it (rule {rule})", ledger, request)
    return sent


def complain(failure: Failure) -> Complaint:
    """Return the complaint of a failure that came in place of a reply, with a good status."""
    return Complaint(ANSWERED, make_holes(failure.message), failure.code or "")


def _group_rules(id: str, found: Iterable[Found]) -> Iterator[Sequence[Found]]:
    """Yield what is learnt of one rule as it is applied: the fields that are left out together, else one by one.

    Each change is a pass over the request.
    """
    rule = BY_ID.get(id)
    if rule is not None and rule.edit is drop_field:
        yield [*found]
    else:
        yield from ([each] for each in found)


def find_repairs(
    failure: Failure, complaint: Complaint, sent: Sent, provider: Provider, known: Sequence[Found], *, passed: bool
) -> tuple[Found, ...]:
    """Return the rules that a refusal of this request is an instance of, as far as they would change it.

    `known` are those that it was made with, `passed`: its client's bytes passed.
    """
    if failure.kind not in _TEACHING:
        return ()
    has_responses = "responses" in provider.endpoint.protocols
    found = [found for found in find_rules(complaint, sent) if found not in known]
    if passed and is_own_vendor(provider, sent.protocol):  # but we chose the endpoint
        return tuple(one for one in found if one.rule == NO_CHAT_TOOLS and has_responses)
    return tuple(one for one in found if _has_effect(one, sent, passed=passed, has_responses=has_responses))


def _has_effect(found: Found, sent: Sent, *, passed: bool, has_responses: bool) -> bool:
    if found.rule == NO_CHAT_TOOLS and has_responses:
        return True
    return bool(make_edits([found], sent)) or bool(not passed and list_quirks([found]) - {NO_CHAT_TOOLS})
