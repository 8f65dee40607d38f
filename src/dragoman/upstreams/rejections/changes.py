"""Changes of a request that an upstream has rejected, as edits of its bytes: only what was rejected differs."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
from msgspec import Struct

from dragoman.net.headers import Header
from dragoman.translate.framing.jsonedit import EVERY, Change, Path, Put, edit, list_elements
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.profile import effort_for_budget
from dragoman.translate.hub.request import Request
from dragoman.translate.protocols.gemini.wire import NO_SIGNATURE
from dragoman.upstreams.rejections.client_paths import find_client_path
from dragoman.upstreams.rejections.sent import MESSAGES, Sent, expand, find_key, format_path, get_value, may_leave_out

Turn = dict[str, object]
_encode = msgspec.json.encode
_SEPARATOR = "\n\n"
_INSTRUCTIONS = ("system", "developer")
_MERGED = frozenset(("type", "role", "content", "id", "status"))  # all that messages have which can be joined
_SAMPLING = ("temperature", "top_p", "top_k")
_BUDGETS = {"low": 1024, "medium": 8192, "high": 24576, "xhigh": 32768, "max": 32768}
_MIN_BUDGET = 1024
_CONTINUE = "continue"
_OUTPUT = "function_call_output"
_MAX_MARKS = 4
_BETAS = b"anthropic-beta"
_BLOCK = re.compile(
    r"(?P<section>tools|system|messages)[.\[/](?P<first>\d{1,6})\]?(?:[./]content[.\[/](?P<second>\d{1,6})\]?)?"
)
_MARKS: tuple[Path, ...] = (
    ("tools", EVERY, "cache_control"),
    ("system", EVERY, "cache_control"),
    ("messages", EVERY, "content", EVERY, "cache_control"),
)


class Edits(Struct, frozen=True):
    """What is done to a request; nothing if the request has nothing of what was rejected."""

    values: tuple[tuple[Path, Change], ...] = ()
    headers: frozenset[bytes] = frozenset()  # that are left out
    losses: tuple[tuple[str, LossKind], ...] = ()  # JSON pointers

    def __bool__(self) -> bool:
        return bool(self.values or self.headers)


NOTHING = Edits()
MakeEdits = Callable[[Sent, Path], Edits]  # the path that was learnt -> what is done about it in this request


def apply(sent: Sent, edits: Edits, why: str, ledger: Ledger, request: Request | None = None) -> Sent:
    """Return the request with the edits, and note them as losses; `request`: what it was translated from."""
    for at, how in edits.losses:
        pointer = at if request is None else find_client_path(request, sent, at)
        if how is LossKind.DROPPED:
            ledger.record_dropped(pointer, why)
        elif how is LossKind.INVENTED:
            ledger.record_invented(pointer, why)
        else:
            ledger.record_approximated(pointer, why)
    headers: tuple[Header, ...] = tuple(field for field in sent.headers if field[0] not in edits.headers)
    return Sent(sent.protocol, edit(sent.body, edits.values) if edits.values else sent.body, headers)


def drop_field(sent: Sent, path: Path) -> Edits:
    """Leave out a field, in every element where the path has a list."""
    found = expand(path, sent.tree)
    free = [at for at in found if may_leave_out(at[-1], get_value(sent.tree, at))]
    values = ((path, None),) if free and len(free) == len(found) else tuple((at, None) for at in free)
    return Edits(values, losses=tuple((format_path(at), LossKind.DROPPED) for at in free))


def drop_fields(sent: Sent, paths: Sequence[Path]) -> Edits:
    """Leave out several fields in one pass; what is lost within another of them is not noted as well."""
    all_edits = [drop_field(sent, path) for path in paths]
    lost = dict.fromkeys(at for edits in all_edits for at, _ in edits.losses)
    outer = [at for at in lost if not any(at[:end] in lost for end, sign in enumerate(at) if sign == "/" and end)]
    values = tuple(value for edits in all_edits for value in edits.values)
    return Edits(values, losses=tuple((at, LossKind.DROPPED) for at in outer))


def drop_all(*names: str) -> MakeEdits:
    """Return a change that leaves out these top-level fields."""

    def drop(sent: Sent, path: Path) -> Edits:
        present = [name for name in names if name in sent.tree]
        losses = tuple((f"/{name}", LossKind.DROPPED) for name in present)
        return Edits(tuple(((name,), None) for name in present), losses=losses)

    return drop


drop_sampling = drop_all(*_SAMPLING)
_drop_thinking = drop_all("reasoning_effort", "reasoning", "think", "thinking")


def drop_effort(sent: Sent, path: Path) -> Edits:
    """Leave out all that asks for thinking."""
    edits, efforts = _drop_thinking(sent, path), _drop_output_effort(sent)
    losses = edits.losses or tuple((format_path(at), LossKind.DROPPED) for at, _ in efforts)
    return Edits((*edits.values, *efforts), losses=losses)


def _drop_output_effort(sent: Sent) -> tuple[tuple[Path, Change], ...]:
    config = sent.tree.get("output_config")
    if not isinstance(config, dict) or "effort" not in config:
        return ()
    return ((("output_config",) if len(config) == 1 else ("output_config", "effort"), None),)


def rename(old: str, new: str) -> MakeEdits:
    """Return a change that writes a top-level field under another name."""

    def move(sent: Sent, path: Path) -> Edits:
        if old not in sent.tree:
            return NOTHING
        moved: list[tuple[Path, Change]] = [((old,), None)]
        if new not in sent.tree:
            moved.append(((new,), Put(_encode(sent.tree[old]))))
        return Edits(tuple(moved), losses=((f"/{old}", LossKind.APPROXIMATED),))

    return move


def drop_betas(sent: Sent, path: Path) -> Edits:
    """Leave out all betas: Bedrock does not say which one it rejects."""
    body = "anthropic_beta" in sent.tree
    header = any(name == _BETAS for name, _ in sent.headers)
    values: tuple[tuple[Path, Change], ...] = ((("anthropic_beta",), None),) if body else ()
    pointer = "/anthropic_beta" if body else "/headers/anthropic-beta"
    return Edits(values, frozenset((_BETAS,)) if header else frozenset(), ((pointer, LossKind.DROPPED),))


def drop_keyword(sent: Sent, path: Path) -> Edits:
    """Move a keyword of JSON Schema into the description, in every schema."""
    keyword = str(path[-1])
    values: list[tuple[Path, Change]] = []
    losses: list[tuple[str, LossKind]] = []
    for at, schema in sent.find_schemas():
        if keyword in schema:
            words = f"({keyword}: {_encode(schema[keyword]).decode()})"
            described = schema.get("description")
            text = f"{described}\n{words}" if isinstance(described, str) and described else words
            values += [((*at, keyword), None), ((*at, "description"), Put(_encode(text)))]
            losses.append((format_path((*at, keyword)), LossKind.APPROXIMATED))
    return Edits(tuple(values), losses=tuple(losses))


def send_adaptive(sent: Sent, path: Path) -> Edits:
    """Let the model choose how much it thinks, with the effort nearest to the budget."""
    thinking = sent.tree.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return NOTHING
    budget = thinking.get("budget_tokens")
    kept = {key: value for key, value in thinking.items() if key not in ("type", "budget_tokens")}
    values: list[tuple[Path, Change]] = [(("thinking",), _encode({"type": "adaptive", **kept}))]
    config = sent.tree.get("output_config")
    effort = _encode(effort_for_budget(budget if isinstance(budget, int) else None))
    if not isinstance(config, dict):
        values.append((("output_config",), Put(b'{"effort":' + effort + b"}")))
    elif "effort" not in config:
        values.append((("output_config", "effort"), Put(effort)))
    return Edits(tuple(values), losses=(("/thinking", LossKind.APPROXIMATED),))


def send_budget(sent: Sent, path: Path) -> Edits:
    """Give the model a budget for its thinking, below the limit of the reply; no thinking where none fits."""
    thinking = sent.tree.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "adaptive":
        return NOTHING
    config = sent.tree.get("output_config")
    effort = config.get("effort") if isinstance(config, dict) else None
    limit = sent.tree.get("max_tokens")
    budget = min(_BUDGETS.get(str(effort), _BUDGETS["medium"]), (limit if isinstance(limit, int) else 0) - 1)
    values: list[tuple[Path, Change]] = [(("thinking",), None)]
    if budget >= _MIN_BUDGET:
        values = [(("thinking",), _encode({"type": "enabled", "budget_tokens": budget}))]
    return Edits((*values, *_drop_output_effort(sent)), losses=(("/thinking", LossKind.APPROXIMATED),))


def stop_thinking(sent: Sent, path: Path) -> Edits:
    """Switch thinking off, where a tool must be called."""
    choice = sent.tree.get("tool_choice")
    mode = choice.get("type") if isinstance(choice, dict) else choice
    if mode in (None, "auto", "none") or sent.tree.get("thinking") == {"type": "disabled"}:
        return NOTHING
    off: tuple[tuple[Path, Change], ...] = ((("thinking",), Put(b'{"type":"disabled"}')), (("reasoning_effort",), None))
    name = next((name for name in ("reasoning_effort", "thinking") if name in sent.tree), None)
    how = LossKind.INVENTED if name is None else LossKind.APPROXIMATED
    return Edits(off, losses=((f"/{name or 'thinking'}", how),))


def find_effort(sent: Sent) -> tuple[Path, object]:
    """Return where the effort stands, and which it is."""
    places: tuple[Path, ...] = (("reasoning_effort",), ("reasoning", "effort"), ("output_config", "effort"))
    found = ((at, effort) for at in places if (effort := get_value(sent.tree, at)) is not None)
    return next(found, ((), None))


def replace_effort(refused: str, named: str) -> MakeEdits:
    """Return a change that sends one effort as another; those that were not refused stay."""

    def put(sent: Sent, path: Path) -> Edits:
        at, effort = find_effort(sent)
        if effort != refused:
            return NOTHING
        return Edits(((at, _encode(named)),), losses=((format_path(at), LossKind.APPROXIMATED),))

    return put


def send_no_effort(sent: Sent, path: Path) -> Edits:
    """Ask for no reasoning, where tools and reasoning exclude each other."""
    if not sent.tree.get("tools") or sent.tree.get("reasoning_effort") == "none":
        return NOTHING
    return Edits(((("reasoning_effort",), Put(b'"none"')),), losses=(("/reasoning_effort", LossKind.APPROXIMATED),))


def find_mark_place(sent: Sent, words: str) -> str | None:
    """Return where the block stands that an error names by its indexes: among the tools, in `system`, or its type."""
    named = _BLOCK.search(words)
    if named is None:
        return None
    block: Path = (named["section"], int(named["first"]))
    if named["second"] is not None:
        block = (*block, "content", int(named["second"]))
    place = _find_place(sent, block)
    return place if isinstance(place, str) else None


def drop_marks(place: str) -> MakeEdits:
    """Return a change that leaves out the cache marks of all blocks in such a place."""

    def drop(sent: Sent, path: Path) -> Edits:
        marked = [at for pattern in _MARKS for at in expand(pattern, sent.tree) if _find_place(sent, at[:-1]) == place]
        losses = tuple((format_path(at), LossKind.DROPPED) for at in marked)
        return Edits(tuple((at, None) for at in marked), losses=losses)

    return drop


def _find_place(sent: Sent, block: Path) -> object:
    if block[0] != "messages":
        return block[0]
    value = get_value(sent.tree, block)
    return value.get("type") if isinstance(value, dict) else None


def mark_last_block(sent: Sent, path: Path) -> Edits:
    """Move the setting to cache the whole request onto the last block of the last message.

    Texts become blocks in every message: what a message looks like must not depend on whether it is the last.
    """
    mark = sent.tree.get("cache_control")
    if mark is None:
        return NOTHING
    values: list[tuple[Path, Change]] = [(("cache_control",), None)]
    turns, can_mark = sent.turns, sent.body.count(b'"cache_control"') <= _MAX_MARKS
    how = LossKind.DROPPED
    for number, turn in enumerate(turns):
        content, is_last = turn.get("content"), can_mark and number == len(turns) - 1
        if isinstance(content, str) and content:
            block = {"type": "text", "text": content, **({"cache_control": mark} if is_last else {})}
            values.append((("messages", number, "content"), _encode([block])))
            how = LossKind.APPROXIMATED if is_last else how
        elif is_last and isinstance(content, list) and content and _may_be_marked(content[-1]):
            at = ("messages", number, "content", len(content) - 1, "cache_control")
            values.append((at, Put(_encode(mark))))
            how = LossKind.APPROXIMATED
    return Edits(tuple(values), losses=(("/cache_control", how),))


def _may_be_marked(block: object) -> bool:
    if not isinstance(block, dict) or block.get("type") in ("thinking", "redacted_thinking"):
        return False
    return bool(block.get("text", True)) and "cache_control" not in block


def add_placeholders(sent: Sent, path: Path) -> Edits:
    """Give the first call of each message the documented signature that stands for none, where it has none."""
    calls = [(number, _find_call(turn)) for number, turn in enumerate(sent.turns)]
    found = tuple(("contents", number, "parts", index, "thoughtSignature") for number, index in calls if index >= 0)
    values = tuple((at, Put(_encode(NO_SIGNATURE))) for at in found)
    return Edits(values, losses=tuple((format_path(at), LossKind.APPROXIMATED) for at in found))


def _find_call(turn: Turn) -> int:
    """Return the index of a message's first call, if that has no signature, else -1."""
    parts = turn.get("parts")
    for index, part in enumerate(parts if isinstance(parts, list) else []):
        if find_key(part, "functionCall") is not None:
            return index if find_key(part, "thoughtSignature") is None else -1
    return -1


# Messages


def end_with_user(sent: Sent, path: Path) -> Edits:
    """Add a user's message after the assistant's beginning of a reply, which some models do not continue."""
    turns = sent.turns
    if not turns or turns[-1].get("role") != "assistant":
        return NOTHING
    key = MESSAGES[sent.protocol]
    last = list_elements(sent.body, (key,))[-1]
    added = _encode({"role": "user", "content": _CONTINUE})
    at = (key, len(turns) - 1)
    return Edits(((at, last + b"," + added),), losses=((format_path(at), LossKind.APPROXIMATED),))


def replace_role(old: str, new: str) -> MakeEdits:
    """Return a change that gives messages another role."""

    def put(sent: Sent, path: Path) -> Edits:
        found = [number for number, turn in enumerate(sent.turns) if turn.get("role") == old]
        values = tuple(((MESSAGES[sent.protocol], number, "role"), _encode(new)) for number in found)
        return Edits(values, losses=tuple((format_path(at), LossKind.APPROXIMATED) for at, _ in values))

    return put


def add_reasoning(sent: Sent, path: Path) -> Edits:
    """Give every assistant's message its thinking, empty where it has none."""
    found = [
        number
        for number, turn in enumerate(sent.turns)
        if turn.get("role") == "assistant" and "reasoning_content" not in turn
    ]
    values = tuple((("messages", number, "reasoning_content"), Put(b'""')) for number in found)
    return Edits(values, losses=tuple((format_path(at), LossKind.APPROXIMATED) for at, _ in values[:1]))


def tag_later_system(sent: Sent, path: Path) -> Edits:
    """Send later instructions as tagged text at the end of the user's message before them.

    They keep their position: at the front of the prompt, a new one would invalidate all caches. Several messages of
    instructions that stand there already are one.
    """
    return _rewrite(sent, partial(_move_instructions, protocol=sent.protocol, may_lead=_may_lead(sent)))


def join_tool_text(sent: Sent, path: Path) -> Edits:
    """Send a user's text that follows the results of tools at the end of the last result."""
    move = _move_into_results if sent.protocol == "messages" else _move_after_results
    return _rewrite(sent, partial(move, protocol=sent.protocol))


def merge_neighbours(sent: Sent, path: Path) -> Edits:
    """Join neighbouring messages of one role, for templates in which roles alternate."""
    return _rewrite(sent, partial(_merge, kind=_name_text(sent.protocol)))


Turns = list[Turn | None]  # None: it has become a part of another one


def _rewrite(sent: Sent, change: Callable[[Turns], None]) -> Edits:
    """Return edits that rewrite only the messages that the change has replaced."""
    old = sent.turns
    new: Turns = list(old)
    change(new)
    key = MESSAGES[sent.protocol]
    changed = [number for number, turn in enumerate(new) if turn is not old[number]]
    values = tuple(((key, number), None if (turn := new[number]) is None else _encode(turn)) for number in changed)
    gone = [
        number for number in changed if (turn := new[number]) is None or turn.get("role") != old[number].get("role")
    ]
    return Edits(values, losses=tuple((f"/{key}/{number}", LossKind.APPROXIMATED) for number in gone or changed))


def _may_lead(sent: Sent) -> bool:
    """Whether the first message may have the role of instructions: it is what the prompt begins with."""
    return sent.protocol == "chat" or (sent.protocol == "responses" and not sent.tree.get("instructions"))


def _name_text(protocol: str) -> str:
    """Return the type of a part with a user's text."""
    return "input_text" if protocol == "responses" else "text"


def _move_instructions(turns: Turns, protocol: str, may_lead: bool) -> None:
    before: int | None = None  # the last message that is neither moved nor leading
    for number, turn in enumerate(turns):
        assert turn is not None
        if turn.get("role") not in _INSTRUCTIONS:
            before = number
            continue
        if before is None and may_lead:
            _join_leading(turns, number, protocol)
            continue
        part = {"text": f"<system>\n{_join_text(turn)}\n</system>", **_find_mark(turn)}
        holder = None if before is None else turns[before]
        joined = _append_text(holder, part, protocol) if holder is not None and holder.get("role") == "user" else None
        if joined is not None and before is not None:
            turns[before], turns[number] = joined, None
        else:
            turns[number] = _append_text({"role": "user", "content": ""}, part, protocol)
            before = number


def _join_leading(turns: Turns, number: int, protocol: str) -> None:
    """Append leading instructions to the first message: templates take a second one for a later one."""
    first, turn = turns[0], turns[number]
    assert first is not None
    assert turn is not None
    joined = None if number == 0 else _append_text(first, {"text": _join_text(turn)}, protocol)
    if joined is not None:
        role = first["role"] if first["role"] == turn["role"] else "system"
        turns[0], turns[number] = {**joined, "role": role}, None


def _move_after_results(turns: Turns, protocol: str) -> None:
    result: int | None = None  # the result of a tool that directly precedes
    for number, turn in enumerate(turns):
        assert turn is not None
        if turn.get("role") == "tool" or turn.get("type") == _OUTPUT:
            result = number
            continue
        holder = None if result is None or not _is_text(turn) else turns[result]
        joined = None if holder is None else _append_text(holder, {"text": _join_text(turn)}, protocol)
        if joined is None or result is None:
            result = None
        else:
            turns[result], turns[number] = joined, None


def _move_into_results(turns: Turns, protocol: str) -> None:
    """Do so where a user's message has the results as well."""
    result: int | None = None  # the message that ends with a result
    for number, turn in enumerate(turns):
        assert turn is not None
        content = turn.get("content")
        blocks = content if isinstance(content, list) else []
        last = max((at for at, block in enumerate(blocks) if _find_type(block) == "tool_result"), default=None)
        if last is not None:
            is_end = all(_find_type(block) == "text" for block in blocks[last + 1 :])
            if is_end and len(blocks) > last + 1:
                turns[number] = {**turn, "content": _join_result(blocks[: last + 1], blocks[last + 1 :])}
            result = number if is_end else None
            continue
        holder = None if result is None or not _is_text(turn) else turns[result]
        if holder is None or result is None:
            result = None
        else:
            results, texts = holder["content"], _as_parts(turn.get("content"), "text")
            assert isinstance(results, list)
            turns[result], turns[number] = {**holder, "content": _join_result(results, texts)}, None


def _join_result(blocks: list[dict[str, object]], texts: Iterable[object]) -> list[dict[str, object]]:
    """Return the blocks with texts at the end of the last one, a result."""
    content = blocks[-1].get("content") or []
    return [*blocks[:-1], {**blocks[-1], "content": [*_as_parts(content, "text"), *texts]}]


def _merge(turns: Turns, kind: str) -> None:
    before: int | None = None
    for number, turn in enumerate(turns):
        assert turn is not None
        holder = None if before is None else turns[before]
        role = turn.get("role")
        is_same = holder is not None and holder.get("role") == role and role in ("user", "assistant")
        of_role = kind if role == "user" else kind.replace("input", "output")
        joined = _join_turns(holder, turn, of_role) if is_same and holder is not None else None
        if joined is None:
            before = number
        else:
            assert before is not None
            turns[before], turns[number] = joined, None


def _join_turns(first: Turn, second: Turn, kind: str) -> Turn | None:
    if (first.keys() | second.keys()) - _MERGED:
        return None
    one, two = first.get("content"), second.get("content")
    if isinstance(one, str) and isinstance(two, str):
        return {**first, "content": f"{one}{_SEPARATOR}{two}"}
    return {**first, "content": [*_as_parts(one, kind), *_as_parts(two, kind)]}


def _as_parts(content: object, kind: str) -> Iterable[object]:
    return content if isinstance(content, list) else [{"type": kind, "text": content}]


def _append_text(turn: Turn, part: dict[str, object], protocol: str) -> Turn | None:
    """Return a message or result with a text as its last part; None if its content is of another shape.

    In Messages it is a part of its own even after a string, so that its bytes stay when its cache mark moves on.
    """
    key = "output" if turn.get("type") == _OUTPUT else "content"
    content = turn.get(key)
    if isinstance(content, str) and protocol != "messages":
        return {**turn, key: f"{content}{_SEPARATOR}{part['text']}" if content else part["text"]}
    if not isinstance(content, str | list):
        return None
    kind = _name_text(protocol)
    return {**turn, key: [*(_as_parts(content, kind) if content else ()), {"type": kind, **part}]}


def _find_mark(turn: Turn) -> dict[str, object]:
    """Return the cache mark of a message's last part, as the field that it is."""
    content = turn.get("content")
    last = content[-1] if isinstance(content, list) and content else None
    return {"cache_control": last["cache_control"]} if isinstance(last, dict) and "cache_control" in last else {}


def _is_text(turn: Turn) -> bool:
    """Whether this is only text, of a user or of instructions."""
    content = turn.get("content")
    if turn.get("role") not in ("user", *_INSTRUCTIONS) or not content:
        return False
    return isinstance(content, str) or (
        isinstance(content, list) and all(_find_type(part) in ("text", "input_text") for part in content)
    )


def _find_type(part: object) -> object:
    return part.get("type") if isinstance(part, dict) else None


def _join_text(turn: Turn) -> str:
    content = turn.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return _SEPARATOR.join(text for text in texts if isinstance(text, str))
