"""The trials: one small Chat request for each thing that servers differ in, and which quirk answers a refusal."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec
from msgspec import Struct

from dragoman.config.settings import Quirk
from dragoman.providers.compatible.probing.asking import Heard, Wire

CAP = 64  # tokens of answer that a trial asks for at most
SHORT_CAP = 8
LONG_TEXT = 120  # characters that a capped answer cannot have

SAY: Wire = {"messages": [{"role": "user", "content": "Say ok."}]}
COUNT: Wire = {"messages": [{"role": "user", "content": "Count from one to fifty, in words."}]}
SCHEMA: Wire = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
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
    said = ((role, "Be brief."), ("user", "Hi."), ("assistant", "Hello."), ("user", "Say ok."))

    def content(text: str) -> object:
        return [{"type": "text", "text": text}] if in_lists else text

    return {"messages": [{"role": who, "content": content(text)} for who, text in said]}


def _called(content: str | None) -> Wire:
    """A turn in which a tool was called, and its result."""
    function = {"name": "look_up", "arguments": '{"word":"dragoman"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "Look up the word dragoman."},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "An interpreter."},
    ]
    return {"messages": messages, "tools": [TOOL]}


def _format(kind: str, schema: Wire) -> Wire:
    return {**SAY, "response_format": {"type": kind, **schema}}


def _was_capped(heard: Heard) -> bool | None:
    long = len(heard.text) > LONG_TEXT if heard.tokens is None else heard.tokens > 2 * SHORT_CAP
    return not long


def _called_a_tool(heard: Heard) -> bool | None:
    """None where the answer ended before it came to a call: a thought may precede one, text does not."""
    if heard.calls:
        return True
    thinking = not heard.text.strip() or heard.text.lstrip().startswith("<think")
    return None if heard.finish == "length" and thinking else False


def _is_json(heard: Heard) -> bool | None:
    try:
        msgspec.json.decode(heard.text, type=dict[str, object])
    except msgspec.MsgspecError:
        return None if heard.finish == "length" else False
    return True


class Trial(Struct, frozen=True):
    """One thing tried. A quirk counts only where the request as it would be built then, `remedy`, is taken."""

    what: str
    fields: Wire
    quirk: Quirk | None = None
    remedy: Wire | None = None
    obeyed: Callable[[Heard], bool | None] = lambda heard: True  # False: taken, but ignored; None: nobody can tell
    capped: bool = True
    complaint: tuple[str, Quirk] | None = None  # a word of the refusal that means another quirk


ABOUT_TEXT = (
    Trial(
        "max_completion_tokens",
        {**COUNT, "max_completion_tokens": SHORT_CAP},
        "max_tokens",
        obeyed=_was_capped,
        capped=False,
    ),
    Trial(
        "developer messages",
        _turns("developer", in_lists=False),
        "no_developer",
        remedy=_turns("system", in_lists=False),
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
        _format("json_schema", {"json_schema": {"name": "reply", "schema": SCHEMA, "strict": True}}),
        "json_object_schema",
        remedy=_format("json_object", {"schema": SCHEMA}),
        obeyed=_is_json,
    ),
    Trial("reasoning_effort", {**SAY, "reasoning_effort": "low"}),
)

TOOLS = Trial("tools", {**SAY, "tools": [TOOL]})

ABOUT_TOOLS = (
    Trial("a tool without parameters", {**SAY, "tools": [BARE_TOOL]}, "needs_parameters"),
    Trial(
        "tool_choice required",
        {**LOOK_UP, "tool_choice": "required"},
        "no_required",
        remedy={**LOOK_UP, "tool_choice": NAMED},
        obeyed=_called_a_tool,
    ),
    Trial("parallel_tool_calls", {**SAY, "tools": [TOOL], "parallel_tool_calls": False}),
    Trial("freeform tools", {**SAY, "tools": [CUSTOM_TOOL]}, "no_custom_tools"),
    Trial(
        "a call without text in the history",
        _called(None),
        "text_content",
        remedy=_called(""),
        complaint=("reasoning", "replay_reasoning"),
    ),
)

STREAM: Wire = {**SAY, "stream_options": {"include_usage": True}}

# Of each protocol a request, and a field by which its answers are known.
PROTOCOLS: Mapping[str, tuple[Wire, str]] = MappingProxyType(
    {
        "responses": ({"input": "Say ok.", "max_output_tokens": CAP}, "output"),
        "messages": ({**SAY, "max_tokens": CAP}, "content"),
    }
)
PLAIN_CHAT = 2  # with either name for the cap
STREAMS = 5  # one with and one without options, one with a call, one that is disturbed and what disturbs it
MAX_REQUESTS = (
    PLAIN_CHAT
    + len(PROTOCOLS)
    + len((*ABOUT_TEXT, TOOLS, *ABOUT_TOOLS))
    + sum(trial.remedy is not None for trial in (*ABOUT_TEXT, *ABOUT_TOOLS))
    + STREAMS
)
