"""A capture and the secrets that its request knew come in; the capture that may be written down goes out."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from dragoman.flow.capture.format import (
    Capture,
    Chunk,
    ClientRequest,
    ClientResponse,
    Lookup,
    TimedEvent,
    UpstreamRequest,
    UpstreamResponse,
)
from dragoman.framing.eventstream import CONTENT_TYPE, update_checksums
from dragoman.framing.redaction import SHORTEST, mask, mask_fields, mask_lines, mask_text, mask_url
from dragoman.hub.request import Json

Secrets = Sequence[bytes]


def masked_capture(capture: Capture, secrets: Iterable[bytes]) -> Capture:
    known = sorted({secret for secret in secrets if len(secret) >= SHORTEST}, key=len, reverse=True)
    request = _asked(capture.request, known)
    upstream_requests = tuple(masked_question(upstream, known) for upstream in capture.upstream_requests)
    return replace(
        capture,
        request=request,
        upstream_requests=upstream_requests,
        masked=capture.masked
        or _bodies(request, upstream_requests) != _bodies(capture.request, capture.upstream_requests),
        events=_moments(capture.events, known),
        response=None if capture.response is None else masked_sent(capture.response, known),
        lookups=tuple(_masked_lookup(lookup, known) for lookup in capture.lookups),
        settings=replace(
            capture.settings,
            providers={name: _json(stanza, known) for name, stanza in capture.settings.providers.items()},
            routes=tuple(mask_text(route, known) for route in capture.settings.routes),
        ),
        losses=tuple(replace(loss, why=mask_text(loss.why, known)) for loss in capture.losses),
        **{
            name: mask_text(getattr(capture, name), known)
            for name in ("request_id", "client", "route", "requested_model")
        },
    )


def masked_question(question: UpstreamRequest, secrets: Secrets) -> UpstreamRequest:
    return replace(
        question,
        route=mask_text(question.route, secrets),
        url=mask_url(question.url, secrets),
        headers=mask_fields(question.headers, secrets),
        body=mask(question.body, secrets),
        response=None if question.response is None else _answer(question.response, secrets),
        error=mask_text(question.error, secrets),
    )


def masked_sent(sent: ClientResponse, secrets: Secrets) -> ClientResponse:
    return replace(sent, headers=mask_fields(sent.headers, secrets), chunks=_chunks(sent.chunks, secrets))


def _asked(asked: ClientRequest, secrets: Secrets) -> ClientRequest:
    query = mask_url(f"?{asked.query}", secrets)[1:] if asked.query else ""
    return replace(asked, query=query, headers=mask_fields(asked.headers, secrets), body=mask(asked.body, secrets))


def _bodies(request: ClientRequest, upstream_requests: Iterable[UpstreamRequest]) -> list[object]:
    """Return all bodies that tokens are counted in."""
    return [request.body, *((asked.body, asked.response and asked.response.chunks) for asked in upstream_requests)]


def _answer(answer: UpstreamResponse, secrets: Secrets) -> UpstreamResponse:
    framed = any(name == "content-type" and value.startswith(CONTENT_TYPE) for name, value in answer.headers)
    chunks = _chunks(answer.chunks, secrets, framed)
    return replace(
        answer, headers=mask_fields(answer.headers, secrets), chunks=chunks, end=mask_text(answer.end, secrets)
    )


def _moments(moments: tuple[TimedEvent, ...], secrets: Secrets) -> tuple[TimedEvent, ...]:
    events = [moment.event for moment in moments]
    hidden = mask_lines(events, secrets)
    if hidden == events:
        return moments
    return tuple(TimedEvent(moment.at, moment.request, text) for moment, text in zip(moments, hidden, strict=True))


def _masked_lookup(lookup: Lookup, secrets: Secrets) -> Lookup:
    return replace(lookup, value=_json(lookup.value, secrets))


def _json(value: Json, secrets: Secrets) -> Json:
    match value:
        case str():
            return mask_text(value, secrets)
        case dict():
            return {name: _json(inner, secrets) for name, inner in value.items()}
        case list():
            return [_json(inner, secrets) for inner in value]
        case _:
            return value


def _chunks(chunks: tuple[Chunk, ...], secrets: Secrets, framed: bool = False) -> tuple[Chunk, ...]:
    """A secret may be cut anywhere, so they are looked at as one."""
    whole = b"".join([chunk.data for chunk in chunks])
    hidden = mask(whole, secrets)
    if hidden == whole:
        return chunks
    if framed:
        hidden = update_checksums(hidden, whole)
    cut: list[Chunk] = []
    at = 0
    for chunk in chunks:
        cut.append(Chunk(chunk.at, hidden[at : at + len(chunk.data)]))
        at += len(chunk.data)
    return tuple(cut)
