"""OpenAI Chat Completions, as OpenAI and many compatible servers implement it."""

from collections.abc import Mapping, Sequence

import msgspec

from dragoman.translate.framing.jsonscan import replace_model
from dragoman.translate.framing.sse import KEEP_ALIVE, SseFramer
from dragoman.translate.hub.ports import (
    Client,
    KeyPlaces,
    ListedModel,
    ModelList,
    Protocol,
    ToolLimits,
    Upstream,
    VendorHeaders,
    locate_at,
)
from dragoman.translate.hub.request import Document, Part
from dragoman.translate.protocols.chat import build, decode_whole, encode, encode_whole, errors, parse
from dragoman.translate.protocols.chat.build_blocks import PROMPTS
from dragoman.translate.protocols.chat.wire import NAME


def _needs_inline(part: Part) -> bool:
    """Return whether a part must be sent in the body: Chat takes links to images, but none to documents."""
    return isinstance(part, Document)


def _render_models(models: Sequence[ListedModel], query: Mapping[str, str]) -> bytes:
    return msgspec.json.encode({"object": "list", "data": [model.for_openai() for model in models]})


PROTOCOL = Protocol(
    name=NAME,
    keys=KeyPlaces(headers=(b"api-key",)),  # as clients of Azure OpenAI send it
    client=Client(
        paths=("/chat/completions",),
        read_call=parse.read_call,
        output_limits=(("max_completion_tokens",), ("max_tokens",)),
        rate_header=lambda unit, field: f"x-ratelimit-{field}-{unit}",
        parse=parse.parse,
        encoder=encode.make_encoder,
        encode_whole=encode_whole.encode_whole,
        render_error=errors.render_error,
        render_stream_error=errors.render_stream_error,
        serial_blocks=False,
        arguments_are_text=True,
        end_markers=(b"[DONE]", b'{"error"'),
        keep_alive=KEEP_ALIVE,
    ),
    upstream=Upstream(
        locate=locate_at("/chat/completions"),
        put_model=replace_model,
        build=build.build,
        decoder=decode_whole.make_decoder,
        framer=SseFramer,
        decode_whole=decode_whole.decode_whole,
        read_error=errors.read_failure,
        tool_limits=ToolLimits(custom=True, namespaces=False, name_max=64),
        needs_inline=_needs_inline,
        decode_outline=decode_whole.decode_outline,
        prompts=PROMPTS,
    ),
    vendor_headers=VendorHeaders(
        account_choice=(b"openai-organization", b"openai-project"),
        account_name=(b"openai-organization", b"openai-project"),
        reply_choice=(b"openai-beta", b"openai-organization", b"openai-project"),
    ),
    # OpenAI's list is the default, so no request has to ask for it.
    models=ModelList(_render_models, ListedModel.render_for_openai, is_requested=lambda header, query: False),
)
