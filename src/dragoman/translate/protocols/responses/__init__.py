"""OpenAI Responses, for clients and for upstreams."""

from collections.abc import Mapping, Sequence

import msgspec

from dragoman.translate.framing.fields import read_body_call
from dragoman.translate.framing.jsonread import read_input_tokens
from dragoman.translate.framing.jsonscan import replace_model
from dragoman.translate.framing.sse import KEEP_ALIVE, SseFramer
from dragoman.translate.hub.ports import (
    Client,
    ListedModel,
    ModelList,
    Protocol,
    TokenCounting,
    ToolLimits,
    Upstream,
    VendorHeaders,
    locate_at,
)
from dragoman.translate.protocols.responses import build, decode, encode, errors, parse, parse_turns
from dragoman.translate.protocols.responses.build_blocks import PROMPTS
from dragoman.translate.protocols.responses.wire import NAME, ResponsesOptions


def _render_models(models: Sequence[ListedModel], query: Mapping[str, str]) -> bytes:
    """Return OpenAI's list with the one that Codex reads beside it; Codex names its version in the query."""
    for_codex = [
        {"slug": model.id, "display_name": model.name or model.id, "context_window": model.max_input}
        for model in models
    ]
    body = {"object": "list", "data": [model.for_openai() for model in models], "models": for_codex}
    return msgspec.json.encode(body)


PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        paths=("/responses",),
        read_call=read_body_call,
        output_limits=(("max_output_tokens",),),
        rate_header=lambda unit, field: f"x-ratelimit-{field}-{unit}",
        parse=parse.parse,
        encoder=encode.Encoder,
        encode_whole=encode.encode_whole,
        render_error=errors.render_error,
        render_stream_error=encode.render_stream_error,
        serial_blocks=False,
        arguments_are_text=True,
        read_tool_uses=parse_turns.read_tool_uses,
        end_markers=(b"response.completed", b"response.incomplete", b"response.failed"),
        keep_alive=KEEP_ALIVE,
        prefixes=("/conversations",),
        counting=TokenCounting(
            paths=("/responses/input_tokens",),
            locate=lambda path: path + "/input_tokens",
            parse=parse.parse,
            render_count=lambda tokens: msgspec.json.encode(
                {"object": "response.input_tokens", "input_tokens": tokens}
            ),
            read_count=read_input_tokens,
        ),
    ),
    upstream=Upstream(
        locate=locate_at("/responses"),
        put_model=replace_model,
        build=build.build,
        decoder=decode.Decoder,
        framer=SseFramer,
        decode_whole=decode.decode_whole,
        read_error=errors.read_failure,
        tool_limits=ToolLimits(custom=True, namespaces=True, name_max=64),
        options_type=lambda: ResponsesOptions,
        prompts=PROMPTS,
    ),
    vendor_headers=VendorHeaders(
        account_choice=(b"openai-organization", b"openai-project", b"chatgpt-account-id"),
        account_name=(b"openai-organization", b"openai-project"),
        reply_choice=(b"openai-beta", b"openai-organization", b"openai-project"),
    ),
    models=ModelList(
        _render_models, ListedModel.render_for_openai, is_requested=lambda header, query: "client_version" in query
    ),
)
