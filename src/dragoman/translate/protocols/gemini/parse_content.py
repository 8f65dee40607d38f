"""Parse the contents of a Gemini request into hub turns.

SDKs replay a streamed reply as one content per chunk, so contents of one role are merged, and so are the pieces of a
text that such chunks hold.
"""

import re
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.translate.framing.fields import BadField
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, Thought, decode_base64, unseal_thoughts
from dragoman.translate.hub.request import (
    Audio,
    Document,
    Ext,
    FileId,
    Foreign,
    Image,
    Inline,
    Link,
    Media,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from dragoman.translate.hub.server_tools import ServerToolUse, is_sealed_use, read_sealed_use
from dragoman.translate.protocols.gemini.parse_fields import ProtoFields, unread_fields
from dragoman.translate.protocols.gemini.wire import NAME, PLACEHOLDERS

_SYSTEM, _ASSISTANT = Role.SYSTEM, Role.ASSISTANT  # looked up once: on Python 3.11, each look-up of a member is slow
_ROLES = {"user": Role.USER, "model": Role.ASSISTANT, "function": Role.USER, "tool": Role.USER}
_SIGNATURE = "thoughtSignature"
USE = "the use of a tool that the gateway ran"
_KINDS = frozenset(("functionCall", "functionResponse", "inlineData", "fileData"))
_TEXT_TYPES = frozenset(("application/json", "application/xml", "application/javascript", "application/x-javascript"))
_EXTENSIONS = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "webp": "image/webp", "gif": "image/gif"}
_VIDEO_PAGES = re.compile(r"https?://(?:www\.|m\.)?(?:youtube\.com|youtu\.be)/", re.IGNORECASE)
_GOOGLES_OWN = re.compile(r"gs://|files/|https://[a-z0-9.-]*googleapis\.com/", re.IGNORECASE)

ResultPart = Text | Image | Document | Foreign


def parse_contents(contents: Sequence[ProtoFields], ledger: Ledger) -> tuple[Turn, ...]:
    """Return the turns; no two calls have one id. Raises BadField for a response to a call that is not there."""
    reader = _ContentReader(ledger)
    for content in contents:
        reader.read(content)
    return reader.finish()


def parse_instructions(content: ProtoFields) -> Turn | None:
    """Return the turn of systemInstruction: its texts as one, whatever its role."""
    content.text("role")
    texts: list[str] = []
    others: list[Part] = []
    for part in content.list_of("parts"):
        text = part.text("text")
        if text:
            texts.append(text)
        others += [Foreign(key, {key: value}, part.pointer(key)) for key, value in part.rest().items()]
    parts: tuple[Part, ...] = (Text("\n\n".join(texts), content.at), *others) if texts else tuple(others)
    return Turn(_SYSTEM, parts, content.at, unread_fields(content)) if parts else None


class _ContentReader:
    """Reads contents in order, and remembers which calls still lack their response."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._turns: list[Turn] = []  # that are complete
        self._turn: Turn | None = None  # the last one, whose parts are still being read
        self._parts: list[Part] = []  # of the last turn
        self._ext: Ext = {}
        self._pieces: list[str] = []  # of the text of the last part, which is not joined yet
        self._text_of: int | None = None  # the content that the last part's text belongs to
        self._contents = 0
        self._step = 0  # where in the last turn the step begins that is being read: after the last call
        self._unsigned: int | None = None  # where in it the first reasoning without a signature stands
        self._seen: set[Thought] = set()  # in the envelopes of the last turn
        self._ids: set[str] = set()
        self._next_number = 0  # of an id that is made up

    @cached_property
    def _calls(self) -> "_OpenCalls":
        return _OpenCalls()

    def read(self, content: ProtoFields) -> None:
        role = (content.text("role") or "user").lower()
        if role not in _ROLES:
            raise content.bad("role", 'must be "user" or "model"')
        self._contents += 1
        parts = content.list_of("parts")
        extras = unread_fields(content)
        if self._turn is None or self._turn.role is not _ROLES[role]:
            self._end_turn()
            self._turn = Turn(_ROLES[role], (), content.at)
        self._ext.update(extras)
        for part in parts:
            if self._turn.role is _ASSISTANT:
                self._read_model_part(part)
            else:
                self._parts += self._read_user_part(part)
        if not self._parts:
            self._turn, self._ext = None, {}  # nothing but empty texts

    def finish(self) -> tuple[Turn, ...]:
        self._end_turn()
        return tuple(self._turns)

    def _end_turn(self) -> None:
        self._join_pieces()
        if self._turn is not None:
            self._turns.append(replace(self._turn, parts=tuple(self._parts), ext=self._ext))
        self._turn, self._parts, self._ext = None, [], {}
        self._step, self._unsigned, self._seen, self._text_of = 0, None, set(), None

    def _join_pieces(self) -> None:
        """Give the last part the text of its pieces; each is added to a list until then, not to an ever longer text."""
        if self._pieces:
            last = self._parts[-1]
            assert isinstance(last, Text | Thinking)
            self._parts[-1] = replace(last, text="".join((last.text, *self._pieces)))
            self._pieces = []

    def _add_part(self, part: Part) -> None:
        self._join_pieces()
        if self._unsigned is None and isinstance(part, Thinking) and part.opaque is None:
            self._unsigned = len(self._parts)
        self._parts.append(part)

    # The model's parts

    def _read_model_part(self, part: ProtoFields) -> None:
        signature = part.text(_SIGNATURE)
        if part.flag("thought"):
            self._read_thought(part, signature)
            return
        self._add_signature(part, signature)
        text = part.text("text")
        if text is not None and not _has_other_kind(part):
            self._add_text(text, part)
            return
        self._text_of = None
        if part.has("functionCall"):
            self._add_part(self._read_call(part))
            self._step, self._unsigned = len(self._parts), None
        else:
            for read in _read_media_part(part):
                self._add_part(read)

    def _read_thought(self, part: ProtoFields, signature: str | None) -> None:
        self._text_of = None
        text = part.text("text", "")
        last = self._parts[-1] if self._parts else None
        if text and isinstance(last, Thinking) and last.opaque is None and last.text:
            self._pieces.append(text)  # the next piece of a streamed thought
        elif text:
            self._add_part(Thinking(text, part.at, ext=unread_fields(part)))
        self._add_signature(part, signature)

    def _add_text(self, text: str, part: ProtoFields) -> None:
        extras = unread_fields(part)
        last = self._parts[-1] if self._parts else None
        is_next_piece = self._text_of not in (None, self._contents) and isinstance(last, Text)
        if is_next_piece and isinstance(last, Text) and not extras and not last.ext:
            self._pieces.append(text)
        elif text or extras:
            self._add_part(Text(text, part.at, ext=extras))
        if text:
            self._text_of = self._contents

    def _add_signature(self, part: ProtoFields, signature: str | None) -> None:
        """Add the reasoning that a signature stands for, before the part that it stands on."""
        if not signature or signature in PLACEHOLDERS:
            return
        at = part.pointer(_SIGNATURE)
        self._text_of = None
        thoughts = unseal_thoughts(signature)
        if thoughts is not None:
            self._add_envelope(thoughts, at, is_of_call=part.has("functionCall"))
            return
        opaque = Opaque(NAME, OpaqueForm.SIGNATURE, signature)
        self._join_pieces()
        last = self._parts[-1] if self._parts else None
        if isinstance(last, Thinking) and last.opaque is None:
            self._parts[-1] = replace(last, at=part.at.rpartition("/")[0], opaque=opaque)  # of two parts
            self._unsigned = None if self._unsigned == len(self._parts) - 1 else self._unsigned
        else:
            self._add_part(Thinking("", at, opaque))

    def _add_envelope(self, thoughts: tuple[Thought, ...], at: str, *, is_of_call: bool) -> None:
        """Add the reasoning of an envelope, unless an earlier part of the reply has brought it already.

        A call's envelope holds all reasoning of its step: where nothing else has brought any, it stood first.
        """
        self._join_pieces()
        if self._unsigned is not None:  # thoughts that were shown are in the envelope as well
            self._parts[self._unsigned :] = [part for part in self._parts[self._unsigned :] if not _is_unsigned(part)]
            self._unsigned = None
        new = [thought for thought in thoughts if thought not in self._seen]
        is_first = len(new) == len(thoughts)
        self._seen.update(new)
        added = [_read_thought_or_use(thought, at) for thought in new]
        if is_of_call and is_first:
            first = list(takewhile(lambda part: isinstance(part, Thinking), added))  # before the step's tools ran
            self._parts[self._step : self._step] = first  # the call itself, which ends the step, follows
            added = added[len(first) :]
        for part in added:
            self._add_part(part)

    def _read_call(self, part: ProtoFields) -> ToolCall:
        call = part.need_obj("functionCall")
        arguments = call.raw("args")
        if arguments is not None and not isinstance(arguments, dict):
            raise call.bad("args", "must be an object")
        id = call.text("id") or ""
        read = ToolCall(
            id=self._choose_id(id, call),
            name=call.need_text("name"),
            arguments=msgspec.json.encode(arguments or {}).decode(),
            at=part.at,
            ext=unread_fields(part, call),
        )
        self._ids.add(read.id)
        self._calls.add(_ReadCall(read, id, len(self._turns)))
        return read

    def _choose_id(self, id: str, call: ProtoFields) -> str:
        if id not in self._ids:
            return id or self._mint_id()
        self._ledger.record_invented(call.pointer("id"), f"an earlier call has the id {id!r}, so this one gets another")
        return self._mint_id()

    def _mint_id(self) -> str:
        """Return an id that no call has; equal requests get equal ids, so that prompt caches work."""
        number = max(len(self._ids), self._next_number)
        while f"call_{number}" in self._ids:
            number += 1
        self._next_number = number + 1  # all before it are taken
        return f"call_{number}"

    # The user's parts

    def _read_user_part(self, part: ProtoFields) -> list[Part]:
        if part.has("functionResponse"):
            return [self._read_response(part)]
        text = part.text("text")
        if text is not None and not _has_other_kind(part):
            part.text(_SIGNATURE)
            extras = unread_fields(part)
            return [Text(text, part.at, ext=extras)] if text or extras else []
        return _read_media_part(part)

    def _read_response(self, part: ProtoFields) -> ToolResult:
        response = part.need_obj("functionResponse")
        call = self._find_call(response)
        answer = response.raw("response")
        if answer is not None and not isinstance(answer, dict):
            raise response.bad("response", "must be an object")
        text, is_error = _read_answer(answer or {})
        media = [_read_result_part(item) for item in response.list_of("parts")]
        content: tuple[ResultPart, ...] = (Text(text, response.pointer("response")), *media)
        at = response.pointer("response")
        return ToolResult(call.id, content, part.at, is_error, ext=unread_fields(part, response), error_at=at)

    def _find_call(self, response: ProtoFields) -> ToolCall:
        """Return the call that a response belongs to: by its id, or in the order of the calls of this name."""
        name, id = response.need_text("name"), response.text("id")
        found = self._calls.take(name, id)
        if found is None:
            which = f"id {id!r}" if id else f"name {name!r}"
            raise BadField(
                response.pointer("id" if id else "name"),
                f"answers no call: no functionCall before it has the {which}. Send the call as well, or leave both out",
            )
        return found


def _has_other_kind(part: ProtoFields) -> bool:
    """Return whether a part is not only text."""
    return part.has_any(_KINDS) and any(part.has(kind) for kind in _KINDS)


class _ReadCall(Struct):
    call: ToolCall
    id: str  # the client's, which several calls may have; "": none
    turn: int
    is_answered: bool = False


class _CallQueue(Struct):
    """Calls that may still get a response: those of the latest turn first, then those that were interrupted."""

    latest: deque[_ReadCall] = field(default_factory=deque)
    earlier: deque[_ReadCall] = field(default_factory=deque)

    def add(self, read: _ReadCall) -> None:
        if self.latest and self.latest[-1].turn != read.turn:
            self.earlier.extend(self.latest)
            self.latest.clear()
        self.latest.append(read)

    def find_open(self) -> _ReadCall | None:
        return _first_open(self.latest) or _first_open(self.earlier)


class _OpenCalls:
    """The calls of a request, found by id or name in constant time; those that have a response are known by id only.

    A client may use the same ids again in a later turn: a response belongs to the latest turn.
    """

    def __init__(self) -> None:
        self._by_id: defaultdict[str, deque[_ReadCall]] = defaultdict(deque)
        self._by_both: defaultdict[tuple[str, str], deque[_ReadCall]] = defaultdict(deque)  # id and name
        self._by_name: defaultdict[str, _CallQueue] = defaultdict(_CallQueue)
        self._without_id: defaultdict[str, _CallQueue] = defaultdict(_CallQueue)  # by name
        self._answered: dict[str, ToolCall] = {}  # the last of each id that got its response

    def add(self, read: _ReadCall) -> None:
        name = read.call.name
        self._by_name[name].add(read)
        if not read.id:
            self._without_id[name].add(read)
            return
        for calls in (self._by_id[read.id], self._by_both[read.id, name]):
            if calls and calls[-1].turn != read.turn:
                calls.clear()
            calls.append(read)

    def take(self, name: str, id: str | None) -> ToolCall | None:
        """Return the call of this id, even one that has a response, or else the first open one of this name.

        Of several calls with one id, those of this name come first. Where there is an id, only calls without one are
        found by their name alone.
        """
        found: _ReadCall | None = None
        if id:
            found = _first_open(self._by_both[id, name]) or _first_open(self._by_id[id])
            if found is None and id in self._answered:
                return self._answered[id]
        found = found or (self._without_id if id else self._by_name)[name].find_open()
        if found is None:
            return None
        found.is_answered = True
        self._answered[found.id] = found.call
        return found.call


def _first_open(calls: deque[_ReadCall]) -> _ReadCall | None:
    while calls and calls[0].is_answered:
        calls.popleft()
    return calls[0] if calls else None


def _read_thought_or_use(thought: Thought, at: str) -> Thinking | Foreign:
    """Return reasoning, or a use of a tool that the gateway ran."""
    opaque = thought.opaque
    use = None
    if opaque is not None and is_sealed_use(opaque.payload):
        use = read_sealed_use(opaque.payload, at)
    return Thinking(thought.text, at, opaque, thought.raw) if use is None else Foreign(USE, {}, at, use=use)


def read_tool_uses(parts: Sequence[Part]) -> dict[int, ServerToolUse | None]:
    """Return the uses of the gateway's tools among the parts of a turn, by index."""
    return {index: part.use for index, part in enumerate(parts) if isinstance(part, Foreign) and part.use is not None}


def _is_unsigned(part: Part) -> bool:
    return isinstance(part, Thinking) and part.opaque is None


def _read_answer(answer: dict[str, object]) -> tuple[str, bool]:
    """Return a response as text, and whether it is an error. A value under `output` or `error` is that text."""
    if len(answer) == 1:
        ((key, value),) = answer.items()
        if key in ("output", "error"):
            return value if isinstance(value, str) else msgspec.json.encode(value).decode(), key == "error"
    return msgspec.json.encode(answer).decode(), False


# Media


def _read_media_part(part: ProtoFields) -> list[Part]:
    """Return the image, document or sound of a part; what only Gemini knows is kept whole."""
    whole = part.rest()
    if part.has("inlineData"):
        return [_read_inline(part, part.need_obj("inlineData"), whole)]
    if part.has("fileData"):
        return [_read_file(part, part.need_obj("fileData"), whole)]
    return [Foreign(next(iter(whole)), whole, part.at)] if whole else []


def _read_result_part(part: ProtoFields) -> ResultPart:
    for read in _read_media_part(part):
        if isinstance(read, Image | Document | Foreign):
            return read
    return Foreign("functionResponse part", part.rest(), part.at)


def _read_inline(part: ProtoFields, blob: ProtoFields, whole: dict[str, object]) -> Part:
    media_type = blob.need_text("mimeType").lower()
    data = _to_standard_base64(blob.need_text("data"), blob)
    title = blob.text("displayName")
    kind = media_type.partition(";")[0].strip()
    if kind.startswith("text/") or kind in _TEXT_TYPES:
        text = (decode_base64(data) or b"").decode(errors="replace")
        return Document(text, part.at, title, ext=unread_fields(part, blob))
    made = _make_media(Inline(media_type, data), kind, part, blob)
    return made or Foreign(f"inlineData of {kind}", whole, part.at)


def _read_file(part: ProtoFields, file: ProtoFields, whole: dict[str, object]) -> Part:
    uri = file.need_text("fileUri")
    media_type = file.text("mimeType")
    guess = "video/*" if _VIDEO_PAGES.match(uri) else "application/pdf"
    kind = media_type or _EXTENSIONS.get(uri.partition("?")[0].rpartition(".")[2].lower(), guess)
    source: Media = FileId(uri) if _GOOGLES_OWN.match(uri) else Link(uri)
    kind = kind.lower().partition(";")[0].strip()
    made = _make_media(source, kind, part, file)
    return made or Foreign(f"fileData of {kind}", whole, part.at)


def _make_media(source: Media, kind: str, part: ProtoFields, media: ProtoFields) -> Part | None:
    """Return the part for a media type; None if no other protocol has such media."""
    title = media.text("displayName")
    at, extras = part.at, unread_fields(part, media)
    if kind.startswith("image/"):
        return Image(source, at, ext=extras)
    if kind.startswith("audio/") and isinstance(source, Inline):
        return Audio(source, at, ext=extras)
    if kind == "application/pdf" or isinstance(source, FileId):
        return Document(source, at, title, ext=extras)
    return None


def _to_standard_base64(data: str, blob: ProtoFields) -> str:
    """Return base64 in the alphabet that other vendors take; the Python SDK writes the URL-safe one."""
    if "-" in data or "_" in data:
        data = data.replace("-", "+").replace("_", "/")
    data += "=" * (-len(data) % 4)
    if len(data) < 4096 and decode_base64(data) is None:
        raise blob.bad("data", "must be base64")
    return data
