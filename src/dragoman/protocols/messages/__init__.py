"""Anthropic Messages, towards clients and towards upstreams."""

import msgspec

from dragoman.framing.fields import read_call_head
from dragoman.framing.jsonread import read_input_tokens
from dragoman.framing.sse import SseFramer
from dragoman.hub.ports import Client, Protocol, TokenCounting, ToolLimits, Upstream
from dragoman.protocols.messages.build import build, request_headers
from dragoman.protocols.messages.decode import Decoder, decode_whole
from dragoman.protocols.messages.encode import Encoder, encode_whole
from dragoman.protocols.messages.errors import ErrorShape, read, render, repair
from dragoman.protocols.messages.parse import parse, parse_to_count
from dragoman.protocols.messages.wire import ANTHROPIC_VERSION, NAME

PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        paths=("/messages",),
        read_head=read_call_head,
        parse=parse,
        encoder=Encoder,
        whole=encode_whole,
        render=render,
        repair=repair,
        serial=True,
        keep_alive=b'event: ping\ndata: {"type": "ping"}\n\n',
        counting=TokenCounting(
            path="/messages/count_tokens",
            suffix="/count_tokens",
            parse=parse_to_count,
            render=lambda tokens: msgspec.json.encode({"input_tokens": tokens}),
            read=read_input_tokens,
        ),
        is_announced=lambda header: header(ANTHROPIC_VERSION[0]) is not None,
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
        required_headers=(ANTHROPIC_VERSION,),
        request_headers=request_headers,
        models_query="?limit=1000",
    ),
)
