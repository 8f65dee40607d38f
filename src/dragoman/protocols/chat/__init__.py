"""OpenAI Chat Completions, as OpenAI and many compatible servers implement it."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from dragoman.framing.fields import read_body_call
from dragoman.framing.jsonscan import replace_model
from dragoman.framing.sse import KEEP_ALIVE, SseFramer
from dragoman.hub.deferred import Deferred
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
    ToolLimits,
    Upstream,
    VendorHeaders,
    locate_at,
)
from dragoman.hub.profile import Profile
from dragoman.hub.request import Document, Part
from dragoman.protocols.chat import errors
from dragoman.protocols.chat.wire import NAME


@Deferred
def _parse() -> Parse:
    from dragoman.protocols.chat.parse import parse

    return parse


@Deferred
def _body_protocol() -> Callable[[bytes], str | None]:
    from dragoman.protocols.chat.parse import body_protocol

    return body_protocol


@Deferred
def _make_encoder() -> MakeEncoder:
    from dragoman.protocols.chat.encode import make_encoder

    return make_encoder


@Deferred
def _encode_whole() -> EncodeWhole:
    from dragoman.protocols.chat.encode_whole import encode_whole

    return encode_whole


@Deferred
def _build() -> Build:
    from dragoman.protocols.chat.build import build

    return build


@Deferred
def _make_decoder() -> MakeDecoder:
    from dragoman.protocols.chat.decode_whole import make_decoder

    return make_decoder


@Deferred
def _decode_whole() -> DecodeWhole:
    from dragoman.protocols.chat.decode_whole import decode_whole

    return decode_whole


@Deferred
def _decode_outline() -> DecodeWhole:
    from dragoman.protocols.chat.decode_whole import decode_outline

    return decode_outline


def _needs_inline(part: Part) -> bool:
    """Return whether a part must be sent in the body: Chat takes links to images, but none to documents."""
    return isinstance(part, Document)


def _accepts(profile: Profile, body: bytes) -> bool:
    """Return whether this endpoint takes the body: some models take function tools on another endpoint only."""
    return NAME not in profile.no_tools_in or b'"tools"' not in body


def _describe_model(model: ListedModel) -> dict[str, object]:
    owner = model.owned_by or "dragoman"
    rate = {} if model.credit_rate is None else {"credit_rate": model.credit_rate}
    return {"id": model.id, "object": "model", "created": model.created, "owned_by": owner, **rate}


def _render_models(models: Sequence[ListedModel], query: Mapping[str, str]) -> bytes:
    return msgspec.json.encode({"object": "list", "data": [_describe_model(model) for model in models]})


def _render_model(model: ListedModel) -> bytes:
    return msgspec.json.encode(_describe_model(model))


PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        paths=("/chat/completions",),
        read_call=read_body_call,
        parse=_parse,
        encoder=_make_encoder,
        encode_whole=_encode_whole,
        render_error=errors.render_error,
        render_stream_error=errors.render_stream_error,
        serial_blocks=False,
        arguments_are_text=True,
        end_markers=(b"[DONE]", b'{"error"'),
        keep_alive=KEEP_ALIVE,
        body_protocol=_body_protocol,
    ),
    upstream=Upstream(
        locate=locate_at("/chat/completions"),
        put_model=replace_model,
        build=_build,
        decoder=_make_decoder,
        framer=SseFramer,
        decode_whole=_decode_whole,
        read_error=errors.read_failure,
        tool_limits=ToolLimits(custom=True, namespaces=False, name_max=64),
        needs_inline=_needs_inline,
        decode_outline=_decode_outline,
        accepts=_accepts,
    ),
    vendor_headers=VendorHeaders(
        account_choice=(b"openai-organization", b"openai-project"),
        account_name=(b"openai-organization", b"openai-project"),
        reply_choice=(b"openai-beta", b"openai-organization", b"openai-project"),
    ),
    # OpenAI's list is the default, so no request has to ask for it.
    models=ModelList(_render_models, _render_model, is_requested=lambda header, query: False),
)
