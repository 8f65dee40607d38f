"""Native: the hub's own requests and events as JSON, for the built-in echo provider, so that nothing is lost."""

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


@Deferred
def _build() -> Build:
    from dragoman.protocols.native.build import build

    return build


@Deferred
def _make_decoder() -> MakeDecoder:
    from dragoman.protocols.native.decode import Decoder

    return Decoder


@Deferred
def _make_framer() -> MakeFramer:
    from dragoman.protocols.native.decode import LineFramer

    return LineFramer


@Deferred
def _decode_whole() -> DecodeWhole:
    from dragoman.protocols.native.decode import decode_whole

    return decode_whole


@Deferred
def _read_error() -> ReadError:
    from dragoman.protocols.native.errors import read_failure

    return read_failure


PROTOCOL = Protocol(
    name="native",
    upstream=Upstream(
        locate=locate_at("/replies"),
        put_model=lambda body, model: body,  # no client sends such a body
        build=_build,
        decoder=_make_decoder,
        framer=_make_framer,
        decode_whole=_decode_whole,
        read_error=_read_error,
        tool_limits=ToolLimits(custom=True, namespaces=True, name_max=1000),
    ),
)
