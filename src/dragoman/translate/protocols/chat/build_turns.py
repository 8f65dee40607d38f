"""Build Chat messages from hub turns, each tool result directly after the call it answers."""

import hashlib
import re
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec import Struct

from dragoman.translate.caching.breakpoints import mark_parts
from dragoman.translate.hub.ext import restore
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import OpaqueForm
from dragoman.translate.hub.profile import REPLAYS, Target
from dragoman.translate.hub.request import (
    ROLE_NAMES,
    Audio,
    Document,
    Foreign,
    Image,
    Part,
    Refusal,
    Request,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.translate.protocols.chat.build_content import PartBuilder, build_reasoning, find_call_signatures
from dragoman.translate.protocols.chat.wire import NAME, OPENAI, OPENAI_PROTOCOLS

_Wire = dict[str, object]
_USER, _ASSISTANT = Role.USER, Role.ASSISTANT  # looked up once: on Python 3.11, each look-up of a member is slow
_UNANSWERED = "[no result]"
_SEPARATOR = "\n\n"  # between texts that were separate blocks
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


class _PlacedResult(Struct, frozen=True):
    """A tool result, its position among all results, and the indexes of the runs of turns that hold it and its call."""

    place: int
    result: ToolResult
    run: int
    called_in: int  # the last run before it with a call of this id; -1: there is none


def build_messages(request: Request, target: Target, ledger: Ledger) -> list[_Wire]:
    messages = _Writer(request, target, ledger).messages()
    if "short_call_ids" in target.quirks:
        _shorten_call_ids(messages)
    return messages


def _shorten_call_ids(messages: list[_Wire]) -> None:
    """Replace ids of calls that are not nine letters or digits by such ids: the same ones for the same ids."""
    for message in messages:
        if isinstance(id := message.get("tool_call_id"), str):
            message["tool_call_id"] = _short_id(id)
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            call["id"] = _short_id(call["id"])


def _short_id(id: str) -> str:
    return id if _SHORT_ID.fullmatch(id) else hashlib.sha256(id.encode(errors="replace")).hexdigest()[:9]


class _Writer:
    __slots__ = (
        "_answered",
        "_has_lists",
        "_ledger",
        "_messages",
        "_parts",
        "_plain_text",
        "_request",
        "_results",
        "_runs",
        "_same_protocol",
        "_sent",
        "_target",
    )

    def __init__(self, request: Request, target: Target, ledger: Ledger) -> None:
        self._same_protocol = request.protocol == NAME
        self._request = request
        self._target = target
        self._ledger = ledger
        self._plain_text = "text_content" in target.quirks  # send content as a string if possible
        self._has_lists = target.cache.breakpoints and not self._same_protocol and not self._plain_text
        self._parts = PartBuilder(request.protocol, ledger)
        self._runs = _find_runs(request.turns)
        self._results: dict[str, deque[_PlacedResult]] | None = None  # by call, looked for once there is one
        self._sent: set[int] = set()  # results, by identity
        self._answered: set[str] = set()
        self._messages: list[_Wire] = []

    def messages(self) -> list[_Wire]:
        for run_index, run in enumerate(self._runs):
            if run[0].role is _ASSISTANT:
                # Each call of Responses is an item of its own; in Chat the calls of one step share a message.
                for turns in [[turn] for turn in run] if self._same_protocol else [run]:
                    self._write_assistant(turns, run_index)
            else:
                for turn in run:
                    self._write_turn(turn)
        if self._has_lists:
            same_vendor = self._request.protocol in OPENAI_PROTOCOLS
            head, marked = self._find_head(), self._parts.marked
            mark_parts(self._request, head, marked, self._target.cache, same_vendor=same_vendor)
        return self._messages

    def _find_head(self) -> _Wire | None:
        """Return the last part of the instructions at the beginning."""
        head: _Wire | None = None
        for message in takewhile(lambda message: message["role"] in ("system", "developer"), self._messages):
            content = message["content"]
            head = content[-1] if isinstance(content, list) and content else head
        return head

    # Instructions and users

    def _write_turn(self, turn: Turn) -> None:
        # Types are compared: a struct's class pattern that does not fit is slow.
        orphans: list[ToolResult] = []
        content: list[_Wire] = []
        role = turn.role
        for part in turn.parts:
            if type(part) is ToolResult:
                if self._is_orphan(part):
                    orphans.append(part)
            elif type(part) is Text:  # the most frequent
                content.append(self._parts.write_text(part))
            elif (wire := self._write_part(part, role)) is not None:
                content.append(wire)
        if orphans and role is _USER:
            content = [wire for result in orphans for wire in self._write_orphan(result)] + content
        if not content and any(isinstance(part, ToolResult | Foreign) for part in turn.parts):
            return  # the results are sent already, and foreign parts are in the ledger
        joined = self._plain_text or (role is not _USER and not self._same_protocol)
        # Where a part may get a breakpoint, content is always a list: its form must not depend on that.
        is_list = bool(content) and (self._has_lists or self._was_list(turn.parts))
        written = content if is_list else _as_content(content, joined)
        if "no_developer" in self._target.quirks and role is Role.DEVELOPER:
            role = Role.SYSTEM
        self._add({"role": ROLE_NAMES[role], "content": written}, turn)

    def _write_part(self, part: Part, role: Role) -> _Wire | None:
        match part:
            case Image() | Document() | Audio() | Foreign():
                return self._parts.write(part)
            case Refusal():
                return {"type": "text", "text": part.text}
            case _:
                why = f"Chat has no such part in a message of the {ROLE_NAMES[role]}"
                self._ledger.record_dropped(part.at, why)
                return None

    def _add(self, message: _Wire, *turns: Turn) -> None:
        if self._same_protocol:
            for turn in turns:
                restore(message, turn.ext)
        self._messages.append(message)

    # Tool results

    def _is_orphan(self, result: ToolResult) -> bool:
        """Return whether a result has not been sent; a second result of the same call is dropped."""
        if id(result) in self._sent:
            return False
        if result.call_id in self._answered:
            self._ledger.record_dropped(result.at, f"the call {result.call_id!r} already has a result")
            return False
        return True

    def _write_results(self, calls: list[ToolCall], run_index: int) -> None:
        """Write the results of these calls, wherever they stand: Chat wants them directly after the calls."""
        media: list[_Wire] = []
        # Only within this step: some servers use the same ids in every step.
        taken = {call.id: placed for call in calls if (placed := self._find_result(run_index, call.id)) is not None}
        for placed in sorted(taken.values(), key=lambda placed: placed.place):
            result = placed.result
            self._sent.add(id(result))
            if placed.run > run_index + 1:
                self._ledger.record_approximated(result.at, "moved directly after its call")
            media += self._write_result(result)
        self._answered |= taken.keys()
        if not self._same_protocol:
            self._write_missing([call for call in calls if call.id not in taken])
        if media:
            self._messages.append({"role": "user", "content": media})

    def _find_result(self, run_index: int, call_id: str) -> _PlacedResult | None:
        if self._results is None:
            self._results = _results_by_call(self._runs)
        waiting = self._results.get(call_id, ())
        while waiting and (waiting[0].called_in < run_index or id(waiting[0].result) in self._sent):
            waiting.popleft()
        return waiting[0] if waiting and waiting[0].called_in == run_index else None

    def _write_missing(self, calls: list[ToolCall]) -> None:
        for call in calls:
            self._ledger.record_invented(call.at, "every call must have a result")
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": _UNANSWERED})

    def _write_result(self, result: ToolResult) -> list[_Wire]:
        """Write the tool message and return the media that Chat takes only from a user."""
        texts: list[_Wire] = []
        media: list[_Wire] = []
        for part in result.content:
            if isinstance(part, Image | Document) and not isinstance(part.source, str) and not self._same_protocol:
                kind = "image" if isinstance(part, Image) else "document"
                self._ledger.record_approximated(
                    part.at, f"a tool result is text in Chat; the {kind} follows in a user message"
                )
                texts.append({"type": "text", "text": f"[{kind}: see the user message that follows]"})
                media.append({"type": "text", "text": f"[{kind} from the result of tool call {result.call_id}]"})
                media += self._write(part)
            else:
                texts += self._write(part)
        content = texts if texts and self._has_lists else self._join_content(texts, result.content)
        message: _Wire = {"role": "tool", "tool_call_id": result.call_id, "content": content}
        if result.is_error:
            self._mark_error(result, message)
        if self._same_protocol:
            restore(message, result.ext)
        self._messages.append(message)
        return media

    def _mark_error(self, result: ToolResult, message: _Wire) -> None:
        self._ledger.record_approximated(
            result.error_pointer, "Chat has no error flag; the text begins with [tool error]"
        )
        content = message["content"]
        mark = "[tool error] "
        message["content"] = (
            mark + content if isinstance(content, str) else [{"type": "text", "text": mark}, *_as_list(content)]
        )

    def _write_orphan(self, result: ToolResult) -> list[_Wire]:
        """Write a result whose call is not in the conversation as text of the user."""
        self._ledger.record_approximated(result.at, f"no call {result.call_id!r} precedes it; sent as text of the user")
        label = "error" if result.is_error else "result"
        return [
            {"type": "text", "text": f"[{label} of tool call {result.call_id}]"},
            *(wire for part in result.content for wire in self._write(part)),
        ]

    def _write(self, part: Text | Image | Document | Foreign) -> list[_Wire]:
        wire = self._parts.write(part)
        return [] if wire is None else [wire]

    # Assistants

    def _write_assistant(self, turns: list[Turn], run_index: int) -> None:
        parts = [part for turn in turns for part in turn.parts]
        calls = [part for part in parts if isinstance(part, ToolCall)]
        content = [wire for part in parts for wire in self._write_text_part(part)]
        wire_calls = [wire for part in parts for wire in self._write_call(part)]
        refusal = _SEPARATOR.join(part.text for part in parts if isinstance(part, Refusal))
        message: _Wire = {"role": "assistant", "content": self._join_content(content, parts)}
        if not content and (wire_calls or refusal) and not self._plain_text:
            message["content"] = None
        if refusal:
            message["refusal"] = refusal
        thinking = [thought for part in parts for thought in self._keep_thinking(part)]
        message |= build_reasoning(thinking)
        signatures = find_call_signatures(thinking)
        for wire in wire_calls:
            if wire["id"] in signatures:
                wire["extra_content"] = signatures[wire["id"]]
        if wire_calls:
            message["tool_calls"] = wire_calls
        if len(message) > 2 or content or self._same_protocol:
            if "replay_reasoning" in self._target.quirks:  # such servers want it in every message
                message.setdefault("reasoning_content", "")
            self._add(message, *turns)
        self._write_results(calls, run_index)

    def _join_content(self, content: list[_Wire], parts: Sequence[Part]) -> object:
        if content and self._was_list(parts):
            return content
        return _as_content(content, self._plain_text or not self._same_protocol)

    def _was_list(self, parts: Sequence[Part]) -> bool:
        """Return whether a client of Chat wrote a list, which stays one: the last key of a part is its place there."""
        if not self._same_protocol or self._plain_text:
            return False
        return any(isinstance(part, Text) and part.at[-1:].isdigit() for part in parts)

    def _write_text_part(self, part: Part) -> Iterable[_Wire]:
        match part:
            case Text():
                yield from self._write(part)
            case Foreign() if "/tool_calls/" not in part.at:
                yield from self._write(part)
            case Image() | Document() if self._same_protocol:
                yield from self._write(part)
            case Image() | Document() | ToolResult():
                self._ledger.record_dropped(part.at, "Chat has no such part in a message of the assistant")
            case _:
                return

    def _write_call(self, part: Part) -> Iterable[_Wire]:
        if (
            isinstance(part, Foreign)
            and self._same_protocol
            and "/tool_calls/" in part.at
            and isinstance(part.raw, dict)
        ):
            yield dict(part.raw)
        if not isinstance(part, ToolCall):
            return
        kind, field = ("custom", "input") if part.custom else ("function", "arguments")
        arguments = part.arguments if part.custom else part.arguments or "{}"
        wire: _Wire = {"id": part.id, "type": kind, kind: {"name": part.name, field: arguments}}
        if self._same_protocol:
            restore(wire, part.ext)
        yield wire

    def _keep_thinking(self, part: Part) -> Iterable[Thinking]:
        """Return reasoning to its issuer; to other servers only as text, and only if they want it."""
        if not isinstance(part, Thinking):
            return
        issuer = None if part.opaque is None else part.opaque.issuer
        theirs = issuer == self._target.issuer and issuer != OPENAI and not _is_reasoning_item(part)
        if theirs or (self._same_protocol and issuer in (None, "")):
            yield part
        elif part.text and not REPLAYS.isdisjoint(self._target.quirks):
            if part.opaque is not None:
                self._ledger.record_approximated(part.at, f"only {issuer or 'its issuer'} can read its signature")
            yield Thinking(part.text, part.at)
        else:
            self._ledger.record_dropped(part.at, "this server does not accept earlier reasoning")


def _is_reasoning_item(thought: Thinking) -> bool:
    """Return whether this is a reasoning item of Responses, which Chat cannot carry."""
    return thought.opaque is not None and thought.opaque.form is OpaqueForm.ENCRYPTED


def _find_runs(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Return the turns with consecutive ones of the same role together."""
    runs: list[list[Turn]] = []
    role = None
    for turn in turns:
        if turn.role is not role:
            role = turn.role
            runs.append([])
        runs[-1].append(turn)
    return runs


def _results_by_call(runs: list[list[Turn]]) -> dict[str, deque[_PlacedResult]]:
    placed: dict[str, deque[_PlacedResult]] = {}
    calls: dict[str, int] = {}  # the last run of each id: some servers use the same ids in every step
    place = 0
    for run_index, run in enumerate(runs):
        for turn in run:
            for part in turn.parts:
                if type(part) is ToolCall:
                    calls[part.id] = run_index
                elif type(part) is ToolResult:
                    found = _PlacedResult(place, part, run_index, calls.get(part.call_id, -1))
                    placed.setdefault(part.call_id, deque()).append(found)
                    place += 1
    return placed


def _as_content(parts: list[_Wire], joined: bool) -> object:
    """Return a string if it means the same as the parts: not every server takes an array."""
    if not joined and len(parts) > 1:
        return parts
    texts: list[str] = []
    for part in parts:
        if len(part) != 2 or part.get("type") != "text" or "text" not in part:
            return parts
        texts.append(str(part["text"]))
    return _SEPARATOR.join(texts)


def _as_list(content: object) -> list[object]:
    return content if isinstance(content, list) else []
