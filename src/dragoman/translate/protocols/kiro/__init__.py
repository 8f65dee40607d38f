"""Kiro, for upstreams only: no client uses it."""

from dragoman.translate.hub.ports import PromptReader, Protocol, ToolLimits, Upstream, locate_at
from dragoman.translate.protocols.kiro import build, build_blocks, decode, errors
from dragoman.translate.protocols.kiro.wire import KiroOptions

PROTOCOL = Protocol(
    name="kiro",
    upstream=Upstream(
        locate=locate_at("/generateAssistantResponse"),
        put_model=lambda body, model: body,  # no client sends such a body
        build=build.build,
        decoder=decode.Decoder,
        framer=decode.KiroFramer,
        decode_whole=decode.decode_whole,
        read_error=errors.read_failure,
        describe_request=errors.describe_request,
        tool_limits=ToolLimits(custom=False, namespaces=False, name_max=64, letter_first=True),
        needs_inline=build.needs_inline,
        always_streams=True,
        options_type=lambda: KiroOptions,
        prompts=PromptReader(build_blocks.list_groups, build_blocks.find_life_s),
    ),
)
