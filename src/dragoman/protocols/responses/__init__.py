"""OpenAI Responses, for clients and for upstreams."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from dragoman.framing.fields import read_body_call
from dragoman.framing.jsonread import read_input_tokens
from dragoman.framing.jsonscan import replace_model
from dragoman.framing.sse import KEEP_ALIVE, SseFramer
from dragoman.hub.deferred import Deferred
from dragoman.hub.events import Started
from dragoman.hub.failure import Failure
from dragoman.hub.ports import (
    Build,
    Client,
    DecodeWhole,
    EncodeWhole,
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
from dragoman.protocols.responses import errors
from dragoman.protocols.responses.wire import NAME, ResponsesOptions


@Deferred
def _parse() -> Parse:
    from dragoman.protocols.responses.parse import parse

    return parse


@Deferred
def _read_tool_uses() -> ReadToolUses:
    from dragoman.protocols.responses.parse_turns import read_tool_uses

    return read_tool_uses


@Deferred
def _make_encoder() -> MakeEncoder:
    from dragoman.protocols.responses.encode import Encoder

    return Encoder


@Deferred
def _encode_whole() -> EncodeWhole:
    from dragoman.protocols.responses.encode import encode_whole

    return encode_whole


@Deferred
def _render_stream_error() -> Callable[[Failure, Started | None, int, bytes], bytes]:
    from dragoman.protocols.responses.encode import render_stream_error

    return render_stream_error


@Deferred
def _build() -> Build:
    from dragoman.protocols.responses.build import build

    return build


@Deferred
def _make_decoder() -> MakeDecoder:
    from dragoman.protocols.responses.decode import Decoder

    return Decoder


@Deferred
def _decode_whole() -> DecodeWhole:
    from dragoman.protocols.responses.decode import decode_whole

    return decode_whole


def _describe_model(model: ListedModel) -> dict[str, object]:
    owner = model.owned_by or "dragoman"
    rate = {} if model.credit_rate is None else {"credit_rate": model.credit_rate}
    return {"id": model.id, "object": "model", "created": model.created, "owned_by": owner, **rate}


def _render_models(models: Sequence[ListedModel], query: Mapping[str, str]) -> bytes:
    """Return OpenAI's list with the one that Codex reads beside it; Codex names its version in the query."""
    for_codex = [
        {"slug": model.id, "display_name": model.name or model.id, "context_window": model.max_input}
        for model in models
    ]
    body = {"object": "list", "data": [_describe_model(model) for model in models], "models": for_codex}
    return msgspec.json.encode(body)


def _render_model(model: ListedModel) -> bytes:
    return msgspec.json.encode(_describe_model(model))


PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        paths=("/responses",),
        read_call=read_body_call,
        parse=_parse,
        encoder=_make_encoder,
        encode_whole=_encode_whole,
        render_error=errors.render_error,
        render_stream_error=_render_stream_error,
        serial_blocks=False,
        arguments_are_text=True,
        read_tool_uses=_read_tool_uses,
        end_markers=(b"response.completed", b"response.incomplete", b"response.failed"),
        keep_alive=KEEP_ALIVE,
        prefixes=("/conversations",),
        counting=TokenCounting(
            paths=("/responses/input_tokens",),
            locate=lambda path: path + "/input_tokens",
            parse=_parse,
            render_count=lambda tokens: msgspec.json.encode(
                {"object": "response.input_tokens", "input_tokens": tokens}
            ),
            read_count=read_input_tokens,
        ),
    ),
    upstream=Upstream(
        locate=locate_at("/responses"),
        put_model=replace_model,
        build=_build,
        decoder=_make_decoder,
        framer=SseFramer,
        decode_whole=_decode_whole,
        read_error=errors.read_failure,
        tool_limits=ToolLimits(custom=True, namespaces=True, name_max=64),
        options_type=lambda: ResponsesOptions,
    ),
    vendor_headers=VendorHeaders(
        account_choice=(b"openai-organization", b"openai-project", b"chatgpt-account-id"),
        account_name=(b"openai-organization", b"openai-project"),
        reply_choice=(b"openai-beta", b"openai-organization", b"openai-project"),
    ),
    models=ModelList(_render_models, _render_model, is_requested=lambda header, query: "client_version" in query),
)
