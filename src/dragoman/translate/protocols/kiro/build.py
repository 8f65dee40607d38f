"""Build the body of a Kiro request for one target from a hub request."""

from collections.abc import Sequence

from msgspec import Struct

from dragoman.translate.caching.client_marks import is_marked
from dragoman.translate.hub.caching import CacheMode
from dragoman.translate.hub.ext import list_settings, record_foreign_fields, record_unsupported
from dragoman.translate.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Format, Request, Role, Shape, Text
from dragoman.translate.passes.adapt_turns import INSTRUCTION_ROLES, split_leading_instructions, tag_later_instructions
from dragoman.translate.passes.pair_results import flatten_tools, pair_results
from dragoman.translate.protocols.kiro.build_thinking import MODE_TAG, NativeFields, ThinkingPlan, plan_thinking
from dragoman.translate.protocols.kiro.build_tools import build_tools, forbids_calls, move_tool_docs
from dragoman.translate.protocols.kiro.build_turns import TurnBuilder, build_turns
from dragoman.translate.protocols.kiro.wire import (
    MANUAL,
    NAME,
    NO_CACHE_POINTS,
    VIBE,
    AssistantEntry,
    CachePoint,
    ConversationState,
    Entry,
    KiroOptions,
    Payload,
    UserContext,
    UserEntry,
    encode_json,
    json_text,
    read_options,
)

_MARKING_PROTOCOL = "messages"
_JSON_ONLY = "Answer with one valid JSON object and nothing else."
_SCHEMA_ONLY = "Answer with one valid JSON value and nothing else. It must satisfy this JSON Schema:"
_MAX_TOKENS_FIELDS = ("max_tokens", "max_output_tokens", "max_completion_tokens")

# Fields that Kiro does not have, and the default of each, which is no loss.
_UNSUPPORTED = list_settings(
    {
        "sampling.temperature": 1,
        "sampling.top_p": 1,
        "sampling.top_k": None,
        "sampling.frequency_penalty": 0,
        "sampling.presence_penalty": 0,
        "sampling.seed": None,
        "sampling.stop": (),
        "sampling.logprobs": False,
        "sampling.top_logprobs": 0,
        "verbosity": "medium",
        "attribution.user": None,
        "attribution.safety_identifier": None,
        "attribution.metadata": {},
        "attribution.service_tier": "auto",
        "max_tool_calls": None,
    }
)


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    """Return the body; raises RequestError for what would change the answer, and for a body that Kiro rejects."""
    options = read_options(target.options)
    record_foreign_fields(request, NAME, ledger)
    _drop_unsupported(request, ledger)
    request = _fit_request(request, options, ledger)
    offered = build_tools(request, ledger)
    plan = plan_thinking(request, target, options, ledger)
    leading, turns = split_leading_instructions(request.turns)
    writer = TurnBuilder(request, target, options, ledger)
    opening = [
        *_thinking_tags(plan, request),
        *(text for turn in leading for text in writer.instructions(turn)),
        *offered.sentences,
        *_format_sentences(request.format, ledger),
    ]
    history, current = build_turns(turns, "\n\n".join(opening), writer, ledger)
    if options.cache_points and NO_CACHE_POINTS not in target.quirks:
        points = _BOTH_POINTS if target.cache.mode is CacheMode.AUTO else _find_client_points(request)
        _add_cache_points([*history, current], points)
    if offered.tools:
        message = current.user_input_message
        context = message.user_input_message_context or UserContext()
        context.tools = offered.tools
        message.user_input_message_context = context
    payload = Payload(
        ConversationState(MANUAL, VIBE, current, target.cache.key or options.conversation_id, history),
        options.profile_arn or None,
        options.agent_mode or None,
        _choose_native_fields(request, plan, options, ledger),
    )
    return _check_size(encode_json(payload), options)


class _CachePoints(Struct, frozen=True):
    first: bool  # on the first message, which has the instructions
    newest: bool  # on the newest of the assistant's


_BOTH_POINTS = _CachePoints(True, True)


def _find_client_points(request: Request) -> _CachePoints:
    """Return which points stand for the marks of a Messages client; breakpoints of other clients have none."""
    if request.protocol != _MARKING_PROTOCOL:
        return _CachePoints(False, False)
    marked = [turn.role in INSTRUCTION_ROLES for turn in request.turns for part in turn.parts if is_marked(part)]
    return _CachePoints(True in marked, False in marked or request.cache is not None)


def _add_cache_points(entries: Sequence[Entry], points: _CachePoints) -> None:
    if points.first:
        first = next(entry for entry in entries if isinstance(entry, UserEntry))
        first.user_input_message.cache_point = CachePoint()
    newest = next((entry for entry in reversed(entries) if isinstance(entry, AssistantEntry)), None)
    if points.newest and newest is not None:
        newest.assistant_response_message.cache_point = CachePoint()


def _fit_request(request: Request, options: KiroOptions, ledger: Ledger) -> Request:
    request = tag_later_instructions(request, ledger)
    if forbids_calls(request):
        return pair_results(flatten_tools(request, ledger), ledger)
    return pair_results(move_tool_docs(request, options.tool_description_max, ledger), ledger)


def _drop_unsupported(request: Request, ledger: Ledger) -> None:
    count = request.sampling.n
    if count is not None and count != 1:
        raise BadRequest(request.pointer("n"), f"n must be 1, got {count}: Kiro returns one answer.")
    record_unsupported(request, _UNSUPPORTED, "Kiro has no such setting", ledger)


def _thinking_tags(plan: ThinkingPlan, request: Request) -> list[str]:
    """Return the tags that ask for thinking, unless the client wrote such tags itself."""
    if not plan.tags:
        return []
    client_parts = (part for turn in request.turns if turn.role is not Role.ASSISTANT for part in turn.parts)
    has_tags = any(isinstance(part, Text) and MODE_TAG in part.text for part in client_parts)
    return [] if has_tags else [plan.tags]


def _format_sentences(format: Format | None, ledger: Ledger) -> list[str]:
    if format is None or format.shape is Shape.TEXT:
        return []
    ledger.record_approximated(format.at, "the prompt asks for the format")
    if format.shape is Shape.JSON:
        return [_JSON_ONLY]
    about = f" ({format.description})" if format.description else ""
    return [f"{_SCHEMA_ONLY}{about}\n{json_text(format.schema)}"]


def _choose_native_fields(
    request: Request, plan: ThinkingPlan, options: KiroOptions, ledger: Ledger
) -> dict[str, object]:
    """Return the model's own request fields: thinking, and a limit on the answer if its schema has one."""
    if request.max_tokens is None:
        return plan.fields
    at = request.pointer("max_tokens")
    schema = NativeFields(options.fields_schema or {})
    for name in _MAX_TOKENS_FIELDS if options.fields_schema else ():
        if not schema.declares(name):
            continue
        for limit in (request.max_tokens, schema.maximum(name)):
            fields = {**plan.fields, name: limit}
            if limit is not None and schema.accepts(fields):
                if limit != request.max_tokens:
                    ledger.record_approximated(at, f"this model writes at most {limit} tokens")
                return fields
    ledger.record_dropped(at, "this model has no output limit")
    return plan.fields


def _check_size(body: bytes, options: KiroOptions) -> bytes:
    limit = options.max_payload_bytes
    if limit is not None and len(body) > limit:
        message = f"The conversation is too long for Kiro: {len(body)} bytes, the limit is {limit}. Shorten it."
        raise RequestError(Failure(Kind.CONTEXT_TOO_LONG, message))
    return body
