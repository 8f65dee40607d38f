"""Anthropic Messages, for clients and for upstreams."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from dragoman.framing.fields import read_body_call
from dragoman.framing.jsonread import read_input_tokens
from dragoman.framing.jsonscan import replace_model
from dragoman.framing.sse import SseFramer
from dragoman.hub.deferred import Deferred
from dragoman.hub.ports import (
    Build,
    Client,
    DecodeWhole,
    EncodeWhole,
    GetHeader,
    Header,
    KeyPlaces,
    ListedModel,
    MakeDecoder,
    MakeEncoder,
    ModelList,
    Parse,
    Protocol,
    ReadToolUses,
    TokenCounting,
    ToolLimits,
    Upstream,
    VendorHeaders,
    locate_at,
)
from dragoman.hub.request import Request
from dragoman.protocols.messages.errors import ErrorShape, read_failure, render_error, render_stream_error
from dragoman.protocols.messages.wire import ANTHROPIC_VERSION, NAME


@Deferred
def _parse() -> Parse:
    from dragoman.protocols.messages.parse import parse

    return parse


@Deferred
def _parse_for_count() -> Parse:
    from dragoman.protocols.messages.parse import parse_for_count

    return parse_for_count


@Deferred
def _read_tool_uses() -> ReadToolUses:
    from dragoman.protocols.messages.parse_content import read_tool_uses

    return read_tool_uses


@Deferred
def _make_encoder() -> MakeEncoder:
    from dragoman.protocols.messages.encode import Encoder

    return Encoder


@Deferred
def _encode_whole() -> EncodeWhole:
    from dragoman.protocols.messages.encode import encode_whole

    return encode_whole


@Deferred
def _build() -> Build:
    from dragoman.protocols.messages.build import build

    return build


@Deferred
def _request_headers() -> Callable[[Request], tuple[Header, ...]]:
    from dragoman.protocols.messages.build import request_headers

    return request_headers


@Deferred
def _make_decoder() -> MakeDecoder:
    from dragoman.protocols.messages.decode import Decoder

    return Decoder


@Deferred
def _decode_whole() -> DecodeWhole:
    from dragoman.protocols.messages.decode import decode_whole

    return decode_whole


def _names_version(header: GetHeader) -> bool:
    return header(ANTHROPIC_VERSION[0]) is not None


def _describe_model(model: ListedModel) -> dict[str, object]:
    return {
        "id": model.id,
        "type": "model",
        "display_name": model.name or model.id,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "capabilities": None,
        "max_input_tokens": model.max_input,
        "max_tokens": model.max_output,
    }


def _render_model(model: ListedModel) -> bytes:
    return msgspec.json.encode(_describe_model(model))


def _render_models(models: Sequence[ListedModel], query: Mapping[str, str]) -> bytes:
    page = _page(models, query)
    body = {
        "data": [_describe_model(model) for model in page],
        "has_more": bool(page) and page[-1] != models[-1] and "before_id" not in query,
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }
    return msgspec.json.encode(body)


def _page(models: Sequence[ListedModel], query: Mapping[str, str]) -> Sequence[ListedModel]:
    """Return the models that `after_id`, `before_id` and `limit` select."""
    limit = int(query["limit"]) if query.get("limit", "").isdigit() else 20
    limit = max(1, min(limit, 1000))
    ids = [model.id for model in models]
    if query.get("before_id") in ids:
        return models[: ids.index(query["before_id"])][-limit:]
    start = ids.index(query["after_id"]) + 1 if query.get("after_id") in ids else 0
    return models[start : start + limit]


PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        paths=("/messages",),
        read_call=read_body_call,
        parse=_parse,
        encoder=_make_encoder,
        encode_whole=_encode_whole,
        render_error=render_error,
        render_stream_error=render_stream_error,
        serial_blocks=True,
        counts_input_first=True,
        knows_pause=True,
        cites_apart=True,
        read_tool_uses=_read_tool_uses,
        has_conflicts=False,
        keep_alive=b'event: ping\ndata: {"type": "ping"}\n\n',
        counting=TokenCounting(
            paths=("/messages/count_tokens",),
            locate=lambda path: path + "/count_tokens",
            parse=_parse_for_count,
            render_count=lambda tokens: msgspec.json.encode({"input_tokens": tokens}),
            read_count=read_input_tokens,
        ),
        matches_headers=_names_version,
        id_header=b"request-id",
        error_shape=ErrorShape,
        end_markers=(b"message_stop", b"event: error"),
    ),
    upstream=Upstream(
        locate=locate_at("/messages"),
        put_model=replace_model,
        build=_build,
        decoder=_make_decoder,
        framer=SseFramer,
        decode_whole=_decode_whole,
        read_error=read_failure,
        tool_limits=ToolLimits(custom=False, namespaces=False, name_max=128),
        required_headers=(ANTHROPIC_VERSION,),
        request_headers=_request_headers,
        models_query="?limit=1000",
        reads_documents=True,
    ),
    models=ModelList(_render_models, _render_model, is_requested=lambda header, query: _names_version(header)),
    keys=KeyPlaces(headers=(b"x-api-key",)),
    vendor_headers=VendorHeaders(
        account_name=(b"anthropic-organization-id",),
        reply_choice=(b"anthropic-version", b"anthropic-beta"),
    ),
)
