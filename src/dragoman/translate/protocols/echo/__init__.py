"""Native: the hub's own requests and events as JSON, for the built-in echo provider, so that nothing is lost."""

from dragoman.translate.hub.ports import Protocol, ToolLimits, Upstream, locate_at
from dragoman.translate.protocols.echo import build, decode, errors

PROTOCOL = Protocol(
    name="echo",
    upstream=Upstream(
        locate=locate_at("/replies"),
        put_model=lambda body, model: body,  # no client sends such a body
        build=build.build,
        decoder=decode.Decoder,
        framer=decode.LineFramer,
        decode_whole=decode.decode_whole,
        read_error=errors.read_failure,
        tool_limits=ToolLimits(custom=True, namespaces=True, name_max=1000),
    ),
)
