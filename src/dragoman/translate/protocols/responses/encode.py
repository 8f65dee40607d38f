"""Encode hub events as a Responses stream or as a whole response.

Each block is an output item of its own, even if two texts follow each other. An item is announced as done when the
next one begins or the reply ends: only then is it known whether it was cut off.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw

from dragoman.translate.framing.sse import encode_event
from dragoman.translate.hub.events import (
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
    ToolReturned,
    UsageReported,
    collect,
    explode,
)
from dragoman.translate.hub.failure import Failure, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import KeptItem, ReplyContext, ReplyState, StoredReply
from dragoman.translate.hub.request import Citation
from dragoman.translate.hub.server_tools import MAX_RUNS_BYTES, ToolOutcome
from dragoman.translate.hub.usage import Usage
from dragoman.translate.passes.server_tools import seal_outcome
from dragoman.translate.protocols.responses import errors
from dragoman.translate.protocols.responses.encode_blocks import (
    FUNCTION,
    HOSTED_STEPS,
    HostedItem,
    OpenItem,
    begin_server_item,
    encode_annotation,
    encode_hosted_item,
    end_server_item,
    restore_item,
)
from dragoman.translate.protocols.responses.encode_response import (
    ResponseIdentity,
    ResponseProgress,
    Snapshot,
    make_snapshot,
)
from dragoman.translate.protocols.responses.wire import Item

Bytes = Sequence[bytes]

_DONE = b"data: [DONE]\n\n"

_REASON_BY_STOP = {
    Stop.LENGTH: "max_output_tokens",
    Stop.CONTEXT_FULL: "max_output_tokens",
    Stop.FILTERED: "content_filter",
}

_encode = msgspec.json.encode
# Looked up once: on Python 3.11, each look-up of a member is slow.
_CONTEXT_FULL, _PAUSE = Stop.CONTEXT_FULL, Stop.PAUSE


class Encoder:
    """Encode one reply as a Responses stream."""

    def __init__(self, context: ReplyContext, ledger: Ledger) -> None:
        self._context = context
        self._ledger = ledger
        self._snapshot: Snapshot | None = None
        self._sequence = 0 if context.state is None else context.state.announced
        self._indexes = 0
        self._open: dict[int, OpenItem | HostedItem | None] = {}  # by block; None if it has no item
        self._closed_item: OpenItem | HostedItem | None = None  # closed, but not yet announced as done
        self._output: dict[int, Raw] = {}
        self._kept: dict[int, KeptItem] = {}  # the same, where the reply is kept
        self._has_text = False
        self._sealed_bytes = 0  # of what tools have returned
        self._usage: Usage | None = None
        self.body: Raw = Raw()  # the final response object

    def feed(self, event: Event) -> Bytes:
        # Types are compared: a struct's class pattern that does not fit is slow.
        if type(event) is Delta:
            return self._encode_delta(event)
        if type(event) is Opened:
            what = event.what
            return self._encode_hosted(event.block, what) if type(what) is HostedBlock else self._open_item(event)
        if type(event) is Closed:
            return self._close_item(event.block)
        if type(event) is Started:
            self._usage = event.usage
            return self._encode_start(event.id)
        if type(event) is Ended:
            return self._encode_end(event)
        if type(event) is Failed:
            frames = [] if self._snapshot else [*self._encode_start("")]
            frames += self._finish_item("completed")
            error = errors.build_stream_error(event.failure)
            frames.append(self._encode_event("error", {"error": error}))
            return [*frames, *self._encode_terminal("failed", self._usage, error=error)]
        if type(event) is CitationAdded:
            return self._add_citation(event.block, event.citation)
        if type(event) is ToolReturned:
            return self._end_server_tool(event.block, event.outcome)
        if type(event) is OpaqueAdded:
            # Keep the opaque value even if the client did not ask for it: a later request needs it.
            item = self._open[event.block]
            if isinstance(item, OpenItem):
                item.opaque = event.opaque
        elif type(event) is UsageReported:
            self._usage = event.usage
        return ()

    def finish(self) -> Bytes:
        return ()

    def _encode_event(self, type_: str, fields: Item) -> bytes:
        number = self._sequence
        self._sequence = number + 1
        return encode_event(_encode({"type": type_, **fields, "sequence_number": number}), type_.encode())

    # Lifecycle

    def _encode_start(self, id_: str) -> Bytes:
        self._snapshot = self._make_snapshot(id_)
        response = self._snapshot.response(ResponseProgress("in_progress"))
        steps = ("in_progress",) if self._sequence else ("created", "in_progress")
        return [self._encode_event(f"response.{step}", {"response": response}) for step in steps]

    def _make_snapshot(self, id_: str) -> Snapshot:
        if self._context.state is not None:
            return make_snapshot(self._context.state.id, self._context)
        return make_snapshot(id_ if id_.startswith("resp_") else self._context.new_id("resp_"), self._context)

    def _encode_end(self, event: Ended) -> Bytes:
        reason = _REASON_BY_STOP.get(event.stop)
        status = "incomplete" if reason else "completed"
        if event.category:
            self._ledger.record_dropped("/stop_details/category", "Responses has no category of a refusal")
        if event.sequence is not None:
            self._ledger.record_dropped("/stop_sequence", "Responses does not report which stop sequence was hit")
        if event.stop is _CONTEXT_FULL:
            self._ledger.record_approximated(
                "/stop_reason", "Responses does not distinguish a full context from the token limit"
            )
        if event.stop is _PAUSE:
            self._ledger.record_approximated("/stop_reason", "Responses has no pause; sent as a natural end")
        if event.explanation and not self._has_text:
            frames = [*self._finish_item("completed"), *self._encode_explanation(event.explanation)]
        else:
            frames = [*self._finish_item(status)]
            if event.explanation:
                self._ledger.record_dropped(
                    "/stop_details/explanation", "Responses has an explanation only in place of a text"
                )
        return [*frames, *self._encode_terminal(status, self._usage or Usage(), reason=reason)]

    def _encode_explanation(self, explanation: str) -> Bytes:
        """Encode the reason of a refusal without text as the refusal's text."""
        block = max(self._open, default=-1) + 1
        opened = self._open_item(Opened(block, RefusalBlock()))
        delta = self._encode_delta(Delta(block, explanation))
        return [*opened, *delta, *self._close_item(block), *self._finish_item("completed")]

    def _encode_terminal(
        self,
        status: str,
        usage: Usage | None,
        error: dict[str, str | None] | None = None,
        reason: str | None = None,
    ) -> Bytes:
        snapshot = self._snapshot or self._make_snapshot("")
        output = [self._output[index] for index in sorted(self._output)]
        completed = self._completion_time() if status == "completed" else None
        progress = ResponseProgress(status, usage, error, reason, completed)
        self.body = snapshot.response(progress, output)
        if self._context.state is not None:
            head = snapshot.stored_head(progress)
            kept = tuple(self._kept[index] for index in sorted(self._kept))
            self._context.state.take(StoredReply(status, head, snapshot.settings, kept))
        last = self._encode_event(f"response.{status}", {"response": self.body})
        return (last, _DONE) if self._context.responses_done else (last,)

    def _completion_time(self) -> int:
        """Return the time of completion, never before the start even if the clock was set back."""
        return max(self._context.created, int(self._context.now()))

    # Blocks

    def _open_item(self, event: Opened) -> Bytes:
        frames = [*self._finish_item("completed")]
        item = OpenItem(event.what, self._next_index(), self._context.new_id)
        self._open[event.block] = item
        self._has_text = self._has_text or type(event.what) in (TextBlock, RefusalBlock)
        frames.append(self._encode_added(item.index, item.encode_initial()))
        # A reasoning item without text has no part.
        if item.events.prefix != "rs_":
            frames += self._open_part(item)
        return frames

    def _open_part(self, item: OpenItem) -> Bytes:
        item.open_part()
        if not item.events.part:
            return ()
        return (self._encode_event(f"{item.events.part}.added", {**item.position, "part": item.part("")}),)

    def _next_index(self) -> int:
        index = self._indexes
        self._indexes = index + 1
        return index

    def _encode_added(self, index: int, item: Item) -> bytes:
        return self._encode_event("response.output_item.added", {"output_index": index, "item": item})

    def _encode_delta(self, event: Delta) -> Bytes:
        item = self._open[event.block]
        if not isinstance(item, OpenItem):
            return ()
        if item.head is None or event.logprobs is not None:
            return self._encode_first_delta(item, event)
        if not event.text:
            return ()
        item.text.append(event.text)
        number = self._sequence
        self._sequence = number + 1
        return (b"%b%b%b%d}\n\n" % (item.head, _encode(event.text), item.tail, number),)

    def _encode_first_delta(self, item: OpenItem, event: Delta) -> Bytes:
        """Encode a delta that opens its part or carries log probabilities."""
        if not event.text and event.logprobs is None:
            return ()
        frames = [*self._open_part(item)] if item.head is None else []
        if event.logprobs is None:
            return [*frames, *self._encode_delta(event)]
        item.text.append(event.text)
        item.logprobs += msgspec.json.decode(event.logprobs, type=list[Raw])
        fields = {**item.position, "delta": event.text, "logprobs": event.logprobs}
        return [*frames, self._encode_event(item.events.delta, fields)]

    def _add_citation(self, block: int, citation: Citation) -> Bytes:
        item = self._open[block]
        if not isinstance(item, OpenItem):
            return ()
        bounded = citation.end is not None or (isinstance(citation.raw, dict) and "end_index" in citation.raw)
        if bounded and not item.citations:
            return self._encode_annotation(item, block, citation)
        item.citations.append(citation)
        return ()

    def _encode_annotation(self, item: OpenItem, block: int, citation: Citation) -> Bytes:
        annotation = encode_annotation(citation, item.length())
        if annotation is None:
            self._ledger.record_dropped(f"/content/{block}/citations", "Responses cites only what has an address")
            return ()
        if citation.raw is not None and annotation is not citation.raw:
            self._ledger.record_approximated(
                f"/content/{block}/citations", "a url_citation keeps address, title and bounds"
            )
        number = len(item.annotations)
        item.annotations.append(annotation)
        fields: Item = {**item.position, "annotation_index": number, "annotation": annotation}
        return (self._encode_event("response.output_text.annotation.added", fields),)

    def _close_item(self, block: int) -> Bytes:
        frames = [*self._finish_item("completed")]
        item = self._open[block]
        self._closed_item = item
        if not isinstance(item, OpenItem):
            return [*frames, *self._finish_item("completed")]  # it cannot be cut off
        if item.events is FUNCTION and not item.text:
            frames += self._encode_delta(Delta(block, "{}"))  # empty arguments are still a JSON object
        for citation in item.citations:
            frames += self._encode_annotation(item, block, citation)
        if item.head is None:
            return frames
        text = "".join(item.text)
        fields: Item = {**item.position, item.events.field: text}
        if item.events.field == "text" and isinstance(item.what, TextBlock):
            fields["logprobs"] = item.logprobs
        frames.append(self._encode_event(item.events.done, fields))
        if item.events.part:
            frames.append(self._encode_event(f"{item.events.part}.done", {**item.position, "part": item.part(text)}))
        return frames

    def _finish_item(self, status: str) -> Bytes:
        """Announce the item that was closed last as done; only the last item of a reply may be incomplete."""
        closed = self._closed_item
        if closed is None:
            return ()
        self._closed_item = None
        final = closed.encode_final(status if closed.index == self._indexes - 1 else "completed")
        state, hidden = self._context.state, None
        if state is not None and (state.hides_opaque or _hides_outcome(closed, state)) and "encrypted_content" in final:
            hidden = str(final.pop("encrypted_content"))
        item = Raw(_encode(final))
        self._output[closed.index] = item
        if state is not None:
            self._kept[closed.index] = KeptItem(str(final.get("id") or ""), bytes(item), hidden)
        return (self._encode_event("response.output_item.done", {"output_index": closed.index, "item": item}),)

    def _encode_hosted(self, block: int, hosted: HostedBlock) -> Bytes:
        if hosted.is_ours:
            return self._begin_server_tool(block, hosted)
        item = restore_item(hosted)
        if item is None:
            item = encode_hosted_item(hosted, self._context.new_id, sources=self._context.request.extras.search_sources)
            if item is None:
                self._open[block] = None
                self._ledger.record_dropped(f"/content/{block}", f"Responses has no item like {hosted.kind!r}")
                return ()
            self._ledger.record_approximated(
                f"/content/{block}", f"{item['type']} keeps input and results, nothing else"
            )
        hosted_item = self._open[block] = HostedItem(self._next_index(), item, hosted)
        started = {**item, "status": "in_progress"} if "status" in item else item
        if "result" in item:  # an image is sent once, when it is done
            started = {**started, "result": None}
        frames = [*self._finish_item("completed"), self._encode_added(hosted_item.index, started)]
        if item.get("status") in (None, "completed"):
            frames += self._encode_steps(hosted_item, HOSTED_STEPS.get(str(item["type"]), ()))
        return frames

    def _begin_server_tool(self, block: int, hosted: HostedBlock) -> Bytes:
        """Announce a tool that the gateway is about to run."""
        begun = begin_server_item(hosted, self._context.new_id)
        item = self._open[block] = HostedItem(self._next_index(), begun, hosted)
        frames = [*self._finish_item("completed"), self._encode_added(item.index, item.item)]
        return [*frames, *self._encode_steps(item, ("in_progress", "searching"))]

    def _end_server_tool(self, block: int, outcome: ToolOutcome) -> Bytes:
        item = self._open[block]
        assert isinstance(item, HostedItem)
        item.item = end_server_item(item.item, outcome, sources=self._context.request.extras.search_sources)
        self._seal_outcome(block, item, outcome)
        return () if item.item["status"] == "failed" else self._encode_steps(item, ("completed",))

    def _seal_outcome(self, block: int, item: HostedItem, outcome: ToolOutcome) -> None:
        """Keep what the tool returned for later turns, in the store or with a client that keeps opaque values."""
        state = self._context.state
        if not (state is not None and state.holds) and not self._context.request.extras.encrypted_reasoning:
            return  # Responses shows a search by its query and sources; later turns note what they lack
        sealed = seal_outcome(item.block, outcome)
        self._sealed_bytes += len(sealed)
        if self._sealed_bytes > MAX_RUNS_BYTES:
            why = f"later turns do not have what this tool returned: more than {MAX_RUNS_BYTES} bytes in one reply"
            self._ledger.record_dropped(f"/content/{block}", why)
            return
        item.sealed = sealed

    def _encode_steps(self, item: HostedItem, steps: Iterable[str]) -> Bytes:
        place: Item = {"item_id": item.item.get("id"), "output_index": item.index}
        return [self._encode_event(f"response.{item.item['type']}.{step}", place) for step in steps]


def _hides_outcome(item: OpenItem | HostedItem, state: ReplyState) -> bool:
    """Whether what a tool of the gateway returned is kept here, so that the client need not keep it."""
    return type(item) is HostedItem and item.sealed is not None and state.holds


class BodyEncoder(Encoder):
    """Makes the response object that ends a stream, without its events."""

    def _encode_event(self, type_: str, fields: Item) -> bytes:
        return b""

    def _encode_start(self, id_: str) -> Bytes:
        self._snapshot = self._make_snapshot(id_)
        return ()

    def _open_part(self, item: OpenItem) -> Bytes:
        item.head = b""  # no delta is written
        return ()


def encode_whole(events: Iterable[Event], context: ReplyContext, ledger: Ledger) -> bytes:
    """Return the whole body: the response object that ends a stream of the same events."""
    reply = collect(events)
    if type(reply.end) is Failed:
        raise RequestError(reply.end.failure)
    machine = BodyEncoder(context, ledger)
    for event in explode(reply):
        machine.feed(event)
    return bytes(machine.body)


def render_stream_error(failure: Failure, started: Started | None, frames: int, stream_type: bytes) -> bytes:
    """Return what to append to an upstream's stream that broke off: the error and the failed response."""
    known = started or Started("", "")
    error = errors.build_stream_error(failure)
    snapshot = Snapshot(ResponseIdentity(known.id, known.model, 0), {})
    response = snapshot.response(ResponseProgress("failed", error=error))
    hosted_item: tuple[tuple[str, Item], ...] = (
        ("error", {"error": error}),
        ("response.failed", {"response": response}),
    )
    return b"".join(
        encode_event(_encode({"type": type_, **fields, "sequence_number": number}), type_.encode())
        for number, (type_, fields) in enumerate(hosted_item, frames)
    )
