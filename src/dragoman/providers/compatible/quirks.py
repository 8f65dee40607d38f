"""Quirks of known servers."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dragoman.config.settings import Quirk

# By ServerName: what was observed, reported, or documented by the vendor. docs/quirks.md explains each quirk.
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
        "mistral": frozenset(
            {"max_tokens", "no_developer", "no_custom_tools", "plain", "no_stream_options", "short_call_ids"}
        ),
    }
)


def expand_quirks(names: Iterable[str]) -> frozenset[str]:
    """Return all quirks that are named, and those of all servers that are named."""
    return frozenset().union(*(SERVERS.get(name, {name}) for name in names))
