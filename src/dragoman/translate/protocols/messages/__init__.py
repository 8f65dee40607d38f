"""Anthropic Messages, for clients and for upstreams."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from dragoman.translate.framing.fields import read_body_call
from dragoman.translate.framing.jsonread import read_input_tokens
from dragoman.translate.framing.jsonscan import replace_model
from dragoman.translate.framing.numbers import parse_number
from dragoman.translate.framing.sse import SseFramer
from dragoman.translate.hub.ports import (
    Client,
    GetHeader,
    KeyPlaces,
    ListedModel,
    ModelList,
    PromptReader,
    Protocol,
    TokenCounting,
    ToolLimits,
    Upstream,
    VendorHeaders,
    locate_at,
)
from dragoman.translate.protocols.messages import build, build_blocks, decode, encode, errors, parse, parse_content
from dragoman.translate.protocols.messages.wire import ANTHROPIC_VERSION, NAME

_LISTED, _MOST_LISTED = 20, 1000  # of models, in one page


def _names_version(header: GetHeader) -> bool:
    return header(ANTHROPIC_VERSION[0]) is not None


def _describe_model(model: ListedModel) -> dict[str, object]:
    return {
        "id": model.id,
        "type": "model",
        "display_name": model.name or model.id,
        **({"description": model.description} if model.description else {}),
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
        "capabilities": model.capabilities,
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
    limit = parse_number(query.get("limit", ""), _MOST_LISTED)
    limit = _LISTED if limit is None else max(1, limit)
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
        output_limits=(("max_tokens",),),
        rate_header=lambda unit, field: f"anthropic-ratelimit-{unit}-{field}",
        rates_reset_at=True,
        parse=parse.parse,
        encoder=encode.Encoder,
        encode_whole=encode.encode_whole,
        render_error=errors.render_error,
        render_stream_error=errors.render_stream_error,
        serial_blocks=True,
        counts_input_first=True,
        knows_pause=True,
        cites_apart=True,
        read_tool_uses=parse_content.read_tool_uses,
        has_conflicts=False,
        keep_alive=b'event: ping\ndata: {"type": "ping"}\n\n',
        counting=TokenCounting(
            paths=("/messages/count_tokens",),
            locate=lambda path: path + "/count_tokens",
            parse=parse.parse_for_count,
            render_count=lambda tokens: msgspec.json.encode({"input_tokens": tokens}),
            read_count=read_input_tokens,
        ),
        matches_headers=_names_version,
        id_header=b"request-id",
        error_shape=errors.ErrorShape,
        end_markers=(b"message_stop", b"event: error"),
    ),
    upstream=Upstream(
        locate=locate_at("/messages"),
        put_model=replace_model,
        build=build.build,
        decoder=decode.Decoder,
        framer=SseFramer,
        decode_whole=decode.decode_whole,
        read_error=errors.read_failure,
        tool_limits=ToolLimits(custom=False, namespaces=False, name_max=128),
        required_headers=(ANTHROPIC_VERSION,),
        request_headers=build.request_headers,
        models_query="?limit=1000",
        prompts=PromptReader(build_blocks.list_groups, build_blocks.find_life_s, build_blocks.list_marks),
        reads_documents=True,
    ),
    models=ModelList(_render_models, _render_model, is_requested=lambda header, query: _names_version(header)),
    keys=KeyPlaces(headers=(b"x-api-key",)),
    vendor_headers=VendorHeaders(
        account_name=(b"anthropic-organization-id",),
        reply_choice=(b"anthropic-version", b"anthropic-beta"),
    ),
)
