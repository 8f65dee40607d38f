"""What a request must have for the words of an error to be about it: the structure that was sent, never its text."""

import re
from collections.abc import Callable

from dragoman.translate.framing.jsonedit import Path
from dragoman.upstreams.rejections import changes
from dragoman.upstreams.rejections.changes import MakeEdits
from dragoman.upstreams.rejections.complaint import HOLE
from dragoman.upstreams.rejections.sent import Sent, name_every, parse_path

Guard = Callable[[Sent, re.Match[str]], Path | None]  # the field, if the request has what the words are about
_IN_SCHEMA = re.compile("parameters|schema", re.IGNORECASE)
_MEANING = frozenset(("type", "properties", "items", "required", "enum", "description"))  # keywords that always stay


def has_field(*names: str) -> Guard:
    """Return a guard that wants one of these top-level fields."""

    def guard(sent: Sent, found: re.Match[str]) -> Path | None:
        return next(((name,) for name in names if sent.tree.get(name) is not None), None)

    return guard


def if_edited(edit: MakeEdits) -> Guard:
    """Return a guard that wants something that the change would change, and finds the first of it."""

    def guard(sent: Sent, found: re.Match[str]) -> Path | None:
        edits = edit(sent, ())
        return name_every(parse_path(edits.losses[0][0])) if edits else None

    return guard


def find_named(sent: Sent, found: re.Match[str]) -> Path | None:
    """Find the field that the error names."""
    return sent.find_field(_join_path(found))


def find_keyword(sent: Sent, found: re.Match[str]) -> Path | None:
    """Find the keyword of JSON Schema that the error names by its place in the schema of a function."""
    return _take_keyword(sent.find_keyword(_join_path(found)))


def find_keyword_anywhere(sent: Sent, found: re.Match[str]) -> Path | None:
    """Find the keyword that the error names, in any schema: Google's path through properties is not the request's."""
    keyword, at = found["path"], found["at"]
    is_in_schema = at == HOLE or _IN_SCHEMA.search(at) is not None
    is_used = is_in_schema and any(keyword in schema for _, schema in sent.find_schemas())
    return _take_keyword(keyword if is_used else None)


def _take_keyword(keyword: str | None) -> Path | None:
    return None if keyword is None or keyword in _MEANING else (keyword,)


def _join_path(found: re.Match[str]) -> str:
    inside = found.groupdict().get("inside")
    return f"{inside}.{found['path']}" if inside else found["path"]


def has_cache_point(sent: Sent, found: re.Match[str]) -> Path | None:
    state = sent.tree.get("conversationState")
    if not isinstance(state, dict):
        return None
    history = state.get("history")
    entries = [*(history if isinstance(history, list) else ()), state.get("currentMessage")]
    messages = [message for entry in entries if isinstance(entry, dict) for message in entry.values()]
    return () if any(isinstance(message, dict) and "cachePoint" in message for message in messages) else None


def refuses_mark(place: str) -> Guard:
    """Return a guard that wants the words to name the mark of a block of this kind: a tool, `system`, or a type."""

    def guard(sent: Sent, found: re.Match[str]) -> Path | None:
        named = find_named(sent, found)
        is_mark = named is not None and named[-1] == "cache_control"
        return named if is_mark and changes.find_mark_place(sent, found[0]) == place else None

    return guard


def has_custom_tool(sent: Sent, found: re.Match[str]) -> Path | None:
    tools = sent.tree.get("tools")
    kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return ("tools",) if "custom" in kinds else None


def has_calls(sent: Sent, found: re.Match[str]) -> Path | None:
    return ("messages",) if any(turn.get("tool_calls") or turn.get("tool_call_id") for turn in sent.turns) else None
