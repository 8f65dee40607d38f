"""What Kiro tells about the sources of its text comes in; citations go out, placed within the whole reply's text."""

from collections.abc import Iterator

import msgspec

from dragoman.hub.request import Citation
from dragoman.protocols.kiro.wire import CodeReferences, Place, Quotation, Span, WebLinks


def of_references(event: CodeReferences) -> Iterator[Citation]:
    for reference in event.references or ():
        span = reference.recommendation_content_span or Span()
        title = " ".join(part for part in (reference.repository, _in_brackets(reference.license_name)) if part)
        yield Citation(reference.url, title or None, None, span.start, span.end, _record("codeReference", reference))


def of_links(event: WebLinks) -> Iterator[Citation]:
    for link in event.supplementary_web_links or ():
        yield Citation(link.url, link.title, link.snippet, raw=_record("supplementaryWebLink", link))


def of_quotation(event: Quotation) -> Iterator[Citation]:
    place = event.target or Place()
    span = place.range or Span(place.location, place.location)
    record = _record("citation", event)
    yield Citation(event.citation_link, event.citation_text, None, span.start, span.end, record)


def within(citation: Citation, base: int, length: int) -> Citation:
    """The citation as its block counts characters; one that lies outside of the block is of the whole block."""
    start, end = citation.start, citation.end
    if start is None or end is None or not base <= start <= end <= base + length:
        return msgspec.structs.replace(citation, start=None, end=None)
    return msgspec.structs.replace(citation, start=start - base, end=end - base)


def _in_brackets(text: str | None) -> str | None:
    return f"({text})" if text else None


def _record(kind: str, value: msgspec.Struct) -> dict[str, object]:
    fields = msgspec.to_builtins(value)
    return {"type": kind, **{name: field for name, field in fields.items() if field is not None}}
