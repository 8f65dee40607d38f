"""Quirks, and names of servers that are known for some, come in from a stanza; all the quirks they mean go out."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dragoman.config.settings import Quirk

# By ServerName: what was seen or reported of a server, or its vendor says. docs/quirks.md tells what each quirk does.
SERVERS: Mapping[str, frozenset[Quirk]] = MappingProxyType(
    {
        "llama-cpp-python": frozenset(
            {
                "max_tokens",
                "no_developer",
                "no_custom_tools",
                "json_object_schema",
                "no_required",
                "text_content",
                "needs_parameters",
                "cut_then_done",
            }
        ),
        "ollama": frozenset({"max_tokens", "no_custom_tools"}),
        "deepseek": frozenset({"replay_reasoning", "no_custom_tools"}),
    }
)


def expand_quirks(names: Iterable[str]) -> frozenset[str]:
    """Every quirk that is named, and every quirk of a server that is named."""
    return frozenset().union(*(SERVERS.get(name, {name}) for name in names))
