"""The trials of a probe: one small Chat request for each thing servers differ in, and the quirk that helps."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
from msgspec import Struct

from dragoman.config.settings import Quirk
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.upstreams.probing.probe_client import ProbeReply, Wire

CAP = 64  # the most tokens that a trial requests
SHORT_CAP = 2  # so short that hardly any reply ends before it
SLACK = 2  # tokens beyond a cap that some servers count, for an end token
LONG_TEXT = 60  # characters that a capped reply cannot have
MANY_PIECES = 12  # pieces of a stream that a capped reply cannot have
DETERMINISTIC: Wire = {"temperature": 0, "seed": 1}  # the same reply each time, as far as the server can
SHORT_ID = "lookup001"  # accepted by servers that want nine letters or digits
LONG_ID = "call_Lk2Up5dRag0man7interp9"

SAY: Wire = {"messages": [{"role": "user", "content": "Say ok."}]}
LONG_PROMPTS = (
    "Count from one to fifty, in words.",
    "Write the numbers from 1 to 100, separated by commas.",
    "Write a story about an interpreter who travels with a caravan.",
)
COUNTS: tuple[Wire, ...] = tuple({"messages": [{"role": "user", "content": text}]} for text in LONG_PROMPTS)
GREET: Wire = {"messages": [{"role": "user", "content": "Hello! How are you today?"}]}
SCHEMA: Wire = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
JSON_SCHEMA: Wire = {
    "type": "json_schema",
    "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True},
}
WORD: Wire = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
TOOL: Wire = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks a word up in the dictionary.", "parameters": WORD},
}
BARE_TOOL: Wire = {"type": "function", "function": {"name": "look_up", "description": "Looks a word up."}}
CUSTOM_TOOL: Wire = {"type": "custom", "custom": {"name": "note", "description": "Takes a note."}}
NAMED: Wire = {"type": "function", "function": {"name": "look_up"}}
LOOK_UP: Wire = {
    "messages": [{"role": "user", "content": "Look up the word dragoman, which means an interpreter."}],
    "tools": [TOOL],
}
EXTRAS: Wire = {
    "prompt_cache_key": "dragoman-doctor",
    "safety_identifier": "dragoman-doctor",
    "metadata": {"from": "dragoman doctor"},
    "service_tier": "auto",
}


def _turns(role: str, *, in_lists: bool) -> Wire:
    message = ((role, "Be brief."), ("user", "Hi."), ("assistant", "Hello."), ("user", "Say ok."))

    def content(text: str) -> object:
        return [{"type": "text", "text": text}] if in_lists else text

    return {"messages": [{"role": who, "content": content(text)} for who, text in message]}


def _say_in_turns(*turns: tuple[str, str]) -> Wire:
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def _history_with_call(content: str | None, id: str = SHORT_ID) -> Wire:
    """Return a conversation with a tool call and its result."""
    function = {"name": "look_up", "arguments": '{"word":"dragoman"}'}
    call = {"id": id, "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "Look up the word dragoman."},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id, "content": "An interpreter."},
    ]
    return {"messages": messages, "tools": [TOOL]}


def _was_capped(reply: ProbeReply) -> bool | None:
    """Return whether the cap was obeyed; None if the reply ended before it."""
    if reply.output_tokens is not None and reply.output_tokens > SHORT_CAP + SLACK:
        return False
    if reply.pieces >= MANY_PIECES or len(reply.text) > LONG_TEXT:
        return False
    return True if reply.finish_reason == "length" else None


def _has_tool_call(reply: ProbeReply) -> bool | None:
    """Return whether a tool was called; None if the reply ended while thinking, before a call."""
    if reply.calls:
        return True
    thinking = not reply.text.strip() or reply.text.lstrip().startswith("<think")
    return None if reply.finish_reason == "length" and thinking else False


def _is_json(reply: ProbeReply) -> bool | None:
    """Return whether the text is a JSON object; None if it was truncated before that is clear."""
    try:
        msgspec.json.decode(reply.text, type=dict[str, object])
    except JSON_ERRORS:
        begun = reply.text.lstrip()
        return None if reply.finish_reason == "length" and (not begun or begun.startswith(("{", "<think"))) else False
    return True


class Trial(Struct, frozen=True):
    """One thing to test. The quirk is set only if the server accepts `remedy`, the request as it would be built then.

    The verdict must not depend on the model's words. After a reply that proves nothing, the next of `others` is sent.
    Where a model may obey by chance, `proofs` replies must obey; a single one that does not is decisive.
    """

    what: str
    fields: Wire
    quirk: Quirk | None = None
    remedy: Wire | None = None
    is_obeyed: Callable[[ProbeReply], bool | None] = lambda reply: True  # False: accepted but ignored; None: undecided
    capped: bool = True  # False: a stream is requested, and ended as soon as it is too long
    other_quirk: tuple[str, Quirk] | None = None  # a word in the refusal that indicates another quirk
    others: tuple[Wire, ...] = ()  # the same request in other words
    proofs: int = 1


ABOUT_TEXT = (
    Trial(
        "max_completion_tokens",
        {**COUNTS[0], "max_completion_tokens": SHORT_CAP},
        "max_tokens",
        is_obeyed=_was_capped,
        capped=False,
        others=tuple({**count, "max_completion_tokens": SHORT_CAP} for count in COUNTS[1:]),
    ),
    Trial(
        "developer messages",
        _turns("developer", in_lists=False),
        "no_developer",
        remedy=_turns("system", in_lists=False),
    ),
    Trial(
        "a system message after a user's",
        _say_in_turns(("user", "Hi."), ("system", "Be brief."), ("user", "Say ok.")),
        "leading_system",
        remedy=_say_in_turns(("user", "Hi.\n\n<system>\nBe brief.\n</system>"), ("user", "Say ok.")),
    ),
    Trial(
        "content as a list",
        _turns("system", in_lists=True),
        "text_content",
        remedy=_turns("system", in_lists=False),
    ),
    Trial("cache key, metadata, tier", {**SAY, **EXTRAS}, "plain"),
    Trial(
        "response_format json_schema",
        {**SAY, "response_format": JSON_SCHEMA},
        "json_object_schema",
        remedy={**SAY, "response_format": {"type": "json_object", "schema": SCHEMA}},
        is_obeyed=_is_json,
        others=({**GREET, "response_format": JSON_SCHEMA},),
    ),
    Trial("reasoning_effort", {**SAY, "reasoning_effort": "low"}),
)

TOOLS = Trial("tools", {**SAY, "tools": [TOOL]})

ABOUT_TOOLS = (
    Trial("a tool without parameters", {**SAY, "tools": [BARE_TOOL]}, "needs_parameters"),
    Trial(
        "tool_choice required",
        {
            **SAY,
            "tools": [TOOL],
            "tool_choice": "required",
        },  # there is nothing to look up: only the server can force a call
        "no_required",
        remedy={**LOOK_UP, "tool_choice": NAMED},
        is_obeyed=_has_tool_call,
        others=({**GREET, "tools": [TOOL], "tool_choice": "required"}, {**LOOK_UP, "tool_choice": "required"}),
        proofs=3,
    ),
    Trial("parallel_tool_calls", {**SAY, "tools": [TOOL], "parallel_tool_calls": False}),
    Trial("freeform tools", {**SAY, "tools": [CUSTOM_TOOL]}, "no_custom_tools"),
    Trial(
        "ids of calls as OpenAI writes them",
        _history_with_call("", LONG_ID),
        "short_call_ids",
        remedy=_history_with_call(""),
    ),
    Trial(
        "a call without text in the history",
        _history_with_call(None),
        "text_content",
        remedy=_history_with_call(""),
        other_quirk=("reasoning", "replay_reasoning"),
    ),
)

STREAM: Wire = {**SAY, "stream_options": {"include_usage": True}}

# A request of each protocol, and a field that identifies its replies.
PROTOCOLS: Mapping[str, tuple[Wire, str]] = MappingProxyType(
    {
        "responses": ({"input": "Say ok.", "max_output_tokens": CAP}, "output"),
        "messages": ({**SAY, "max_tokens": CAP}, "content"),
    }
)
PLAIN_CHAT = 4  # either name of the cap, with or without `DETERMINISTIC`
STREAMS = 3 + 2 * len(
    COUNTS
)  # with options, without, with a call; and each interrupted stream with the request that interrupts it
TRIALS = (*ABOUT_TEXT, TOOLS, *ABOUT_TOOLS)
MAX_REQUESTS = (
    PLAIN_CHAT
    + len(PROTOCOLS)
    + sum((1 + len(trial.others)) * (1 if trial.capped else 2) for trial in TRIALS)
    + sum(trial.remedy is not None for trial in TRIALS)
    + STREAMS
)
