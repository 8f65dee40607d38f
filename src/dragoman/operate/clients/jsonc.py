"""JSON with comments and trailing commas, as editors write it: read it, and change single members in place."""

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

SPACE = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
SCALAR = re.compile(r"[^\s,\]}/]+")
MAX_DEPTH = 100
INDENT = "  "


class NotJson(Exception):
    """The text is not JSON; the message says where."""


class Node(Struct):
    """A value and where its text begins and ends; `members` are those of an object, `keys` is where each begins."""

    start: int
    end: int
    value: object
    members: "dict[str, Node]"
    keys: dict[str, int] = {}


def read_jsonc(text: str) -> Node:
    """Read a text; raise NotJson if it is not valid."""
    reader = _Reader(text)
    node = reader.read_value(reader.skip_space(text.startswith("\ufeff")), 0)
    if reader.skip_space(node.end) != len(text):
        raise reader.problem(node.end, "there is text after the value")
    return node


def set_members(text: str, settings: Mapping[str, object]) -> str:
    """Set members of an object, and of objects in it, and leave the rest of the text as it is. Raises NotJson."""
    if not text.strip():
        return msgspec.json.format(msgspec.json.encode(settings), indent=len(INDENT)).decode() + "\n"
    for path, value in _list_changes(settings, read_jsonc(text)):
        text = _set_member(text, path, value)
    return text


def remove_members(text: str, paths: Sequence[tuple[str, ...]]) -> str:
    """Remove members of an object, and of objects in it, if they are there. Raises NotJson."""
    for path in paths:
        node: Node | None = read_jsonc(text)
        for name in path[:-1]:
            node = None if node is None else node.members.get(name)
        if node is not None and path[-1] in node.members:
            text = _remove_member(text, node, path[-1])
    return text


def _remove_member(text: str, node: Node, name: str) -> str:
    """Remove a member with the comma after it; of the last one, the comma before it."""
    start, end = node.keys[name], node.members[name].end
    space = SPACE.match(text, end)
    comma = end if space is None else space.end()
    if text[comma : comma + 1] == ",":
        text = text[:comma] + text[comma + 1 :]
    else:
        before = max((member.end for member in node.members.values() if member.end < start), default=None)
        if before is not None:
            found = SPACE.match(text, before)
            at = before if found is None else found.end()
            text, start, end = text[:at] + text[at + 1 :], start - 1, end - 1
    line = text.rfind("\n", 0, start) + 1
    rest = text.find("\n", end)
    if rest != -1 and not text[line:start].strip() and not text[end:rest].strip():
        start, end = line, rest + 1  # nothing else stands in these lines
    return text[:start] + text[end:]


def _list_changes(settings: Mapping[str, object], node: Node, path: tuple[str, ...] = ()) -> "list[_Change]":
    changes: list[_Change] = []
    for name, value in settings.items():
        present = node.members.get(name)
        if isinstance(value, Mapping) and present is not None and isinstance(present.value, dict):
            changes += _list_changes(value, present, (*path, name))
        elif present is None or present.value != value:
            changes.append(((*path, name), value))
    return changes


_Change = tuple[tuple[str, ...], object]


def _set_member(text: str, path: tuple[str, ...], value: object) -> str:
    node = read_jsonc(text)
    for name in path[:-1]:
        node = node.members[name]
    present = node.members.get(path[-1])
    if present is not None:
        return text[: present.start] + _format(value, _indent_at(text, present.start)) + text[present.end :]
    outer = _indent_at(text, node.start)
    own = next((_indent_at(text, member.start) for member in node.members.values()), outer + INDENT)
    line = f"\n{own}{msgspec.json.encode(path[-1]).decode()}: {_format(value, own)}"
    if not node.members:
        return f"{text[: node.start + 1]}{line}\n{outer}{text[node.end - 1 :]}"
    last = max(node.members.values(), key=lambda member: member.end)
    rest = text[last.end : node.end - 1]
    # Whether a comma follows a member, before or after comments.
    found = SPACE.match(rest)
    comma = "" if (found is not None and rest[found.end() :].startswith(",")) else ","
    kept = rest.rstrip()
    closing = rest[len(kept) :] if "\n" in rest[len(kept) :] else f"\n{outer}"
    return f"{text[: last.end]}{comma}{kept}{line}{closing}{text[node.end - 1 :]}"


def _format(value: object, indent: str) -> str:
    lines = msgspec.json.format(msgspec.json.encode(value), indent=len(INDENT)).decode().split("\n")
    return f"\n{indent}".join(lines)


def _indent_at(text: str, position: int) -> str:
    """Return the white space at the start of the line of a position."""
    line = text[text.rfind("\n", 0, position) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text

    def problem(self, at: int, what: str) -> NotJson:
        return NotJson(f"line {self._text.count(chr(10), 0, at) + 1}: {what}")

    def skip_space(self, at: int) -> int:
        found = SPACE.match(self._text, at)
        return at if found is None else found.end()

    def read_value(self, at: int, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.problem(at, "it is nested too deeply")
        match self._text[at : at + 1]:
            case "{":
                return self._read_object(at, depth)
            case "[":
                return self._read_list(at, depth)
            case '"':
                return self._read_text(STRING, at)
            case _:
                return self._read_text(SCALAR, at)

    def _read_text(self, pattern: re.Pattern[str], at: int) -> Node:
        found = pattern.match(self._text, at)
        try:
            value = msgspec.json.decode("" if found is None else found[0])
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise self.problem(at, "a value is missing or malformed") from error
        assert found is not None
        return Node(at, found.end(), value, {})

    def _read_object(self, start: int, depth: int) -> Node:
        values: dict[str, object] = {}
        members: dict[str, Node] = {}
        keys: dict[str, int] = {}
        at = self.skip_space(start + 1)
        while self._text[at : at + 1] != "}":
            key = self._read_text(STRING, at)
            at = self.skip_space(key.end)
            if self._text[at : at + 1] != ":":
                raise self.problem(at, "a colon is missing")
            member = self.read_value(self.skip_space(at + 1), depth + 1)
            values[str(key.value)], members[str(key.value)] = member.value, member
            keys[str(key.value)] = key.start
            at = self._read_separator(member.end, "}")
        return Node(start, at + 1, values, members, keys)

    def _read_list(self, start: int, depth: int) -> Node:
        values: list[object] = []
        at = self.skip_space(start + 1)
        while self._text[at : at + 1] != "]":
            item = self.read_value(at, depth + 1)
            values.append(item.value)
            at = self._read_separator(item.end, "]")
        return Node(start, at + 1, values, {})

    def _read_separator(self, end: int, closing: str) -> int:
        """Return where the next entry begins, or the closing bracket stands."""
        at = self.skip_space(end)
        if self._text[at : at + 1] == ",":
            return self.skip_space(at + 1)
        if self._text[at : at + 1] != closing:
            raise self.problem(at, f'"," or "{closing}" is missing')
        return at
