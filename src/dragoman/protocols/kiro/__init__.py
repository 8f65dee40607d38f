"""Kiro, for upstreams only: no client uses it."""

from dragoman.hub.ports import Protocol, ToolLimits, Upstream, locate_at
from dragoman.protocols.kiro.build import build
from dragoman.protocols.kiro.build_content import needs_inline
from dragoman.protocols.kiro.decode import Decoder, KiroFramer, decode_whole
from dragoman.protocols.kiro.errors import read_failure
from dragoman.protocols.kiro.wire import NAME

PROTOCOL = Protocol(
    name=NAME,
    upstream=Upstream(
        locate=locate_at("/generateAssistantResponse"),
        put_model=lambda body, model: body,  # no client sends such a body
        build=build,
        decoder=Decoder,
        framer=KiroFramer,
        decode_whole=decode_whole,
        read_error=read_failure,
        tool_limits=ToolLimits(custom=False, namespaces=False, name_max=64, letter_first=True),
        needs_inline=needs_inline,
        always_streams=True,
    ),
)
