"""Kiro, for upstreams only: no client uses it."""

from collections.abc import Callable

from msgspec import Struct

from dragoman.hub.deferred import Deferred
from dragoman.hub.ports import (
    Build,
    DecodeWhole,
    MakeDecoder,
    MakeFramer,
    Protocol,
    ReadError,
    ToolLimits,
    Upstream,
    locate_at,
)
from dragoman.hub.request import Part


@Deferred
def _build() -> Build:
    from dragoman.protocols.kiro.build import build

    return build


@Deferred
def _make_decoder() -> MakeDecoder:
    from dragoman.protocols.kiro.decode import Decoder

    return Decoder


@Deferred
def _make_framer() -> MakeFramer:
    from dragoman.protocols.kiro.decode import KiroFramer

    return KiroFramer


@Deferred
def _decode_whole() -> DecodeWhole:
    from dragoman.protocols.kiro.decode import decode_whole

    return decode_whole


@Deferred
def _read_error() -> ReadError:
    from dragoman.protocols.kiro.errors import read_failure

    return read_failure


@Deferred
def _describe_request() -> Callable[[bytes], str]:
    from dragoman.protocols.kiro.errors import describe_request

    return describe_request


@Deferred
def _needs_inline() -> Callable[[Part], bool]:
    from dragoman.protocols.kiro.build_turns import needs_inline

    return needs_inline


def _find_options_type() -> type[Struct]:
    from dragoman.protocols.kiro.wire import KiroOptions

    return KiroOptions


PROTOCOL = Protocol(
    name="kiro",
    upstream=Upstream(
        locate=locate_at("/generateAssistantResponse"),
        put_model=lambda body, model: body,  # no client sends such a body
        build=_build,
        decoder=_make_decoder,
        framer=_make_framer,
        decode_whole=_decode_whole,
        read_error=_read_error,
        describe_request=_describe_request,
        tool_limits=ToolLimits(custom=False, namespaces=False, name_max=64, letter_first=True),
        needs_inline=_needs_inline,
        always_streams=True,
        options_type=_find_options_type,
    ),
)
