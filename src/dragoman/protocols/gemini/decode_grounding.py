"""Read what Google's search has found: its queries, its sources, and which parts of the text they support."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Raw, Struct

from dragoman.hub.request import Citation


class _Web(Struct):
    uri: str | None = None
    title: str | None = None


class _Source(Struct, rename="camel"):
    web: _Web | None = None
    retrieved_context: _Web | None = None


class _Segment(Struct, rename="camel"):
    start_index: int | None = None  # bytes of UTF-8, over the whole text of the reply
    end_index: int | None = None
    text: str | None = None


class _Support(Struct, rename="camel"):
    segment: _Segment | None = None
    grounding_chunk_indices: list[int] | None = None


class Grounding(Struct, rename="camel"):
    web_search_queries: list[str] | None = None
    grounding_chunks: list[_Source] | None = None
    grounding_supports: list[_Support] | None = None


_GROUNDING = msgspec.json.Decoder(Grounding)


def read_grounding(raw: Raw) -> Grounding | None:
    """Return the metadata; None if there is none, or none that can be read."""
    if not bytes(raw) or bytes(raw) == b"null":
        return None
    try:
        return _GROUNDING.decode(raw)
    except (ValueError, RecursionError):
        return None


def list_sources(grounding: Grounding) -> tuple[Citation, ...]:
    found = [source.web or source.retrieved_context or _Web() for source in grounding.grounding_chunks or ()]
    return tuple(Citation(url=web.uri, title=web.title) for web in found)


def locate_citations(grounding: Grounding, text: str, bytes_before: int) -> Iterator[Citation]:
    """Yield the citations of a block in order; `bytes_before`: the length of the reply's text before this block."""
    sources, encoded = list_sources(grounding), text.encode(errors="surrogatepass")
    for support in grounding.grounding_supports or ():
        segment = support.segment or _Segment()
        start = max(0, (segment.start_index or 0) - bytes_before)
        end = len(encoded) if segment.end_index is None else segment.end_index - bytes_before
        if end <= 0:
            continue  # of an earlier block, which is closed
        first, last = _count_characters(encoded, start), _count_characters(encoded, min(end, len(encoded)))
        for index in support.grounding_chunk_indices or ():
            if 0 <= index < len(sources) and sources[index].url:
                yield msgspec.structs.replace(sources[index], start=first, end=last)


def _count_characters(encoded: bytes, end: int) -> int:
    return len(encoded[:end].decode(errors="ignore"))


class _Token(Struct, rename="camel"):
    token: str = ""
    log_probability: float = 0.0


class _Alternatives(Struct):
    candidates: list[_Token] = []


class _Logprobs(Struct, rename="camel"):
    chosen_candidates: list[_Token] = []
    top_candidates: Sequence[_Alternatives] = ()


_LOGPROBS = msgspec.json.Decoder(_Logprobs)


def read_logprobs(raw: Raw) -> Raw | None:
    """Return the log probabilities as the hub has them; None if there are none that can be read."""
    if not bytes(raw) or bytes(raw) == b"null":
        return None
    try:
        found = _LOGPROBS.decode(raw)
    except (ValueError, RecursionError):
        return None
    tokens = [
        {
            **_write_token(chosen),
            "top_logprobs": [_write_token(other) for other in found.top_candidates[index].candidates]
            if index < len(found.top_candidates)
            else [],
        }
        for index, chosen in enumerate(found.chosen_candidates)
    ]
    return Raw(msgspec.json.encode(tokens)) if tokens else None


def _write_token(token: _Token) -> dict[str, object]:
    text = token.token
    return {"token": text, "logprob": token.log_probability, "bytes": list(text.encode(errors="replace"))}
