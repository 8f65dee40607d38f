"""Keep secrets out of captures: mask them before a capture is written, and describe providers without them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import get_args

import msgspec
from msgspec.structs import replace

from dragoman.config.secret import Secret, SecretSource
from dragoman.config.settings import ProviderConfig
from dragoman.net.headers import Header
from dragoman.proxy.capture.format import (
    Capture,
    Chunk,
    ClientRequest,
    ClientResponse,
    TimedEvent,
    UpstreamRequest,
    UpstreamResponse,
)
from dragoman.translate.framing.eventstream import CONTENT_TYPE, update_checksums
from dragoman.translate.framing.known_secrets import list_secrets
from dragoman.translate.framing.redaction import (
    MASK,
    SHORTEST,
    Field,
    mask,
    mask_fields,
    mask_lines,
    mask_text,
    mask_url,
)
from dragoman.translate.hub.request import Json
from dragoman.upstreams.provider import Provider

Secrets = Sequence[bytes]
Fields = tuple[Field, ...]


def mask_capture(capture: Capture, secrets: Iterable[bytes]) -> Capture:
    """Return a capture without these secrets and without what looks like one."""
    known = sorted({secret for secret in secrets if len(secret) >= SHORTEST}, key=len, reverse=True)
    request = _mask_request(capture.request, known)
    upstream_requests = tuple(_mask_upstream_request(upstream, known) for upstream in capture.upstream_requests)
    return replace(
        capture,
        request=request,
        upstream_requests=upstream_requests,
        masked=capture.masked
        or _bodies(request, upstream_requests) != _bodies(capture.request, capture.upstream_requests),
        events=_mask_events(capture.events, known),
        response=None if capture.response is None else _mask_response(capture.response, known),
        lookups=tuple(replace(lookup, value=_mask_json(lookup.value, known)) for lookup in capture.lookups),
        settings=replace(
            capture.settings,
            providers={name: _mask_json(section, known) for name, section in capture.settings.providers.items()},
            routes=tuple(mask_text(route, known) for route in capture.settings.routes),
        ),
        losses=tuple(replace(loss, why=mask_text(loss.why, known)) for loss in capture.losses),
        request_id=mask_text(capture.request_id, known),
        client_request_id=mask_text(capture.client_request_id, known),
        client=mask_text(capture.client, known),
        user=mask_text(capture.user, known),
        team=mask_text(capture.team, known),
        session=mask_text(capture.session, known),
        agent=mask_text(capture.agent, known),
        parent_agent=mask_text(capture.parent_agent, known),
        tags=mask_text(capture.tags, known),
        route=mask_text(capture.route, known),
        requested_model=mask_text(capture.requested_model, known),
        error_code=None if capture.error_code is None else mask_text(capture.error_code, known),
        guard_trips=tuple(mask_text(message, known) for message in capture.guard_trips),
        cut_calls=tuple(mask_text(name, known) for name in capture.cut_calls),
    )


def _mask_upstream_request(request: UpstreamRequest, secrets: Secrets) -> UpstreamRequest:
    return replace(
        request,
        route=mask_text(request.route, secrets),
        url=mask_url(request.url, secrets),
        headers=mask_fields(request.headers, secrets),
        body=mask(request.body, secrets),
        response=None if request.response is None else _mask_upstream_response(request.response, secrets),
        error=mask_text(request.error, secrets),
    )


def _mask_response(response: ClientResponse, secrets: Secrets) -> ClientResponse:
    return replace(
        response, headers=mask_fields(response.headers, secrets), chunks=_mask_chunks(response.chunks, secrets)
    )


def _mask_request(request: ClientRequest, secrets: Secrets) -> ClientRequest:
    query = mask_url(f"?{request.query}", secrets)[1:] if request.query else ""
    return replace(
        request, query=query, headers=mask_fields(request.headers, secrets), body=mask(request.body, secrets)
    )


def _bodies(request: ClientRequest, upstream_requests: Iterable[UpstreamRequest]) -> list[object]:
    """Return all bodies in which tokens may be counted."""
    upstream = [(sent.body, sent.response and sent.response.chunks) for sent in upstream_requests]
    return [request.body, *upstream]


def _mask_upstream_response(response: UpstreamResponse, secrets: Secrets) -> UpstreamResponse:
    framed = any(name == "content-type" and value.startswith(CONTENT_TYPE) for name, value in response.headers)
    chunks = _mask_chunks(response.chunks, secrets, framed)
    return replace(
        response, headers=mask_fields(response.headers, secrets), chunks=chunks, end=mask_text(response.end, secrets)
    )


def _mask_events(events: tuple[TimedEvent, ...], secrets: Secrets) -> tuple[TimedEvent, ...]:
    texts = [timed.event for timed in events]
    hidden = mask_lines(texts, secrets)
    if hidden == texts:
        return events
    return tuple(TimedEvent(timed.at, timed.request, text) for timed, text in zip(events, hidden, strict=True))


def _mask_json(value: Json, secrets: Secrets) -> Json:
    match value:
        case str():
            return mask_text(value, secrets)
        case dict():
            return {name: _mask_json(inner, secrets) for name, inner in value.items()}
        case list() | tuple():
            return [_mask_json(inner, secrets) for inner in value]
        case _:
            return value


def _mask_chunks(chunks: tuple[Chunk, ...], secrets: Secrets, framed: bool = False) -> tuple[Chunk, ...]:
    """Mask chunks as one text: a secret may be cut anywhere. Each chunk keeps its size."""
    joined = b"".join([chunk.data for chunk in chunks])
    hidden = mask(joined, secrets)
    if hidden == joined:
        return chunks
    if framed:
        hidden = update_checksums(hidden, joined)
    cut: list[Chunk] = []
    at = 0
    for chunk in chunks:
        cut.append(Chunk(chunk.at, hidden[at : at + len(chunk.data)]))
        at += len(chunk.data)
    return tuple(cut)


def to_text(headers: Iterable[Header]) -> Fields:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def encode_headers(fields: Iterable[Field]) -> tuple[Header, ...]:
    return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in fields)


def hide_values(headers: Iterable[Header], names: set[bytes]) -> Iterator[Header]:
    for name, value in headers:
        yield name, (MASK.encode() if name in names else value)


@lru_cache(maxsize=16)
def _public_settings(section: type[ProviderConfig]) -> tuple[str, ...]:
    """Return the names of settings that contain neither secrets nor local paths."""
    return tuple(field.name for field in msgspec.structs.fields(section) if not _is_private(field.type))


def _is_private(kind: object) -> bool:
    return kind in (SecretSource, Secret, Path) or any(map(_is_private, get_args(kind)))


def describe_provider(provider: Provider, section: ProviderConfig | None, hidden: set[bytes]) -> Json:
    """Return what a replay needs to make the provider again. The keys are part of the file format."""
    settings: dict[str, object] = {"name": provider.name, "kind": provider.kind}
    if section is not None:
        settings = {name: getattr(section, name) for name in _public_settings(type(section))}
    return {
        "stanza": msgspec.to_builtins(settings),
        "endpoint": provider.endpoint.url,
        "credentials": []
        if provider.account.pool is None
        else [member.label for member in provider.account.pool.members],
        "fields": [list(field) for field in to_text(hide_values(provider.endpoint.headers, hidden))],
        "masked": _mask_forms(provider.auth.secrets),
    }


def _mask_forms(secrets: tuple[bytes, ...]) -> list[str]:
    """Return the forms of secrets as they stand in a capture, so that a replay redacts them there."""
    return list(dict.fromkeys(mask(form, (form,)).decode("latin-1") for form in list_secrets((), secrets)))
