"""Anthropic Messages, towards clients and towards upstreams."""

from dragoman.framing.sse import SseFramer
from dragoman.hub.ports import Client, Protocol, ToolLimits, Upstream
from dragoman.protocols.messages.build import build
from dragoman.protocols.messages.decode import Decoder, decode_whole
from dragoman.protocols.messages.encode import Encoder, encode_whole
from dragoman.protocols.messages.errors import ErrorShape, read, render, repair
from dragoman.protocols.messages.parse import parse, parse_to_count
from dragoman.protocols.messages.wire import NAME

PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        parse=parse,
        encoder=Encoder,
        whole=encode_whole,
        render=render,
        repair=repair,
        serial=True,
        keep_alive=b'event: ping\ndata: {"type": "ping"}\n\n',
        parse_to_count=parse_to_count,
        id_header=b"request-id",
        error_shape=ErrorShape,
        endings=(b"message_stop", b"event: error"),
    ),
    upstream=Upstream(
        path="/messages",
        build=build,
        decoder=Decoder,
        framer=SseFramer,
        whole=decode_whole,
        read=read,
        tools=ToolLimits(custom=False, namespaces=False, name_max=128),
    ),
)
