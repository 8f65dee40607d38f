"""Hub events come in and a Responses client's stream goes out, one SSE event per item; or one whole body.

Each block is an output item of its own, also where two texts follow each other. An item is announced as done when the
next one begins or the reply ends: only then is it known whether it was cut off.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw

from dragoman.framing.sse import encode_event
from dragoman.hub.events import (
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    OpaqueAdded,
    Opened,
    RefusalBlock,
    Started,
    Stop,
    TextBlock,
    UsageReported,
)
from dragoman.hub.failure import Failure, RequestError
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Opaque
from dragoman.hub.ports import ReplyContext
from dragoman.hub.reply import collect, explode
from dragoman.hub.request import Citation
from dragoman.hub.usage import Usage
from dragoman.protocols.responses import errors
from dragoman.protocols.responses.encode_blocks import FUNCTION, Writing, annotation_of, is_own, like_item, own_item
from dragoman.protocols.responses.encode_snapshot import Snapshot, snapshot_of
from dragoman.protocols.responses.wire import Item

Bytes = Sequence[bytes]

_DONE = b"data: [DONE]\n\n"

_REASON_BY_STOP = {
    Stop.LENGTH: "max_output_tokens",
    Stop.CONTEXT_FULL: "max_output_tokens",
    Stop.FILTERED: "content_filter",
}

_HOSTED_STEPS = {
    "web_search_call": ("in_progress", "searching", "completed"),
    "file_search_call": ("in_progress", "searching", "completed"),
    "code_interpreter_call": ("in_progress", "interpreting", "completed"),
    "image_generation_call": ("in_progress", "generating", "completed"),
    "mcp_call": ("in_progress", "completed"),
    "mcp_list_tools": ("in_progress", "completed"),
}

_encode = msgspec.json.encode


class _Told:
    """A hosted item, which is whole from the start."""

    __slots__ = ("index", "item")

    def __init__(self, index: int, item: Item) -> None:
        self.index = index
        self.item = item

    def finished(self, status: str) -> Item:
        return self.item


class Encoder:
    """Stage[Event, bytes]."""

    def __init__(self, asked: ReplyContext, ledger: Ledger) -> None:
        self._asked = asked
        self._ledger = ledger
        self._snapshot: Snapshot | None = None
        self._sequence = 0
        self._indexes = 0
        self._open: dict[int, Writing | _Told | None] = {}  # block -> its item; None if it has none here
        self._held: Writing | _Told | None = None  # closed, but not yet announced as done
        self._output: dict[int, Raw] = {}
        self._spoke = False
        self._usage: Usage | None = None
        self.body: Raw = Raw()  # the final response object

    def feed(self, event: Event) -> Bytes:
        match event:
            case Delta():
                return self._delta(event)
            case Opened(block=block, what=HostedBlock() as hosted):
                return self._hosted(block, hosted)
            case Opened():
                return self._opened(event)
            case Closed(block=block):
                return self._closed(block)
            case OpaqueAdded(block=block, opaque=opaque):
                self._sealed(block, opaque)
            case CitationAdded(block=block, citation=citation):
                return self._cited(block, citation)
            case Started():
                self._usage = event.usage
                return self._started(event.id)
            case UsageReported(usage=usage):
                self._usage = usage
            case Ended():
                return self._ended(event)
            case Failed(failure=failure):
                return self._failed(failure)
        return ()

    def finish(self) -> Bytes:
        return ()

    def _event(self, type_: str, fields: Item) -> bytes:
        number = self._sequence
        self._sequence = number + 1
        return encode_event(_encode({"type": type_, **fields, "sequence_number": number}), type_.encode())

    # Lifecycle

    def _started(self, id_: str) -> Bytes:
        self._snapshot = snapshot_of(id_ if id_.startswith("resp_") else self._asked.new_id("resp_"), self._asked)
        response = self._snapshot.response("in_progress")
        return [self._event(f"response.{step}", {"response": response}) for step in ("created", "in_progress")]

    def _ended(self, event: Ended) -> Bytes:
        reason = _REASON_BY_STOP.get(event.stop)
        status = "incomplete" if reason else "completed"
        if event.category:
            self._ledger.note_dropped("/stop_details/category", "responses has no category of a refusal")
        if event.sequence is not None:
            self._ledger.note_dropped("/stop_sequence", "responses does not tell which stop sequence was hit")
        if event.stop is Stop.CONTEXT_FULL:
            self._ledger.note_approximated(
                "/stop_reason", "responses does not tell a full context from the cap on tokens"
            )
        if event.stop is Stop.PAUSE:
            self._ledger.note_approximated(
                "/stop_reason", "responses cannot ask to be continued; the reply counts as ended"
            )
        if event.explanation and not self._spoke:
            frames = [*self._flush("completed"), *self._explained(event.explanation)]
        else:
            frames = [*self._flush(status)]
            if event.explanation:
                self._ledger.note_dropped(
                    "/stop_details/explanation", "responses tells a refusal only in place of a text"
                )
        return [*frames, *self._terminal(status, self._usage or Usage(), reason=reason)]

    def _explained(self, explanation: str) -> Bytes:
        """A refusal of which the vendor tells only the reason: the one place to say it is the refusal's text."""
        block = max(self._open, default=-1) + 1
        opened = self._opened(Opened(block, RefusalBlock()))
        said = self._delta(Delta(block, explanation))
        return [*opened, *said, *self._closed(block), *self._flush("completed")]

    def _failed(self, failure: Failure) -> Bytes:
        frames = [] if self._snapshot else [*self._started("")]
        frames += self._flush("completed")
        error = errors.stream_error(failure)
        frames.append(self._event("error", {"error": error}))
        return [*frames, *self._terminal("failed", self._usage, error=error)]

    def _terminal(
        self,
        status: str,
        usage: Usage | None,
        error: dict[str, str | None] | None = None,
        reason: str | None = None,
    ) -> Bytes:
        snapshot = self._snapshot or snapshot_of(self._asked.new_id("resp_"), self._asked)
        output = [self._output[index] for index in sorted(self._output)]
        completed = self._completed() if status == "completed" else None
        self.body = snapshot.response(status, output, usage, error, reason, completed)
        last = self._event(f"response.{status}", {"response": self.body})
        return (last, _DONE) if self._asked.responses_done else (last,)

    def _completed(self) -> int:
        """When: never before the beginning, also where the clock was set back since."""
        return max(self._asked.created, int(self._asked.now()))

    # Blocks

    def _opened(self, event: Opened) -> Bytes:
        frames = [*self._flush("completed")]
        writing = Writing(event.what, self._next_index(), self._asked.new_id)
        self._open[event.block] = writing
        self._spoke = self._spoke or isinstance(event.what, TextBlock | RefusalBlock)
        frames.append(self._added(writing.index, writing.begun()))
        # A reasoning item may turn out to have no text at all, and then it has no part either.
        if writing.manner.prefix != "rs_":
            frames += self._begin(writing)
        return frames

    def _begin(self, writing: Writing) -> Bytes:
        writing.begin()
        if not writing.manner.part:
            return ()
        return (self._event(f"{writing.manner.part}.added", {**writing.place, "part": writing.part("")}),)

    def _next_index(self) -> int:
        index = self._indexes
        self._indexes = index + 1
        return index

    def _added(self, index: int, item: Item) -> bytes:
        return self._event("response.output_item.added", {"output_index": index, "item": item})

    def _delta(self, event: Delta) -> Bytes:
        writing = self._open[event.block]
        if not isinstance(writing, Writing):
            return ()
        if writing.head is None or event.logprobs is not None:
            return self._first_delta(writing, event)
        if not event.text:
            return ()
        writing.text.append(event.text)
        number = self._sequence
        self._sequence = number + 1
        return (b"%b%b%b%d}\n\n" % (writing.head, _encode(event.text), writing.tail, number),)

    def _first_delta(self, writing: Writing, event: Delta) -> Bytes:
        """A delta that is not merely more of the same: it opens its part, or carries log probabilities."""
        if not event.text and event.logprobs is None:
            return ()
        frames = [*self._begin(writing)] if writing.head is None else []
        if event.logprobs is None:
            return [*frames, *self._delta(event)]
        writing.text.append(event.text)
        writing.logprobs += msgspec.json.decode(event.logprobs, type=list[Raw])
        fields = {**writing.place, "delta": event.text, "logprobs": event.logprobs}
        return [*frames, self._event(writing.manner.delta, fields)]

    def _sealed(self, block: int, opaque: Opaque) -> None:
        """Whether or not it was to be included: no later request could name the thought, for nothing is stored."""
        writing = self._open[block]
        if isinstance(writing, Writing):
            writing.opaque = opaque

    def _cited(self, block: int, citation: Citation) -> Bytes:
        writing = self._open[block]
        if not isinstance(writing, Writing):
            return ()
        bounded = citation.end is not None or (isinstance(citation.raw, dict) and "end_index" in citation.raw)
        if bounded and not writing.citations:
            return self._annotate(writing, block, citation)
        writing.citations.append(citation)
        return ()

    def _annotate(self, writing: Writing, block: int, citation: Citation) -> Bytes:
        annotation = annotation_of(citation, writing.length())
        if annotation is None:
            self._ledger.note_dropped(f"/content/{block}/citations", "responses cites only what has an address")
            return ()
        if not is_own(annotation, citation):
            self._ledger.note_approximated(
                f"/content/{block}/citations", "a url_citation keeps address, title and bounds"
            )
        number = len(writing.annotations)
        writing.annotations.append(annotation)
        fields: Item = {**writing.place, "annotation_index": number, "annotation": annotation}
        return (self._event("response.output_text.annotation.added", fields),)

    def _closed(self, block: int) -> Bytes:
        frames = [*self._flush("completed")]
        writing = self._open[block]
        self._held = writing
        if not isinstance(writing, Writing):
            return frames
        if writing.manner is FUNCTION and not writing.text:
            frames += self._delta(Delta(block, "{}"))  # arguments are the JSON of an object, also when there are none
        for citation in writing.citations:
            frames += self._annotate(writing, block, citation)
        if writing.head is None:
            return frames
        text = "".join(writing.text)
        fields: Item = {**writing.place, writing.manner.field: text}
        if writing.manner.field == "text" and isinstance(writing.what, TextBlock):
            fields["logprobs"] = writing.logprobs
        frames.append(self._event(writing.manner.done, fields))
        if writing.manner.part:
            frames.append(self._event(f"{writing.manner.part}.done", {**writing.place, "part": writing.part(text)}))
        return frames

    def _flush(self, status: str) -> Bytes:
        """Announces the item that was closed last as done; only the last item of a reply may be incomplete."""
        held = self._held
        if held is None:
            return ()
        self._held = None
        item = Raw(_encode(held.finished(status if held.index == self._indexes - 1 else "completed")))
        self._output[held.index] = item
        return (self._event("response.output_item.done", {"output_index": held.index, "item": item}),)

    def _hosted(self, block: int, hosted: HostedBlock) -> Bytes:
        item = own_item(hosted)
        if item is None:
            item = like_item(hosted, self._asked.new_id)
            if item is None:
                self._open[block] = None
                self._ledger.note_dropped(f"/content/{block}", f"responses has no item like {hosted.kind!r}")
                return ()
            self._ledger.note_approximated(
                f"/content/{block}", f"{item['type']} keeps what was asked and found, not the rest"
            )
        told = self._open[block] = _Told(self._next_index(), item)
        frames = [*self._flush("completed")]
        return [*frames, *self._steps(told)]

    def _steps(self, told: _Told) -> Bytes:
        item = told.item
        has_status = "status" in item
        frames = [self._added(told.index, {**item, "status": "in_progress"} if has_status else item)]
        if item.get("status") in (None, "completed"):
            place: Item = {"item_id": item.get("id"), "output_index": told.index}
            for step in _HOSTED_STEPS.get(str(item["type"]), ()):
                frames.append(self._event(f"response.{item['type']}.{step}", place))
        return frames


def whole(events: Iterable[Event], asked: ReplyContext, ledger: Ledger) -> bytes:
    """The whole body: the response object with which a stream of the same events ends."""
    reply = collect(events)
    if isinstance(reply.end, Failed):
        raise RequestError(reply.end.failure)
    machine = Encoder(asked, ledger)
    for event in explode(reply):
        machine.feed(event)
    return bytes(machine.body)


def repair(failure: Failure, started: Started | None, frames: int) -> bytes:
    """What follows the bytes of an upstream's stream that broke off: the error, and the response that failed."""
    known = started or Started("", "")
    error = errors.stream_error(failure)
    response = Snapshot(known.id, known.model, 0, {}).response("failed", error=error)
    told: tuple[tuple[str, Item], ...] = (("error", {"error": error}), ("response.failed", {"response": response}))
    return b"".join(
        encode_event(_encode({"type": type_, **fields, "sequence_number": number}), type_.encode())
        for number, (type_, fields) in enumerate(told, frames)
    )
