"""OpenAI Responses, as clients speak it to us and as we speak it to upstreams."""

import msgspec

from dragoman.framing.fields import read_call_head
from dragoman.framing.jsonread import read_input_tokens
from dragoman.framing.sse import KEEP_ALIVE, SseFramer
from dragoman.hub.ports import Client, Protocol, TokenCounting, ToolLimits, Upstream
from dragoman.protocols.responses import decode, encode, errors
from dragoman.protocols.responses.build import build
from dragoman.protocols.responses.parse import parse
from dragoman.protocols.responses.wire import NAME

PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        paths=("/responses",),
        read_head=read_call_head,
        parse=parse,
        encoder=encode.Encoder,
        whole=encode.whole,
        render=errors.render,
        repair=encode.repair,
        serial=False,
        endings=(b"response.completed", b"response.incomplete", b"response.failed"),
        keep_alive=KEEP_ALIVE,
        counting=TokenCounting(
            path="/responses/input_tokens",
            suffix="/input_tokens",
            parse=parse,
            render=lambda tokens: msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens}),
            read=read_input_tokens,
        ),
    ),
    upstream=Upstream(
        path="/responses",
        build=build,
        decoder=decode.Decoder,
        framer=SseFramer,
        whole=decode.whole,
        read=errors.read,
        tools=ToolLimits(custom=True, namespaces=True, name_max=64),
    ),
)
