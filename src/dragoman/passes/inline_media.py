"""Find the linked media of a request that must be fetched, and replace the links by the media."""

from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from dragoman.hub.request import Document, Foreign, Image, Inline, Link, Part, Request, Text, ToolResult, Turn

_Content = Text | Image | Document | Foreign


def find_links(request: Request, needs_inline: Callable[[Part], bool]) -> list[str]:
    """Return the URLs of linked media that the target needs in the body, each once, in order."""
    urls = {
        part.source.url: None
        for part in _parts(request)
        if isinstance(part, Image | Document) and isinstance(part.source, Link) and needs_inline(part)
    }
    return list(urls)


def inline_links(request: Request, fetched: Mapping[str, Inline]) -> Request:
    """Return the request with every fetched link replaced by its content."""
    turns = tuple(_inline_turn(turn, fetched) for turn in request.turns)
    same = all(new is old for new, old in zip(turns, request.turns, strict=True))
    return request if same else replace(request, turns=turns)


def _parts(request: Request) -> Iterator[Part]:
    for turn in request.turns:
        for part in turn.parts:
            yield part
            if isinstance(part, ToolResult):
                yield from part.content


def _inline_turn(turn: Turn, fetched: Mapping[str, Inline]) -> Turn:
    parts = tuple(_inline_part(part, fetched) for part in turn.parts)
    same = all(new is old for new, old in zip(parts, turn.parts, strict=True))
    return turn if same else replace(turn, parts=parts)


def _inline_part(part: Part, fetched: Mapping[str, Inline]) -> Part:
    if isinstance(part, ToolResult):
        content = tuple(_inline_media(item, fetched) for item in part.content)
        same = all(new is old for new, old in zip(content, part.content, strict=True))
        return part if same else replace(part, content=content)
    return _inline_media(part, fetched) if isinstance(part, Image | Document) else part


def _inline_media(part: _Content, fetched: Mapping[str, Inline]) -> _Content:
    if not isinstance(part, Image | Document) or not isinstance(part.source, Link):
        return part
    found = fetched.get(part.source.url)
    return part if found is None else replace(part, source=found)
