"""Build the body of a Kiro request for one target from a hub request."""

from dragoman.hub.ext import note_foreign_fields
from dragoman.hub.failure import BadRequest, Failure, Kind, RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import Target
from dragoman.hub.request import Format, Request, Role, Shape, Text
from dragoman.passes.flatten_tools import flatten_tools
from dragoman.passes.move_tool_docs import move_tool_docs
from dragoman.passes.pair_results import pair_results
from dragoman.passes.tag_instructions import split_leading_instructions, tag_later_instructions
from dragoman.protocols.kiro.build_thinking import MODE_TAG, NativeFields, Thought, plan_thinking
from dragoman.protocols.kiro.build_tools import calls_nothing, write_tools
from dragoman.protocols.kiro.build_turns import Writer, write_turns
from dragoman.protocols.kiro.wire import (
    MANUAL,
    NAME,
    VIBE,
    ConversationState,
    KiroOptions,
    Payload,
    UserContext,
    encode_json,
    json_text,
    options_of,
)

_JSON_ONLY = "Answer with one valid JSON object and nothing else."
_SCHEMA_ONLY = "Answer with one valid JSON value and nothing else. It must satisfy this JSON Schema:"
_CAPS = ("max_tokens", "max_output_tokens", "max_completion_tokens")

# Fields that Kiro has no word for, and the value of each that means nothing.
_UNSAID: dict[str, object] = {
    "temperature": 1,
    "top_p": 1,
    "top_k": None,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "seed": None,
    "stop": (),
    "logprobs": False,
    "top_logprobs": 0,
    "verbosity": "medium",
    "cache": None,
    "cache_key": None,
    "user": None,
    "safety_identifier": None,
    "metadata": {},
    "service_tier": "auto",
    "max_tool_calls": None,
}


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    """Raises RequestError for what would change the answer, and for a body that Kiro is known to refuse."""
    options = options_of(target.options)
    note_foreign_fields(request, NAME, ledger)
    _tell_unsaid(request, ledger)
    request = _fitted(request, options, ledger)
    offer = write_tools(request, ledger)
    thought = plan_thinking(request, target, options, ledger)
    leading, turns = split_leading_instructions(request.turns)
    writer = Writer(request, target, options, ledger)
    opening = [
        *_tags(thought, request),
        *(words for turn in leading for words in writer.instructions(turn)),
        *offer.sentences,
        *_format_sentences(request.format, ledger),
    ]
    history, current = write_turns(turns, "\n\n".join(opening), writer, ledger)
    if offer.tools:
        message = current.user_input_message
        context = message.user_input_message_context or UserContext()
        context.tools = offer.tools
        message.user_input_message_context = context
    payload = Payload(
        ConversationState(MANUAL, VIBE, current, options.conversation_id, history),
        options.profile_arn or None,
        options.agent_mode or None,
        _native_fields(request, thought, options, ledger),
    )
    return _within_limit(encode_json(payload), options)


def _fitted(request: Request, options: KiroOptions, ledger: Ledger) -> Request:
    request = tag_later_instructions(request, ledger)
    if calls_nothing(request):
        return pair_results(flatten_tools(request, ledger), ledger)
    return pair_results(move_tool_docs(request, options.tool_description_max, ledger), ledger)


def _tell_unsaid(request: Request, ledger: Ledger) -> None:
    if request.n is not None and request.n != 1:
        raise BadRequest(request.pointer("n"), "Kiro gives one answer at a time")
    for name, nothing in _UNSAID.items():
        value = getattr(request, name)
        if value is not None and value != nothing:
            ledger.note_dropped(request.pointer(name), "Kiro has no such setting")


def _tags(thought: Thought, request: Request) -> list[str]:
    """The tags that ask for thoughts, unless the client wrote such tags itself."""
    if not thought.tags:
        return []
    asked = (part for turn in request.turns if turn.role is not Role.ASSISTANT for part in turn.parts)
    written = any(isinstance(part, Text) and MODE_TAG in part.text for part in asked)
    return [] if written else [thought.tags]


def _format_sentences(format: Format | None, ledger: Ledger) -> list[str]:
    if format is None or format.shape is Shape.TEXT:
        return []
    ledger.note_approximated(format.at, "the shape of the answer is asked for in the prompt")
    if format.shape is Shape.JSON:
        return [_JSON_ONLY]
    about = f" ({format.description})" if format.description else ""
    return [f"{_SCHEMA_ONLY}{about}\n{json_text(format.schema)}"]


def _native_fields(request: Request, thought: Thought, options: KiroOptions, ledger: Ledger) -> dict[str, object]:
    """The model's own fields: thinking, and a cap on the answer where its schema has one."""
    if request.max_tokens is None:
        return thought.fields
    at = request.pointer("max_tokens")
    schema = NativeFields(options.fields_schema or {})
    for name in _CAPS:
        if not schema.declares(name):
            continue
        for most in (request.max_tokens, schema.maximum(name)):
            fields = {**thought.fields, name: most}
            if most is not None and schema.accepts(fields):
                if most != request.max_tokens:
                    ledger.note_approximated(at, f"this model writes at most {most} tokens")
                return fields
    ledger.note_dropped(at, "this model takes no cap on its answer")
    return thought.fields


def _within_limit(body: bytes, options: KiroOptions) -> bytes:
    most = options.max_payload_bytes
    if most is not None and len(body) > most:
        message = f"the conversation is too long for Kiro: {len(body)} bytes, of which it takes {most}"
        raise RequestError(Failure(Kind.CONTEXT_TOO_LONG, message))
    return body
