"""Build `instructions` and the `input` items of a Responses request from hub turns."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from dragoman.translate.caching.breakpoints import FIELD
from dragoman.translate.hub.ext import restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import ENVELOPE_PREFIX, OpaqueForm, can_send_to
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import (
    ROLE_NAMES,
    Audio,
    Cache,
    Document,
    Ext,
    FileId,
    Foreign,
    Image,
    Inline,
    Json,
    Link,
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
from dragoman.translate.passes.adapt_turns import INSTRUCTION_ROLES
from dragoman.translate.passes.pair_results import pair_calls
from dragoman.translate.protocols.responses.wire import NAME, OPENAI_PROTOCOLS, Wire

# Looked up once: on Python 3.11, each look-up of a member is slow.
_SYSTEM, _DEVELOPER, _ASSISTANT = Role.SYSTEM, Role.DEVELOPER, Role.ASSISTANT
_ERROR_MARK = "[tool error] "


class InputBuilder:
    """Build the conversation of one request."""

    def __init__(self, request: Request, target: Target, ledger: Ledger) -> None:
        self._request = request
        self._target = target
        self._ledger = ledger
        self._same_protocol = request.protocol == NAME
        self._parts = _PartBuilder(request, ledger)
        self.marked = self._parts.marked
        self._unread_by_item = _group_by_item(request.ext) if self._same_protocol else {}
        self._custom_calls = {
            part.id for turn in request.turns for part in turn.parts if type(part) is ToolCall and part.custom
        }

    def instructions(self) -> tuple[str | None, Sequence[Turn]]:
        """Return the leading system text, if it is only text, and the remaining turns.

        For a model with cache breakpoints it stays in items, which can have one.
        """
        turns = self._request.turns if self._same_protocol else pair_calls(self._request.turns, self._ledger)
        leading = list(takewhile(self._is_instruction, turns))
        parts = [part for turn in leading for part in turn.parts]
        texts = [part.text for part in parts if isinstance(part, Text)]
        has_items = self._target.cache.breakpoints and not self._same_protocol
        if has_items or not parts or len(texts) < len(parts):
            return None, turns
        return "\n\n".join(texts) or None, turns[len(leading) :]

    def find_head(self, items: Sequence[Json]) -> Wire | None:
        """Return the last part of the instructions at the beginning of the input."""
        head: Wire | None = None
        for item in items:
            if not isinstance(item, dict) or item.get("role") not in ("system", "developer"):
                break
            content = item["content"]
            head = content[-1] if isinstance(content, list) else head
        return head

    def items(self, turns: Sequence[Turn]) -> list[Json]:
        items: list[Json] = []
        for turn in turns:
            if turn.role is _ASSISTANT:
                items += self._build_assistant(turn.parts)
            else:
                items += self._build_user(turn)
        last = turns[-1] if turns else None
        if last is not None and last.role is _ASSISTANT and self._request.protocol not in OPENAI_PROTOCOLS:
            self._ledger.record_approximated(
                last.at, "Responses reads a last assistant turn as history, not as a prefill"
            )
        return items

    def _is_instruction(self, turn: Turn) -> bool:
        return turn.at == "/instructions" if self._same_protocol else turn.role in INSTRUCTION_ROLES

    def _build_user(self, turn: Turn) -> Iterable[Wire]:
        texts: list[Part] = []
        for part in turn.parts:  # types are compared: a struct's class pattern that does not fit is slow
            if type(part) is ToolResult:
                yield from self._build_message(turn, texts)
                texts = []
                yield self._build_result(part)
            elif type(part) is Foreign and self._is_item(part):
                yield from self._build_message(turn, texts)
                texts = []
                yield from _restore_raw(part)
            else:
                texts.append(part)
        yield from self._build_message(turn, texts)

    def _is_item(self, part: Foreign) -> bool:
        """Return whether it was an item of its own, not a part of a message."""
        return self._same_protocol and part.at.count("/") == 2

    def _build_message(self, turn: Turn, parts: Sequence[Part]) -> Iterable[Wire]:
        content = self._parts.build_parts(parts) if parts else None
        if not content:
            return
        # Later system text of MessageItems has the role developer here.
        role = _DEVELOPER if turn.role is _SYSTEM and self._request.protocol == "messages" else turn.role
        item: Wire = {"type": "message", "role": ROLE_NAMES[role], "content": content}
        if self._same_protocol:
            restore(item, turn.ext)
        yield item

    def _build_result(self, result: ToolResult) -> Wire:
        custom = result.custom or result.call_id in self._custom_calls
        item: Wire = {
            "type": "custom_tool_call_output" if custom else "function_call_output",
            "call_id": result.call_id,
            "output": self._build_output(result),
        }
        if self._same_protocol:
            restore(item, result.ext)
        return item

    def _build_output(self, result: ToolResult) -> Json:
        mark = ""
        if result.is_error:
            mark = _ERROR_MARK
            self._ledger.record_approximated(
                result.error_pointer, "Responses has no error flag; the text begins with [tool error]"
            )
        content = [part for part in result.content if self._same_protocol or not isinstance(part, Foreign)]
        # Where a part may get a breakpoint, the output is always a list: its form must not depend on that.
        has_lists = self._target.cache.breakpoints and not self._same_protocol
        if not has_lists and all(isinstance(part, Text) for part in content):
            texts = [part.text for part in content if isinstance(part, Text)]
            if len(texts) < 2:
                return mark + "".join(texts)
        output = self._parts.build_parts(content)
        if mark:
            output.insert(0, {"type": "input_text", "text": mark.strip()})
        return output or ""

    # The assistant's side

    def _build_assistant(self, parts: Iterable[Part]) -> Iterable[Wire]:
        texts: list[Text | Refusal] = []
        for part in parts:
            if isinstance(part, Text | Refusal):
                if texts and self._item_pointer(part) != self._item_pointer(texts[-1]):
                    yield self._build_reply_message(texts)
                    texts = []
                texts.append(part)
                continue
            if texts:
                yield self._build_reply_message(texts)
                texts = []
            yield from self._build_other_item(part)
        if texts:
            yield self._build_reply_message(texts)

    def _item_pointer(self, part: Text | Refusal) -> str:
        """Return the pointer of the item that held a part; other protocols have one message per turn."""
        return part.at.partition("/content")[0] if self._same_protocol else ""

    def _build_reply_message(self, parts: Sequence[Text | Refusal]) -> Wire:
        content: list[Json] = [self._build_output_part(part) for part in parts]
        item: Wire = {"type": "message", "role": "assistant", "content": content}
        restore(item, self._unread_by_item.get(self._item_pointer(parts[0])[1:], {}))
        return item

    def _build_output_part(self, part: Text | Refusal) -> Wire:
        if isinstance(part, Refusal):
            wire: Wire = {"type": "refusal", "refusal": part.text}
        else:
            wire = {"type": "output_text", "text": part.text, "annotations": self._build_annotations(part)}
        if self._same_protocol:
            restore(wire, part.ext)
        return wire

    def _build_annotations(self, text: Text) -> list[Json]:
        if self._same_protocol:
            return [citation.raw for citation in text.citations]
        if text.citations:
            self._ledger.record_dropped(
                f"{text.at}/citations", "Responses does not read the citations of earlier turns"
            )
        return []

    def _build_other_item(self, part: Part) -> Iterable[Wire]:
        match part:
            case ToolCall():
                yield self._build_call(part)
            case Thinking():
                yield from self._build_reasoning(part)
            case Foreign() if self._same_protocol:
                yield from _restore_raw(part)
            case Image() | Document() | Audio():
                self._ledger.record_dropped(part.at, "Responses takes no media from the assistant")
            case _:
                return

    def _build_call(self, call: ToolCall) -> Wire:
        item: Wire = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
        if call.custom:
            item = {"type": "custom_tool_call", "call_id": call.id, "name": call.name, "input": call.arguments}
        if call.namespace is not None:
            item["namespace"] = call.namespace
        if self._same_protocol:
            restore(item, call.ext)
        return item

    def _build_reasoning(self, thought: Thinking) -> Iterable[Wire]:
        """Build a reasoning item for the vendor that encrypted it; without ids, which need `store: true`."""
        opaque = thought.opaque
        readable = (
            opaque is not None
            and opaque.form is OpaqueForm.ENCRYPTED
            and can_send_to(opaque, self._target.issuer, self._same_protocol)
            and not opaque.payload.startswith(ENVELOPE_PREFIX)
        )
        if not readable and not (self._same_protocol and opaque is None):
            why = "reasoning without its encrypted form" if opaque is None else "reasoning that another vendor issued"
            self._ledger.record_dropped(thought.at, f"{why} cannot be read by this upstream")
            return
        kind = "reasoning_text" if thought.raw else "summary_text"
        parts: list[Json] = [{"type": kind, "text": thought.text}] if thought.text else []
        item: Wire = {"type": "reasoning", "summary": [] if thought.raw else parts}
        if thought.raw:
            item["content"] = parts
        if opaque is not None:
            item["encrypted_content"] = opaque.payload
        if self._same_protocol:
            restore(item, thought.ext)
        yield item


def _restore_raw(part: Foreign) -> Iterable[Wire]:
    if isinstance(part.raw, dict):
        yield part.raw


def _group_by_item(ext: Ext) -> dict[str, Ext]:
    """Group the request's unread fields by item: `input/3/phase` under `input/3`."""
    items: dict[str, Ext] = {}
    for pointer, value in ext.items():
        head, *rest = pointer.split("/", 2)
        if head == "input" and len(rest) == 2:
            items.setdefault(f"input/{rest[0]}", {})[rest[1]] = value
    return items


class _PartBuilder:
    """Build the input parts of one request."""

    def __init__(self, request: Request, ledger: Ledger) -> None:
        self._ledger = ledger
        self._same_protocol = request.protocol == NAME
        self._same_files = request.protocol in OPENAI_PROTOCOLS
        self._same_caches = request.protocol in OPENAI_PROTOCOLS
        self.marked: list[Wire] = []  # parts of a translated request that the client marked as OpenAI does

    def build_parts(self, parts: Iterable[Part]) -> list[Json]:
        return [wire for part in parts if (wire := self.build_part(part)) is not None]

    def build_part(self, part: Part) -> Wire | None:
        match part:
            case Text():
                if part.citations:
                    self._ledger.record_dropped(
                        f"{part.at}/citations", "Responses does not read the citations of a user"
                    )
                wire: Wire = {"type": "input_text", "text": part.text}
                return self._finish_part(wire, part.cache, part.ext)
            case Image():
                wire = {"type": "input_image", **self._build_image_source(part), "detail": part.detail or "auto"}
                return self._finish_part(wire, part.cache, part.ext)
            case Document():
                return self._finish_part(self._build_document(part), part.cache, part.ext)
            case Refusal():
                return {"type": "input_text", "text": part.text}
            case Audio():
                raise BadRequest(part.at, "A Responses upstream takes no audio. Send a transcript.")
            case Foreign(raw=raw) if self._same_protocol and isinstance(raw, dict):
                return raw
        return None

    def _finish_part(self, wire: Wire, cache: Cache | None, ext: Ext) -> Wire:
        if cache is not None and self._same_protocol:
            wire[FIELD] = {"mode": "explicit"} if cache.ttl is None else {"mode": "explicit", "ttl": cache.ttl}
        elif cache is not None and self._same_caches:
            self.marked.append(wire)
        if self._same_protocol:
            restore(wire, ext)
        return wire

    def _build_image_source(self, image: Image) -> Wire:
        match image.source:
            case Inline(media_type=media_type, data=data):
                return {"image_url": f"data:{media_type};base64,{data}"}
            case Link(url=url):
                return {"image_url": url}
            case FileId(id=id_):
                return {"file_id": self._check_file_id(id_, image.at)}

    def _build_document(self, document: Document) -> Wire:
        match document.source:
            case Inline(media_type=media_type, data=data):
                wire: Wire = {"type": "input_file", "file_data": f"data:{media_type};base64,{data}"}
                if document.title is None and not self._same_protocol:
                    self._ledger.record_invented(document.at, "Responses wants a file name: document.pdf")
                wire["filename"] = document.title or "document.pdf"
                return wire
            case Link(url=url):
                wire = {"type": "input_file", "file_url": url}
            case FileId(id=id_):
                wire = {"type": "input_file", "file_id": self._check_file_id(id_, document.at)}
            case text:
                self._ledger.record_approximated(document.at, "a document of plain text is sent as text")
                titled = f"{document.title}\n\n{text}" if document.title else text
                return {"type": "input_text", "text": titled}
        if document.title is not None:
            wire["filename"] = document.title
        return wire

    def _check_file_id(self, id_: str, at: str) -> str:
        if not self._same_files:
            raise BadRequest(at, f"The file {id_!r} is stored at another vendor. Send its data instead.")
        return id_
