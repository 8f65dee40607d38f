"""Build the system prompt and the messages in the order and shape that Anthropic demands."""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

from msgspec import Struct

from dragoman.translate.hub.ext import restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.profile import Profile
from dragoman.translate.hub.request import ROLE_NAMES, Part, Role, Text, ToolCall, ToolResult, Turn
from dragoman.translate.passes.adapt_turns import INSTRUCTION_ROLES
from dragoman.translate.protocols.messages.build_content import ContentBuilder
from dragoman.translate.protocols.messages.wire import HOSTED_RESULT, HOSTED_USES, NOT_IN_IDS, Wire

_get_parts = attrgetter("parts")
_THINKING = ("thinking", "redacted_thinking")
_OPENING = "(continue)"
_NO_RESULT = "[no result]"


class _CallIds(Struct, eq=False):
    """Give each call of a request its own id in Anthropic's alphabet; equal requests get equal ids."""

    _taken: set[str] = set()
    _counts: dict[str, int] = {}

    def choose_id(self, id: str) -> str:
        stem = NOT_IN_IDS.sub("_", id) or "call"
        name = stem
        while name in self._taken:
            count = self._counts.get(stem, 1) + 1
            self._counts[stem] = count
            name = f"{stem}-{count}"
        self._taken.add(name)
        return name


class _Run(Struct):
    """Consecutive parts of one role."""

    role: str  # user, assistant, system
    parts: list[Part]
    at: str


class _PairedCall(Struct):
    """A call, its id and the result that must follow it."""

    call: ToolCall
    id: str
    result: ToolResult | None = None


def build_system(leading: Iterable[Turn], more: Sequence[str], content: ContentBuilder) -> str | list[Wire] | None:
    """Build the system prompt; `more` are the gateway's own instructions."""
    blocks: list[Wire] = []
    parts = tuple(chain.from_iterable(map(_get_parts, leading)))
    for part in parts:
        if type(part) is not Text and not content.same_protocol:
            content.ledger.record_dropped(part.at, "instructions can hold only text")
        elif (block := content.block(part)) is not None:
            blocks.append(block)
    if more:
        return blocks + [{"type": "text", "text": text} for text in more]
    return content.keep_form(parts, blocks) or None


def build_messages(turns: Sequence[Turn], profile: Profile, content: ContentBuilder) -> list[Wire]:
    """Build the conversation after its leading instructions."""
    return _build_unchanged(turns, content) if content.same_protocol else _build_reshaped(turns, profile, content)


def _build_unchanged(turns: Sequence[Turn], content: ContentBuilder) -> list[Wire]:
    messages: list[Wire] = []
    for turn in turns:
        blocks = [block for part in turn.parts if (block := content.block(part)) is not None]
        message: Wire = {"role": ROLE_NAMES[turn.role], "content": content.keep_form(turn.parts, blocks)}
        restore(message, turn.ext)
        messages.append(message)
    return messages


def _build_reshaped(turns: Sequence[Turn], profile: Profile, content: ContentBuilder) -> list[Wire]:
    runs = _find_runs(turns, profile, content)
    pairs = _pair_calls(runs, content)
    messages: list[Wire] = []
    pending: list[_PairedCall] = []
    for index, run in enumerate(runs):
        if pending and run.role != "user":
            _add_message(messages, "user", _build_results(pending, content))
            pending = []
        blocks = _build_results(pending, content) if pending else []
        blocks += _build_blocks(run, pairs[index], content)
        pending = pairs[index]
        _add_message(messages, run.role, blocks)
    if pending:
        _add_message(messages, "user", _build_results(pending, content))
    if not messages or messages[0]["role"] != "user":
        at = turns[0].at if turns else content.request.pointer("turns")
        if messages and content.protocol == "gemini":  # Google refuses it as well
            raise BadRequest(at, "A conversation must begin with a turn of the user.")
        content.ledger.record_invented(at, "a conversation must begin with a user turn")
        messages.insert(0, {"role": "user", "content": [{"type": "text", "text": _OPENING}]})
    if messages[-1]["role"] == "assistant":
        _finish_prefill(messages[-1], turns[-1].at, profile, content)
    return messages


def _add_message(messages: list[Wire], role: str, blocks: list[Wire]) -> None:
    if not blocks:
        return
    if messages and messages[-1]["role"] == role:
        blocks = [*_blocks_in(messages.pop()), *blocks]
    if role == "assistant" and not any(_is_hosted(block) for block in blocks):
        blocks.sort(key=lambda block: block["type"] not in _THINKING)
    messages.append({"role": role, "content": blocks})


def _is_hosted(block: Wire) -> bool:
    """Whether a tool of the vendor wrote the block: thinking between such blocks stays where it is."""
    kind = str(block["type"])
    return kind in HOSTED_USES or kind.endswith(HOSTED_RESULT)


def _blocks_in(message: Wire) -> list[Wire]:
    blocks = message["content"]
    assert isinstance(blocks, list)
    return blocks


def _find_runs(turns: Sequence[Turn], profile: Profile, content: ContentBuilder) -> list[_Run]:
    """Return the turns as runs; later instructions stay system text if the model allows it, else become tagged text."""
    runs: list[_Run] = []
    before = ""
    followers = _next_speakers(turns) if profile.later_system else ()
    for index, turn in enumerate(turns):
        parts: Sequence[Part] = turn.parts
        if turn.role not in INSTRUCTION_ROLES:
            role = before = ROLE_NAMES[turn.role]
        elif profile.later_system and before == "user" and followers[index] is Role.ASSISTANT:
            role, parts = "system", [part for part in parts if _is_text(part, content)]
        else:
            content.ledger.record_approximated(turn.at, "later instructions are sent as tagged text in a user turn")
            role, parts = "user", list(map(_tag_text, parts))
            before = role
        if runs and runs[-1].role == role:
            runs[-1].parts += parts
        else:
            runs.append(_Run(role, list(parts), turn.at))
    return runs


def _next_speakers(turns: Sequence[Turn]) -> list[Role]:
    """Return for each turn the role that speaks next; after the last one it is the assistant."""
    following = Role.ASSISTANT
    roles: list[Role] = []
    for turn in reversed(turns):
        if turn.role not in INSTRUCTION_ROLES:
            following = turn.role
        roles.append(following)
    return roles[::-1]


def _is_text(part: Part, content: ContentBuilder) -> bool:
    if isinstance(part, Text):
        return True
    content.ledger.record_dropped(part.at, "instructions can hold only text")
    return False


def _tag_text(part: Part) -> Part:
    if not isinstance(part, Text) or not part.text.strip():
        return part
    return Text(f"<system>\n{part.text}\n</system>", part.at, cache=part.cache)


def _pair_calls(runs: Sequence[_Run], content: ContentBuilder) -> list[list[_PairedCall]]:
    """Return the calls of each run with their results, and remove the results from where they stood."""
    ids = _CallIds()
    open_pairs: dict[str, _PairedCall] = {}
    pairs: list[list[_PairedCall]] = []
    for run in runs:
        calls: list[_PairedCall] = []
        remaining: list[Part] = []
        for part in run.parts:
            if type(part) is ToolCall:
                calls.append(_PairedCall(part, ids.choose_id(part.id)))
            elif type(part) is ToolResult:
                if (pair := open_pairs.get(part.call_id)) is not None:
                    _set_result(pair, part, content)
                else:
                    remaining += _orphan_as_text(part, content)
                continue
            remaining.append(part)
        run.parts = remaining
        pairs.append(calls)
        for pair in calls:
            open_pairs[pair.call.id] = pair
    return pairs


def _set_result(pair: _PairedCall, result: ToolResult, content: ContentBuilder) -> None:
    if pair.result is not None:
        content.ledger.record_dropped(pair.result.at, "a call has one result: the last one counts")
    pair.result = result


def _orphan_as_text(result: ToolResult, content: ContentBuilder) -> list[Part]:
    content.ledger.record_approximated(result.at, "a result without a call is sent as text")
    return [Text(f"[result of {result.call_id}]", result.at), *result.content]


def _build_results(pairs: Iterable[_PairedCall], content: ContentBuilder) -> list[Wire]:
    return [_build_result(pair, content) for pair in pairs]


def _build_result(pair: _PairedCall, content: ContentBuilder) -> Wire:
    if pair.result is not None:
        return content.result(pair.result, pair.id)
    content.ledger.record_invented(pair.call.at, "every call must have a result")
    missing = [{"type": "text", "text": _NO_RESULT}]
    return {"type": "tool_result", "tool_use_id": pair.id, "content": missing, "is_error": True}


def _build_blocks(run: _Run, pairs: Iterable[_PairedCall], content: ContentBuilder) -> list[Wire]:
    ids = iter(pairs)
    blocks: list[Wire] = []
    for part in run.parts:
        block = content.call(part, next(ids).id) if type(part) is ToolCall else content.block(part)
        if block is not None:
            blocks.append(block)
    return blocks


def _finish_prefill(message: Wire, at: str, profile: Profile, content: ContentBuilder) -> None:
    """Finish a conversation that ends with an assistant turn, which not every model can continue."""
    blocks = _blocks_in(message)
    if any(_is_hosted(block) for block in blocks):  # its own paused reply, which every model continues
        return
    if not profile.prefill:
        raise BadRequest(at, "This model cannot continue an assistant turn. End the conversation with a user turn.")
    text = blocks[-1].get("text")
    if isinstance(text, str) and text != text.rstrip():
        content.ledger.record_approximated(at, "trailing white space of the last assistant turn is removed")
        blocks[-1]["text"] = text.rstrip()
