"""OpenAI Responses, as clients speak it to us and as we speak it to upstreams."""

from dragoman.framing.sse import COMMENT, SseFramer
from dragoman.hub.ports import Client, Protocol, ToolLimits, Upstream
from dragoman.protocols.responses import decode, encode, errors
from dragoman.protocols.responses.build import build
from dragoman.protocols.responses.parse import parse
from dragoman.protocols.responses.wire import NAME

PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        parse=parse,
        encoder=encode.Encoder,
        whole=encode.whole,
        render=errors.render,
        repair=encode.repair,
        serial=False,
        endings=(b"response.completed", b"response.incomplete", b"response.failed"),
        keep_alive=COMMENT,
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
