"""Cut, replace and add values of a JSON text by their paths, and leave every other byte as it is.

A key is found in any spelling, escaped or not, and all its duplicates are: parsers differ in which one they use. The
text is scanned once without recursion, in linear time. It must be JSON: for another one the result is arbitrary, or
ValueError is raised.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec


class _Every(Enum):
    EVERY = "*"


EVERY: Final = _Every.EVERY  # a step that stands for every element of a list
Step = str | int | _Every
Path = tuple[Step, ...]


class Put(NamedTuple):
    """Set a member of an object: replaced where it is, else added at the end."""

    value: bytes


Change = bytes | Put | None  # a value that replaces another; None cuts it
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],]', re.DOTALL)
_BLANK = re.compile(rb"[ \t\r\n]*+")
_COLON = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+")
_BLANKS = b" \t\r\n"
_string = msgspec.json.Decoder(str)


class Span(NamedTuple):
    start: int
    end: int


class _Node:
    """What is to be done at one place, and below it."""

    __slots__ = ("change", "every", "has_change", "steps")

    def __init__(self) -> None:
        self.steps: dict[str | int, _Node] = {}
        self.every: _Node | None = None
        self.has_change = False
        self.change: Change = None

    def grow(self, step: Step) -> "_Node":
        if isinstance(step, _Every):
            self.every = self.every or _Node()
            return self.every
        return self.steps.setdefault(step, _Node())


class _Frame:
    """An open object or list on a path."""

    __slots__ = ("commas", "is_object", "members", "nodes")

    def __init__(self, nodes: Sequence[_Node], is_object: bool) -> None:
        self.nodes = nodes
        self.is_object = is_object
        self.commas: list[int] = []
        self.members: list[tuple[str | int, Span, Span]] = []  # key or number, the member, its value


def edit(text: bytes, edits: Iterable[tuple[Path, Change]]) -> bytes:
    """Return the text with these changes; one whose path leads nowhere changes nothing.

    Of two changes at one place the later one counts; what is below a value that is cut or replaced does not.
    """
    root = _Node()
    for path, change in edits:
        node = root
        for step in path:
            node = node.grow(step)
        node.has_change, node.change = True, change
    return splice(text, _Scan(text, root).run())


def splice(text: bytes, parts: Iterable[tuple[Span, bytes]]) -> bytes:
    """Return the text with these spans replaced; a span within another one is ignored."""
    view = memoryview(text)
    pieces: list[bytes | memoryview] = []
    kept = 0
    for (start, end), new in sorted(parts, key=lambda part: (part[0].start, -part[0].end)):
        if start < kept:
            continue
        pieces += (view[kept:start], new)
        kept = end
    return b"".join((*pieces, view[kept:])) if pieces else text


def list_elements(text: bytes, path: Path) -> list[bytes]:
    """Return the elements of the list at this path as they stand; the last list, if its key has duplicates."""
    root = node = _Node()
    for step in path:
        node = node.grow(step)
    node.every = _Node()
    return _Scan(text, root).list_elements(node)


class _Scan:
    """One pass over the text. Values off the paths are skipped without a look at their members."""

    def __init__(self, text: bytes, root: _Node) -> None:
        self._text = text
        self._root = root
        self._stack: list[_Frame] = []
        self._parts: list[tuple[Span, bytes]] = []
        self._listed: tuple[_Node, list[bytes]] | None = None

    def list_elements(self, node: _Node) -> list[bytes]:
        self._listed = (node, [])
        self.run()
        return self._listed[1]

    def run(self) -> list[tuple[Span, bytes]]:
        text = self._text
        start = _skip_blank(text, 0)
        at = self._open([self._root], start)
        while self._stack:
            frame = self._stack[-1]
            at = self._read_member(frame, at)
        if _skip_blank(text, at) != len(text):
            raise ValueError(f"more than one JSON value: byte {at}")
        return self._parts

    def _open(self, nodes: Sequence[_Node], start: int) -> int:
        """Begin the value at `start`; return where to read on."""
        text = self._text
        below = [node for node in nodes if node.steps or node.every is not None]
        bracket = text[start : start + 1]
        if below and bracket in (b"{", b"["):
            self._stack.append(_Frame(below, bracket == b"{"))
            return start + 1
        return _skip_value(text, start)

    def _read_member(self, frame: _Frame, at: int) -> int:
        """Read the next member of a frame, as far as its value is not a frame of its own; or the frame's end."""
        text = self._text
        at = _skip_blank(text, at)
        mark = text[at : at + 1]
        if mark == b",":
            frame.commas.append(at)
            at = _skip_blank(text, at + 1)
        elif mark == (b"}" if frame.is_object else b"]"):
            return self._close(frame, at)
        elif frame.members:
            raise ValueError(f"no separator at byte {at}")
        step: str | int = len(frame.members)
        member = at
        if frame.is_object:
            step, at = _read_key(text, at)
        nodes = [found for node in frame.nodes for found in _follow(node, step)]
        start = at
        depth = len(self._stack)
        at = self._open(nodes, start)
        frame.members.append((step, Span(member, at), Span(start, at)))  # of a frame, the end is set when it closes
        if len(self._stack) == depth:
            self._note(nodes, start, at)
        return at

    def _close(self, frame: _Frame, at: int) -> int:
        self._stack.pop()
        end = at + 1
        self._cut_members(frame, at)
        if self._stack:
            holder = self._stack[-1]
            step, member, value = holder.members[-1]
            holder.members[-1] = (step, Span(member.start, end), Span(value.start, end))
            self._note([found for node in holder.nodes for found in _follow(node, step)], value.start, end)
        return end

    def _note(self, nodes: Iterable[_Node], start: int, end: int) -> None:
        for node in nodes:
            if node.has_change and node.change is not None:
                new = node.change.value if isinstance(node.change, Put) else node.change
                self._parts.append((Span(start, end), new))

    def _cut_members(self, frame: _Frame, closing: int) -> None:
        """Cut members with their separators, and add those that are missing."""
        kept = 0
        for number, (step, member, _) in enumerate(frame.members):
            nodes = [found for node in frame.nodes for found in _follow(node, step)]
            if not any(node.has_change and node.change is None for node in nodes):
                kept += 1
                continue
            if kept:
                self._parts.append((Span(frame.commas[number - 1], member.end), b""))
            elif number < len(frame.commas):
                self._parts.append((Span(member.start, _skip_blank(self._text, frame.commas[number] + 1)), b""))
            else:
                self._parts.append((member, b""))
        if frame.is_object:
            self._add_missing(frame, kept, closing)
        listed = self._listed
        if listed is not None and listed[0] in frame.nodes:
            elements = [self._text[value.start : value.end] for _, _, value in frame.members]
            self._listed = (listed[0], [] if frame.is_object else elements)

    def _add_missing(self, frame: _Frame, kept: int, closing: int) -> None:
        present = {step for step, _, _ in frame.members}
        for node in frame.nodes:
            for step, below in node.steps.items():
                if isinstance(below.change, Put) and isinstance(step, str) and step not in present:
                    new = msgspec.json.encode(step) + b":" + below.change.value
                    # After the last member, and after what is cut there: a span that starts later is spliced later.
                    at = frame.members[-1][1].end if frame.members else closing
                    self._parts.append((Span(at, at), (b"," if kept else b"") + new))
                    kept += 1


def _follow(node: _Node, step: str | int) -> Iterator[_Node]:
    found = node.steps.get(step)
    if found is not None:
        yield found
    if node.every is not None and isinstance(step, int):
        yield node.every


def _read_key(text: bytes, at: int) -> tuple[str, int]:
    """Return a member's name without escapes, and where its value starts."""
    token = _TOKEN.match(text, at)
    colon = None if token is None or token[0][:1] != b'"' else _COLON.match(text, token.end())
    if token is None or colon is None:
        raise ValueError(f"no key at byte {at}")
    key = token[0]
    name = _string.decode(key) if b"\\" in key else key[1:-1].decode(errors="replace")
    return name, colon.end()


def _skip_blank(text: bytes, at: int) -> int:
    blank = _BLANK.match(text, at)
    assert blank is not None  # it may be empty
    return blank.end()


def _skip_value(text: bytes, start: int) -> int:
    """Return the end of the value at `start`."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        mark = token[0]
        if depth == 0 and token.start() > start:  # a number or a word ends where the next token starts
            end = len(text[start : token.start()].rstrip(_BLANKS)) + start
            if end == start or mark not in (b",", b"}", b"]"):
                break
            return end
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
        if depth < 0 or (depth == 0 and mark == b","):
            break
        if depth == 0:
            return token.end()
    else:
        end = len(text[start:].rstrip(_BLANKS)) + start
        if depth == 0 and end > start:
            return end
    raise ValueError(f"no JSON value at byte {start}")
