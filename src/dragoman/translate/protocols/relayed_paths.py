"""The other paths of OpenAI's API: requests that pass to an upstream of the same API, and replies that pass back.

Nothing here is translated. A path is one line of the table, which says where the model stands, in which unit the path
is charged, and what its streams end with. A path that is not in the table is not served.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.translate.framing.fields import MAX_MODEL_BYTES
from dragoman.translate.framing.jsonread import read_json
from dragoman.translate.framing.sse import Broken, SseFramer
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Client, Protocol, Upstream
from dragoman.translate.hub.usage import Usage, clamp_usage
from dragoman.translate.protocols.chat import PROTOCOL as CHAT
from dragoman.translate.protocols.chat import errors

Unit = Literal["tokens", "images", "characters", "seconds", "searches"]


class RelayedPath(Struct, frozen=True):
    """One path. Its model is the field `model` of a JSON object, or of a form where `form` is set."""

    name: str  # below /v1
    operation: str  # OpenTelemetry's name for its requests (gen_ai.operation.name)
    # What the vendor charges for. A reply that reports tokens is priced by the price list, whatever the unit; without
    # tokens it has no price.
    unit: Unit = "tokens"
    form: bool = False  # takes multipart/form-data as well as JSON
    default_model: str = ""  # the model that OpenAI uses for a request without one; empty: it must be named
    stream_ends: tuple[bytes, ...] = ()  # types of the event that ends its stream
    output_limits: tuple[tuple[str, ...], ...] = ()  # where a request bounds the tokens of its reply


_IMAGE_ENDS = (b"image_generation.completed", b"image_edit.completed")

RELAYED_PATHS: Mapping[str, RelayedPath] = {
    path.name: path
    for path in (
        RelayedPath("embeddings", "embeddings"),
        RelayedPath("completions", "text_completion", stream_ends=(b"[DONE]",), output_limits=(("max_tokens",),)),
        RelayedPath("moderations", "moderation", default_model="omni-moderation-latest"),
        RelayedPath("rerank", "rerank", unit="searches"),
        RelayedPath(
            "images/generations", "image_generation", "images", default_model="dall-e-2", stream_ends=_IMAGE_ENDS
        ),
        RelayedPath(
            "images/edits", "image_edit", "images", form=True, default_model="dall-e-2", stream_ends=_IMAGE_ENDS
        ),
        RelayedPath("images/variations", "image_variation", "images", form=True, default_model="dall-e-2"),
        RelayedPath("audio/speech", "speech", "characters", stream_ends=(b"speech.audio.done",)),
        RelayedPath(
            "audio/transcriptions", "transcription", "seconds", form=True, stream_ends=(b"transcript.text.done",)
        ),
        RelayedPath("audio/translations", "translation", "seconds", form=True),
    )
}

# Errors of all these paths have the shape of Chat's.
assert CHAT.client is not None
assert CHAT.upstream is not None
PROTOCOL: Protocol = CHAT
CLIENT: Client = CHAT.client
UPSTREAM: Upstream = CHAT.upstream


@lru_cache(maxsize=len(RELAYED_PATHS))
def find_protocol(path: str) -> Protocol:
    """Return the protocol under whose name the requests of a path are recorded."""
    return replace(PROTOCOL, name=path, client=replace(CLIENT, output_limits=RELAYED_PATHS[path].output_limits))


TRUNCATED = Failure(Kind.TRUNCATED, "the upstream's stream ended without its terminal event")
_TAIL_BYTES = 4096  # of a long document, where its usage stands


class _Counts(Struct):
    """Token counts in the spellings of the Chat and the Responses API; some servers report a total only."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None


class _Choice(Struct):
    finish_reason: str | None = None


_NULL = msgspec.Raw(b"null")


class _Answer(Struct):
    """The fields of a reply, or of one event of it, that are observed."""

    type: object = None
    model: object = None
    error: object = None
    usage: msgspec.Raw = _NULL
    choices: msgspec.Raw = _NULL


_answer = msgspec.json.Decoder(_Answer)
_counts = msgspec.json.Decoder(_Counts | None)
_choices = msgspec.json.Decoder(list[_Choice] | None)


class Observed(Struct):
    """What a reply says of itself."""

    model: str = ""
    usage: Usage | None = None
    failure: Failure | None = None


def observe_document(body: bytes) -> Observed:
    """Return what a whole JSON reply says; nothing of one that is not JSON."""
    seen = Observed()
    _observe(body, seen)
    return seen


def _observe(text: bytes, seen: Observed) -> _Answer | None:
    try:
        answer = read_json(_answer, text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    if isinstance(answer.model, str):
        seen.model = answer.model[:MAX_MODEL_BYTES]
    if answer.usage is not _NULL:
        seen.usage = read_usage(bytes(answer.usage)) or seen.usage
    if answer.error is not None:
        seen.failure = errors.read_error(answer.error)
    return answer


def read_usage(text: bytes) -> Usage | None:
    """Return the tokens of a `usage` object; None if it counts none."""
    try:
        counts = _counts.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if counts is None:
        return None
    read = counts.prompt_tokens if counts.prompt_tokens is not None else counts.input_tokens
    written = counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens
    if read is None and written is None:
        if counts.total_tokens is None:
            return None
        read = counts.total_tokens
    return clamp_usage(Usage(input=read or 0, output=written or 0), Ledger())


class LongDocument:
    """Observes a document that is too long to be held: its usage is looked for at its end."""

    has_event = False
    is_complete = True  # if its connection ends properly

    def __init__(self) -> None:
        self._tail = b""
        self.seen = Observed()

    def feed(self, chunk: bytes) -> None:
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:] if len(chunk) < _TAIL_BYTES else chunk[-_TAIL_BYTES:]

    def finish(self) -> None:
        at = self._tail.rfind(b'"usage"')
        found = self._tail[at:].rstrip() if at >= 0 else b""
        if found.endswith(b"}"):  # of the document
            _observe(b"{" + found, self.seen)


class EventStream:
    """Observes a stream of events: its usage, and whether it is complete."""

    def __init__(self, path: RelayedPath) -> None:
        self._ends = path.stream_ends
        self._framer = SseFramer()
        self._is_broken = False
        self.seen = Observed()
        self.has_event = False
        self.is_complete = not path.stream_ends

    def feed(self, chunk: bytes) -> None:
        if self._is_broken:
            return
        for frame in self._framer.feed(chunk):
            if isinstance(frame, Broken):  # a client may be able to read it
                self._is_broken = self.is_complete = True
                return
            self._read(frame.data)

    def finish(self) -> None:
        """Note the end of the stream."""
        if not self.is_complete and self.seen.failure is None:
            self.seen.failure = TRUNCATED

    def _read(self, data: bytes) -> None:
        self.has_event = True
        if data.strip() in self._ends:
            self.is_complete = True
            return
        answer = _observe(data, self.seen)
        if answer is None:
            return
        if self.seen.failure is not None or (isinstance(answer.type, str) and answer.type.encode() in self._ends):
            self.is_complete = True
        elif answer.choices is not _NULL and not self.is_complete:
            self.is_complete = _has_stopped(bytes(answer.choices))


def _has_stopped(choices: bytes) -> bool:
    try:
        return any(choice.finish_reason for choice in _choices.decode(choices) or ())
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
