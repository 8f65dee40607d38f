"""Check the settings of server tools that the gateway runs, and note what it cannot do as their vendor would."""

from collections.abc import Collection

from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Hosted, Request

# Settings that change nothing for a tool which the gateway runs, with the values of which this is so; None: all.
_WITHOUT_EFFECT: dict[str, tuple[object, ...] | None] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "response_inclusion": None,  # of results that code has read
    "strict": None,
    "use_cache": None,  # nothing is cached
}


def check_domains(request: Request) -> None:
    """Raise BadRequest if a tool both allows and blocks domains, which its vendor refuses too."""
    for tool in request.tools:
        if isinstance(tool, Hosted) and tool.allowed_domains and tool.blocked_domains:
            raise BadRequest(
                tool.blocked_pointer,
                f"{tool.kind} takes either allowed_domains or blocked_domains, not both. Remove one of them.",
            )


def note_settings(tool: Hosted, located_by: Collection[str], ledger: Ledger) -> None:
    """Note the settings that are not followed exactly; `located_by` are the fields of a location that are used."""
    for key, value in tool.ext.items():
        harmless = _WITHOUT_EFFECT.get(key, ())
        if value is not None and harmless is not None and value not in harmless:
            ledger.note_approximated(f"{tool.at}/{key}", f"the gateway's own {tool.kind} has no such setting")
    if tool.filters_results:
        ledger.note_approximated(f"{tool.at}/type", "the model reads results whole and does not filter them by code")
    if tool.max_content_tokens is not None:
        ledger.note_approximated(f"{tool.at}/max_content_tokens", "a token is taken for four characters")
    if isinstance(tool.location, dict) and not tool.location.keys() - {"type"} <= set(located_by):
        used = " and ".join(located_by) or "nothing"
        ledger.note_approximated(f"{tool.at}/user_location", f"of a location, the search service uses {used}")
