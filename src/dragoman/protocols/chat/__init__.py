"""OpenAI Chat Completions, as OpenAI and many compatible servers implement it."""

from collections.abc import Mapping, Sequence

import msgspec

from dragoman.framing.fields import read_body_call
from dragoman.framing.jsonspan import replace_model
from dragoman.framing.sse import KEEP_ALIVE, SseFramer
from dragoman.hub.ports import Client, ListedModel, ModelList, Protocol, ToolLimits, Upstream, locate_at
from dragoman.hub.profile import Profile
from dragoman.hub.request import Document, Part
from dragoman.protocols.chat import decode, decode_whole, encode, errors
from dragoman.protocols.chat.build import build
from dragoman.protocols.chat.parse import body_protocol, parse
from dragoman.protocols.chat.wire import NAME


def _needs_inline(part: Part) -> bool:
    """Return whether a part must be sent in the body: Chat takes links to images, but none to documents."""
    return isinstance(part, Document)


def _accepts(profile: Profile, body: bytes) -> bool:
    """Return whether this endpoint takes the body: some models take function tools on another endpoint only."""
    return profile.chat_tools or b'"tools"' not in body


def _describe_model(model: ListedModel) -> dict[str, object]:
    owner = model.owned_by or "dragoman"
    return {"id": model.id, "object": "model", "created": model.created, "owned_by": owner}


def _render_models(models: Sequence[ListedModel], query: Mapping[str, str]) -> bytes:
    return msgspec.json.encode({"object": "list", "data": [_describe_model(model) for model in models]})


def _render_model(model: ListedModel) -> bytes:
    return msgspec.json.encode(_describe_model(model))


PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        paths=("/chat/completions",),
        read_call=read_body_call,
        parse=parse,
        encoder=encode.Encoder,
        encode_whole=encode.encode_whole,
        render_error=errors.render_error,
        render_stream_error=errors.render_stream_error,
        serial_blocks=False,
        end_markers=(b"[DONE]", b'{"error"'),
        keep_alive=KEEP_ALIVE,
        body_protocol=body_protocol,
    ),
    upstream=Upstream(
        locate=locate_at("/chat/completions"),
        put_model=replace_model,
        build=build,
        decoder=decode.Decoder,
        framer=SseFramer,
        decode_whole=decode_whole.decode_whole,
        read_error=errors.read_failure,
        tool_limits=ToolLimits(custom=True, namespaces=False, name_max=64),
        needs_inline=_needs_inline,
        decode_outline=decode_whole.decode_outline,
        accepts=_accepts,
    ),
    # OpenAI's list is the default, so no request has to ask for it.
    models=ModelList(_render_models, _render_model, is_requested=lambda header, query: False),
)
