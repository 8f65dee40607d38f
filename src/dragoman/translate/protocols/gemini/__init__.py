"""Gemini's generateContent, for clients and for upstreams."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import msgspec

from dragoman.translate.framing.jsonscan import ArrayFramer
from dragoman.translate.framing.numbers import parse_number
from dragoman.translate.framing.sse import SseOrJsonFramer
from dragoman.translate.framing.url_paths import quote_name
from dragoman.translate.hub.events import Event
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import (
    Build,
    CallHead,
    Client,
    Decoder,
    GetHeader,
    Issuer,
    ListedModel,
    Location,
    ModelList,
    Protocol,
    ReplyContext,
    Stage,
    TokenCounting,
    ToolLimits,
    Upstream,
    UpstreamCounting,
    VendorHeaders,
)
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Document, Image, Part, Request
from dragoman.translate.hub.server_tools import ServerToolUse
from dragoman.translate.protocols.gemini import build_blocks, build_count, errors
from dragoman.translate.protocols.gemini.wire import (
    CLIENT_HEADERS,
    COUNT,
    ENVELOPE_START,
    GENERATE,
    KEYS,
    LISTS,
    NAME,
    OPERATION,
    PLACES,
    SSE_QUERY,
    STREAM,
    VERSIONS,
    encode_json,
)

_PAGE_SIZE, _PAGE_MAX = 50, 1000  # of the list of models


# Gemini takes nearly a megabyte, and few gateways serve or use it: each function imports what it needs.


def _read_call(path: str, query: str, body: bytes) -> CallHead:
    from dragoman.translate.protocols.gemini.parse import read_call

    return read_call(path, query, body)


def _parse(body: bytes, ledger: Ledger) -> Request:
    from dragoman.translate.protocols.gemini.parse import parse

    return parse(body, ledger)


def _parse_for_count(body: bytes, ledger: Ledger) -> Request:
    from dragoman.translate.protocols.gemini.parse import parse_for_count

    return parse_for_count(body, ledger)


def _read_tool_uses(parts: Sequence[Part]) -> dict[int, ServerToolUse | None]:
    from dragoman.translate.protocols.gemini.parse_content import read_tool_uses

    return read_tool_uses(parts)


def _make_encoder(context: ReplyContext, ledger: Ledger) -> Stage[Event, bytes]:
    from dragoman.translate.protocols.gemini.encode import make_encoder

    return make_encoder(context, ledger)


def _encode_whole(events: Iterable[Event], context: ReplyContext, ledger: Ledger) -> bytes:
    from dragoman.translate.protocols.gemini.encode import encode_whole

    return encode_whole(events, context, ledger)


def _keep_alive(encoder: Stage[Event, bytes]) -> bytes:
    from dragoman.translate.protocols.gemini.encode import keep_alive

    return keep_alive(encoder)


def _is_keep_alive(written: bytes) -> bool:
    from dragoman.translate.protocols.gemini.encode import is_keep_alive

    return is_keep_alive(written)


@cache  # to run an import again takes longer than a call
def _load_build() -> Build:
    from dragoman.translate.protocols.gemini.build import build

    return build


def _build(request: Request, target: Target, ledger: Ledger) -> bytes:
    return _load_build()(request, target, ledger)


def _make_decoder(issuer: Issuer, ledger: Ledger) -> Decoder:
    from dragoman.translate.protocols.gemini.decode import make_decoder

    return make_decoder(issuer, ledger)


def _decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    from dragoman.translate.protocols.gemini.decode import decode_whole

    return decode_whole(body, issuer, ledger)


def _is_google_client(header: GetHeader, query: Mapping[str, str]) -> bool:
    return any(header(name) is not None for name in CLIENT_HEADERS)


def _announces_google_client(header: GetHeader) -> bool:
    return _is_google_client(header, {})


def _describe_model(model: ListedModel) -> dict[str, object]:
    limits = {"inputTokenLimit": model.max_input, "outputTokenLimit": model.max_output}
    return {
        "name": f"models/{model.id}",
        "baseModelId": model.id,
        "version": model.id,
        "displayName": model.name or model.id,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
        **{key: value for key, value in limits.items() if value is not None},
    }


def _render_models(models: Sequence[ListedModel], query: Mapping[str, str]) -> bytes:
    """Return one page of the models; the token of the next one is the number of those before it."""
    size, token = query.get("pageSize", ""), query.get("pageToken", "")
    start = parse_number(token) or 0
    end = start + (parse_number(size, _PAGE_MAX) or _PAGE_SIZE)
    page: dict[str, object] = {"models": [_describe_model(model) for model in models[start:end]]}
    return encode_json({**page, "nextPageToken": str(end)} if end < len(models) else page)


def _render_model(model: ListedModel) -> bytes:
    return encode_json(_describe_model(model))


def _locate(model: str, stream: bool) -> Location:
    path = f"/models/{quote_name(model, '/model')}"
    return Location(path + STREAM, SSE_QUERY) if stream else Location(path + GENERATE)


def _needs_inline(part: Part) -> bool:
    """Return whether linked media are fetched first: Gemini cannot fetch every address, nor guess every type."""
    return isinstance(part, Image | Document)


OUTPUT_LIMITS = tuple(  # Google reads both spellings of each name
    (holder, name)
    for holder in ("generationConfig", "generation_config")
    for name in ("maxOutputTokens", "max_output_tokens")
)

PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        paths=tuple(f"{place}/{{model}}{verb}" for place in PLACES for verb in (GENERATE, STREAM)),
        prefixes=("/publishers/", "/projects/", *(f"{version}/" for version in VERSIONS if version)),
        read_call=_read_call,
        output_limits=OUTPUT_LIMITS,
        parse=_parse,
        encoder=_make_encoder,
        encode_whole=_encode_whole,
        render_error=errors.render_error,
        render_stream_error=errors.render_stream_error,
        repeat_stream_error=errors.repeat_stream_error,
        serial_blocks=True,
        keep_alive=b"",
        encoder_keep_alive=_keep_alive,
        is_keep_alive=_is_keep_alive,
        counting=TokenCounting(
            paths=tuple(f"{place}/{{model}}{COUNT}" for place in PLACES),
            locate=build_count.locate_count,
            parse=_parse_for_count,
            render_count=lambda tokens: msgspec.json.encode({"totalTokens": tokens}),
            read_count=build_count.read_count,
        ),
        matches_headers=_announces_google_client,
        envelope_start=ENVELOPE_START,
        read_tool_uses=_read_tool_uses,
        error_shape=errors.ErrorShape,
        end_markers=(b'"finishReason"', b'"finish_reason"', b'{"error"'),
    ),
    upstream=Upstream(
        locate=_locate,
        put_model=lambda body, model: body,  # the model is in the path
        build=_build,
        decoder=_make_decoder,
        framer=SseOrJsonFramer,
        array_framer=ArrayFramer,
        decode_whole=_decode_whole,
        read_error=errors.read_failure,
        tool_limits=ToolLimits(custom=False, namespaces=False, name_max=128, letter_first=True),
        needs_inline=_needs_inline,
        reads_documents=True,
        counting=UpstreamCounting(build_count.locate_count, build_count.wrap_for_count, build_count.read_count),
        continues=True,
        models_query="?pageSize=1000",
        prompts=build_blocks.PROMPTS,
    ),
    models=ModelList(
        _render_models,
        _render_model,
        is_requested=_is_google_client,
        paths=LISTS[1:],  # the first is the path that all protocols share
    ),
    keys=KEYS,
    vendor_headers=VendorHeaders(account_choice=(b"x-goog-user-project",)),
    operation=OPERATION,
)
