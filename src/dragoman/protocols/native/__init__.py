"""The hub's own values as JSON, for the built-in echo provider: nothing is lost."""

from dragoman.hub.ports import Protocol, ToolLimits, Upstream, locate_at
from dragoman.protocols.native.build import build
from dragoman.protocols.native.decode import Decoder, LineFramer, decode_whole
from dragoman.protocols.native.errors import read_failure
from dragoman.protocols.native.wire import NAME

PROTOCOL = Protocol(
    name=NAME,
    upstream=Upstream(
        locate=locate_at("/replies"),
        put_model=lambda body, model: body,  # no client sends such a body
        build=build,
        decoder=Decoder,
        framer=LineFramer,
        decode_whole=decode_whole,
        read_error=read_failure,
        tool_limits=ToolLimits(custom=True, namespaces=True, name_max=1000),
    ),
)
