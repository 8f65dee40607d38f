"""OpenAI Chat Completions, as OpenAI and a hundred compatible servers speak it."""

from dragoman.framing.fields import read_call_head
from dragoman.framing.sse import KEEP_ALIVE, SseFramer
from dragoman.hub.ports import Client, Protocol, ToolLimits, Upstream
from dragoman.hub.profile import Profile
from dragoman.hub.request import Document, Part
from dragoman.protocols.chat import decode, decode_whole, encode, errors
from dragoman.protocols.chat.build import build
from dragoman.protocols.chat.parse import body_protocol, parse
from dragoman.protocols.chat.wire import NAME


def _is_document(part: Part) -> bool:
    """Chat links to images, but takes documents only in the body."""
    return isinstance(part, Document)


def _accepts(profile: Profile, body: bytes) -> bool:
    """Some models take function tools on another endpoint only."""
    return profile.chat_tools or b'"tools"' not in body


PROTOCOL = Protocol(
    name=NAME,
    client=Client(
        paths=("/chat/completions",),
        read_head=read_call_head,
        parse=parse,
        encoder=encode.Encoder,
        whole=encode.whole,
        render=errors.render,
        repair=errors.repair,
        serial=False,
        endings=(b"[DONE]", b'{"error"'),
        keep_alive=KEEP_ALIVE,
        body_protocol=body_protocol,
    ),
    upstream=Upstream(
        path="/chat/completions",
        build=build,
        decoder=decode.Decoder,
        framer=SseFramer,
        whole=decode_whole.whole,
        read=errors.read,
        tools=ToolLimits(custom=True, namespaces=False, name_max=64),
        inlines=_is_document,
        glance=decode_whole.glance,
        accepts=_accepts,
    ),
)
