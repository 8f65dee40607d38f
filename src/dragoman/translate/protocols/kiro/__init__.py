"""Kiro, for upstreams only: no client uses it."""

from functools import cache

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Build, PromptReader, Protocol, ToolLimits, Upstream, locate_at
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Document, Image, Link, Part, Request
from dragoman.translate.protocols.kiro import build_blocks, decode, errors
from dragoman.translate.protocols.kiro.wire import KiroOptions


@cache
def _load_build() -> Build:
    """Import what builds requests, which a gateway without Kiro does not load."""
    from dragoman.translate.protocols.kiro.build import build

    return build


def _build(request: Request, target: Target, ledger: Ledger) -> bytes:
    return _load_build()(request, target, ledger)


def needs_inline(part: Part) -> bool:
    """Return whether a part is linked media, which Kiro does not fetch."""
    return isinstance(part, Image | Document) and isinstance(part.source, Link)


PROTOCOL = Protocol(
    name="kiro",
    upstream=Upstream(
        locate=locate_at("/generateAssistantResponse"),
        put_model=lambda body, model: body,  # no client sends such a body
        build=_build,
        decoder=decode.Decoder,
        framer=decode.KiroFramer,
        decode_whole=decode.decode_whole,
        read_error=errors.read_failure,
        describe_request=errors.describe_request,
        tool_limits=ToolLimits(custom=False, namespaces=False, name_max=64, letter_first=True),
        needs_inline=needs_inline,
        always_streams=True,
        options_type=lambda: KiroOptions,
        prompts=PromptReader(build_blocks.list_groups, build_blocks.find_life_s),
    ),
)
