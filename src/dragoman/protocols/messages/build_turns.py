"""Build the system prompt and the messages in the order and shape that Anthropic demands."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from dragoman.hub.ext import restore
from dragoman.hub.failure import BadRequest
from dragoman.hub.profile import Profile
from dragoman.hub.request import Part, Role, Text, ToolCall, ToolResult, Turn
from dragoman.passes.tag_instructions import INSTRUCTING
from dragoman.protocols.messages.build_content import Writer, as_content
from dragoman.protocols.messages.wire import NOT_IN_IDS, Wire

_THINKING = ("thinking", "redacted_thinking")
_OPENING = "(continue)"
_UNANSWERED = "[no result]"


class Ids:
    """Gives each call of a request its own id; equal requests get equal ids."""

    __slots__ = ("_counts", "_taken")

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def fresh(self, id: str) -> str:
        stem = NOT_IN_IDS.sub("_", id) or "call"
        name = stem
        while name in self._taken:
            count = self._counts.get(stem, 1) + 1
            self._counts[stem] = count
            name = f"{stem}-{count}"
        self._taken.add(name)
        return name


class _Said(Struct):
    """What one side says in one run."""

    role: str  # user, assistant, system
    parts: list[Part]
    at: str


class _Slot(Struct):
    """A call and the result that must follow it."""

    call: ToolCall
    id: str
    result: ToolResult | None = None


def write_system(leading: Iterable[Turn], more: Sequence[str], writer: Writer) -> str | list[Wire] | None:
    """The system prompt; `more` are instructions of our own."""
    blocks: list[Wire] = []
    for part in (part for turn in leading for part in turn.parts):
        if not isinstance(part, Text) and not writer.own:
            writer.ledger.note_dropped(part.at, "instructions may hold text only")
        elif (block := writer.block(part)) is not None:
            blocks.append(block)
    blocks += [{"type": "text", "text": text} for text in more]
    plain = all(set(block) == {"type", "text"} for block in blocks)
    if plain and (not writer.own or len(blocks) == 1):
        return "\n\n".join(str(block["text"]) for block in blocks) or None
    return blocks or None


def write_messages(turns: Sequence[Turn], profile: Profile, writer: Writer) -> list[Wire]:
    """The conversation after its leading instructions."""
    messages = _as_they_came(turns, writer) if writer.own else _in_shape(turns, profile, writer)
    return [{**message, "content": as_content(_blocks_of(message))} for message in messages]


def _as_they_came(turns: Sequence[Turn], writer: Writer) -> list[Wire]:
    messages: list[Wire] = []
    for turn in turns:
        blocks = [block for part in turn.parts if (block := writer.block(part)) is not None]
        message: Wire = {"role": turn.role.value, "content": blocks}
        restore(message, turn.ext)
        messages.append(message)
    return messages


def _in_shape(turns: Sequence[Turn], profile: Profile, writer: Writer) -> list[Wire]:
    runs = list(_merged(_placed(turns, profile, writer)))
    slots = _paired(runs, writer)
    messages: list[Wire] = []
    due: list[_Slot] = []
    for index, run in enumerate(runs):
        if due and run.role != "user":
            _say(messages, "user", _results(due, writer))
            due = []
        blocks = [*_results(due, writer), *_blocks(run, slots[index], writer)]
        due = slots[index]
        _say(messages, run.role, blocks)
    if due:
        _say(messages, "user", _results(due, writer))
    if not messages or messages[0]["role"] != "user":
        at = turns[0].at if turns else writer.turns_at
        writer.ledger.note_invented(at, "a conversation must open with a user's turn")
        messages.insert(0, {"role": "user", "content": [{"type": "text", "text": _OPENING}]})
    if messages[-1]["role"] == "assistant":
        _end_prefill(messages[-1], turns[-1].at, profile, writer)
    return messages


def _say(messages: list[Wire], role: str, blocks: list[Wire]) -> None:
    if not blocks:
        return
    if messages and messages[-1]["role"] == role:
        blocks = [*_blocks_of(messages.pop()), *blocks]
    if role == "assistant":
        blocks.sort(key=lambda block: block["type"] not in _THINKING)
    messages.append({"role": role, "content": blocks})


def _blocks_of(message: Wire) -> list[Wire]:
    blocks = message["content"]
    assert isinstance(blocks, list)
    return blocks


def _placed(turns: Sequence[Turn], profile: Profile, writer: Writer) -> Iterator[_Said]:
    """Every turn in its place; later instructions natively where the model allows it there, else as tagged text."""
    before = ""
    followers = _followers(turns)
    for turn, following in zip(turns, followers, strict=True):
        if turn.role not in INSTRUCTING:
            before = turn.role.value
            yield _Said(before, list(turn.parts), turn.at)
            continue
        if profile.later_system and before == "user" and following is Role.ASSISTANT:
            yield _Said("system", [part for part in turn.parts if _is_text(part, writer)], turn.at)
            continue
        writer.ledger.note_approximated(turn.at, "later instructions are told as tagged text of the user's turn")
        before = "user"
        yield _Said("user", [_tagged(part) for part in turn.parts], turn.at)


def _followers(turns: Sequence[Turn]) -> list[Role]:
    """Whose turn it is after each turn's instructions; at the end it is the assistant's."""
    following = Role.ASSISTANT
    roles: list[Role] = []
    for turn in reversed(turns):
        if turn.role not in INSTRUCTING:
            following = turn.role
        roles.append(following)
    return roles[::-1]


def _is_text(part: Part, writer: Writer) -> bool:
    if isinstance(part, Text):
        return True
    writer.ledger.note_dropped(part.at, "instructions may hold text only")
    return False


def _tagged(part: Part) -> Part:
    if not isinstance(part, Text) or not part.text.strip():
        return part
    return Text(f"<system>\n{part.text}\n</system>", part.at, cache=part.cache)


def _merged(runs: Iterable[_Said]) -> Iterator[_Said]:
    last: _Said | None = None
    for run in runs:
        if last is not None and last.role == run.role:
            last.parts += run.parts
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def _paired(runs: Sequence[_Said], writer: Writer) -> list[list[_Slot]]:
    """The calls of each run with their results, which leave the place where they stood."""
    ids = Ids()
    open_slots: dict[str, _Slot] = {}
    slots: list[list[_Slot]] = []
    for run in runs:
        made = [_Slot(part, ids.fresh(part.id)) for part in run.parts if isinstance(part, ToolCall)]
        slots.append(made)
        kept: list[Part] = []
        for part in run.parts:
            if not isinstance(part, ToolResult):
                kept.append(part)
            elif (slot := open_slots.get(part.call_id)) is not None:
                _answer(slot, part, writer)
            else:
                kept += _orphan(part, writer)
        run.parts = kept
        open_slots.update((slot.call.id, slot) for slot in made)
    return slots


def _answer(slot: _Slot, result: ToolResult, writer: Writer) -> None:
    if slot.result is not None:
        writer.ledger.note_dropped(slot.result.at, "a call has one result: the last one counts")
    slot.result = result


def _orphan(result: ToolResult, writer: Writer) -> list[Part]:
    writer.ledger.note_approximated(result.at, "a result whose call is missing is told as text")
    return [Text(f"[result of {result.call_id}]", result.at), *result.content]


def _results(slots: Iterable[_Slot], writer: Writer) -> list[Wire]:
    return [_result(slot, writer) for slot in slots]


def _result(slot: _Slot, writer: Writer) -> Wire:
    if slot.result is not None:
        return writer.result(slot.result, slot.id)
    writer.ledger.note_invented(slot.call.at, "every call must have a result")
    return {"type": "tool_result", "tool_use_id": slot.id, "content": _UNANSWERED, "is_error": True}


def _blocks(run: _Said, slots: Iterable[_Slot], writer: Writer) -> list[Wire]:
    ids = iter(slots)
    blocks: list[Wire] = []
    for part in run.parts:
        block = writer.call(part, next(ids).id) if isinstance(part, ToolCall) else writer.block(part)
        if block is not None:
            blocks.append(block)
    return blocks


def _end_prefill(message: Wire, at: str, profile: Profile, writer: Writer) -> None:
    """A last turn of the assistant is to be continued: models that cannot do so refuse it."""
    if not profile.prefill:
        raise BadRequest(at, "this model cannot continue a turn of the assistant; end with a user's turn")
    blocks = _blocks_of(message)
    text = blocks[-1].get("text")
    if isinstance(text, str) and text != text.rstrip():
        writer.ledger.note_approximated(at, "white space at the end of a turn to be continued is not accepted")
        blocks[-1]["text"] = text.rstrip()
