"""Kiro, for upstreams only: no client uses it. What it needs is imported when the first request is built for it."""

from collections.abc import Mapping

from dragoman.hub.events import Event
from dragoman.hub.failure import Failure
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import Decoder, Issuer, Protocol, Stage, ToolLimits, Upstream, locate_at
from dragoman.hub.profile import Target
from dragoman.hub.request import Part, Request


def _build(request: Request, target: Target, ledger: Ledger) -> bytes:
    from dragoman.protocols.kiro.build import build

    return build(request, target, ledger)


def _make_decoder(issuer: Issuer, ledger: Ledger) -> Decoder:
    from dragoman.protocols.kiro.decode import Decoder as KiroDecoder

    return KiroDecoder(issuer, ledger)


def _make_framer() -> Stage[bytes, object]:
    from dragoman.protocols.kiro.decode import KiroFramer

    return KiroFramer()


def _decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    from dragoman.protocols.kiro.decode import decode_whole

    return decode_whole(body, issuer, ledger)


def _read_error(status: int, headers: Mapping[bytes, bytes], body: bytes) -> Failure:
    from dragoman.protocols.kiro.errors import read_failure

    return read_failure(status, headers, body)


def _needs_inline(part: Part) -> bool:
    from dragoman.protocols.kiro.build_content import needs_inline

    return needs_inline(part)


PROTOCOL = Protocol(
    name="kiro",
    upstream=Upstream(
        locate=locate_at("/generateAssistantResponse"),
        put_model=lambda body, model: body,  # no client sends such a body
        build=_build,
        decoder=_make_decoder,
        framer=_make_framer,
        decode_whole=_decode_whole,
        read_error=_read_error,
        tool_limits=ToolLimits(custom=False, namespaces=False, name_max=64, letter_first=True),
        needs_inline=_needs_inline,
        always_streams=True,
    ),
)
