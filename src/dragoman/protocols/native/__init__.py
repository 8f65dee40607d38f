"""The hub's own values as JSON: what the built-in echo provider speaks, for whom nothing needs to be lost."""

from dragoman.hub.ports import Protocol, ToolLimits, Upstream
from dragoman.protocols.native.build import build
from dragoman.protocols.native.decode import Decoder, LineFramer, whole
from dragoman.protocols.native.errors import read
from dragoman.protocols.native.wire import NAME

PROTOCOL = Protocol(
    name=NAME,
    upstream=Upstream(
        path="/replies",
        build=build,
        decoder=Decoder,
        framer=LineFramer,
        whole=whole,
        read=read,
        tools=ToolLimits(custom=True, namespaces=True, name_max=1000),
    ),
)
