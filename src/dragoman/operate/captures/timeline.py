"""The timeline of a capture: what the upstream sent, which hub events it became, and what the client received."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.proxy.capture.format import (
    CLOSED,
    WHOLE,
    Capture,
    CapturedToolRun,
    Chunk,
    LookupName,
    UpstreamRequest,
    find_values,
    parse_event,
)
from dragoman.translate.framing.eventstream import CONTENT_TYPE, EventStreamFramer, EventStreamMessage
from dragoman.translate.framing.sse import Broken, SseFramer
from dragoman.translate.framing.sse import Frame as SseFrame
from dragoman.translate.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    HostedBlock,
    OpaqueAdded,
    Opened,
    Started,
    ToolReturned,
    UsageReported,
)
from dragoman.translate.hub.ports import Stage
from dragoman.translate.hub.request import Json
from dragoman.translate.hub.server_tools import SearchFound, ToolFailure, ToolOutcome, WebPage

EVENT_STREAM = "text/event-stream"
OMITTED = "(... not kept ...)"  # a chunk without bytes stands for chunks that were not kept

# Fields that say nothing about one frame of a stream, and fields that are the same in all of them.
OMITTED_FIELDS = frozenset(
    ("type", "object", "index", "created", "created_at", "logprobs", "role", "sequence_number", "obfuscation")
)
REPEATED_FIELDS = frozenset(
    ("id", "item_id", "model", "output_index", "content_index", "service_tier", "system_fingerprint")
)
QUOTED_NAME = re.compile(r'"([A-Za-z_]\w*)":')

Side = Literal["upstream", "hub", "client"]
Frame = tuple[float, str]  # when its last byte arrived, and its text


class TimelineEntry(Struct, frozen=True):
    """Something that happened, in seconds since the request arrived."""

    at: float
    side: Side
    text: str


class _Error(Struct):
    message: str = ""


class _ErrorBody(Struct):
    """An error body, as far as all client protocols agree on it."""

    error: _Error


def build_timeline(capture: Capture) -> list[TimelineEntry]:
    """Return everything that a capture holds, in the order of time."""
    return sorted(_entries(capture), key=lambda entry: entry.at)


def failure_message(capture: Capture) -> str:
    """Return the message of the failure in the stream, else of the error that the client received, else ''."""
    for timed in reversed(capture.events):
        event = parse_event(timed.event)
        if isinstance(event, Failed):
            return event.failure.message
    if capture.response is None or capture.response.status < 400:
        return ""
    body = b"".join(chunk.data for chunk in capture.response.chunks)
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error.message
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def shorten_frame(text: str) -> str:
    """Return a frame's name and JSON without the fields that are the same in every frame of a stream."""
    name, space, data = text.partition(" ")
    if text.startswith("{"):
        name, space, data = "", "", text
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return text
    if not isinstance(value, dict):
        return text
    shown = QUOTED_NAME.sub(r"\1:", msgspec.json.encode(_prune(_reorder(value))).decode())
    return f"{name.removesuffix('Event').removeprefix('response.')}{space}{shown[1:-1]}"


def _entries(capture: Capture) -> Iterator[TimelineEntry]:
    for request in capture.upstream_requests:
        yield from _upstream_entries(request)
    for run in find_values(capture, LookupName.TOOL_RUN):
        yield from describe_run(run)
    for timed in capture.events:
        yield TimelineEntry(timed.at, "hub", describe_event(parse_event(timed.event)))
    if capture.response is not None:
        chunks = capture.response.chunks
        at = chunks[0].at if chunks else capture.duration_ms / 1000
        content_type = dict(capture.response.headers).get("content-type", "")
        yield TimelineEntry(at, "client", f"< {capture.response.status} {content_type}")
        yield from (TimelineEntry(at, "client", text) for at, text in _read_frames(chunks, content_type))


def _upstream_entries(request: UpstreamRequest) -> Iterator[TimelineEntry]:
    yield TimelineEntry(request.at, "upstream", describe_request(request.method, request.url, len(request.body)))
    response = request.response
    if response is None:
        yield TimelineEntry(request.at, "upstream", f"({request.error})")
        return
    content_type = dict(response.headers).get("content-type", "")
    yield TimelineEntry(response.at, "upstream", f"< {response.status} {content_type}")
    yield from (TimelineEntry(at, "upstream", text) for at, text in _read_frames(response.chunks, content_type))
    yield TimelineEntry(response.ended_at, "upstream", describe_end(response.end))


def describe_run(run: Json) -> list[TimelineEntry]:
    """Return the beginning and the end of a server tool's run."""
    tool = msgspec.convert(run, CapturedToolRun)
    ended_at = tool.at + tool.duration_s
    return [
        TimelineEntry(tool.at, "upstream", f"> {tool.tool} {_quote(tool.input)}, {tool.backend}"),
        TimelineEntry(ended_at, "upstream", f"< {tool.tool} {describe_outcome(tool.outcome)}"),
    ]


def describe_request(method: str, url: str, size: int) -> str:
    """Return one line for a request to an upstream."""
    parts = urlsplit(url)
    return f"> {method} {parts.netloc}{parts.path}, {size} bytes"


def describe_end(end: str) -> str:
    """Return one line for the end of a response."""
    ends = {WHOLE: "(end)", CLOSED: "(closed by the gateway)"}
    return ends.get(end, f"({end})")


def describe_event(event: Event) -> str:
    """Return one line for a hub event."""
    match event:
        case Delta(block=block, text=text):
            return f"delta {block} {_quote(text)}"
        case Opened(block=block, what=CallBlock(name=name, id=id)):
            return f"opened {block} call {name} {id}"
        case Opened(block=block, what=HostedBlock(kind=kind)):
            return f"opened {block} hosted {kind}"
        case Opened(block=block, what=what):
            return f"opened {block} {type(what).__name__.removesuffix('Block').lower()}"
        case ToolReturned(block=block, outcome=outcome):
            return f"returned {block} {describe_outcome(outcome)}"
        case Closed(block=block):
            return f"closed {block}"
        case OpaqueAdded(block=block, opaque=opaque):
            return f"sealed {block} {opaque.form.value}, {len(opaque.payload)} characters"
        case CitationAdded(block=block):
            return f"cited {block} {msgspec.json.encode(event.citation).decode()}"
        case Started(id=id, model=model):
            return f"started {id} {model}".rstrip()
        case UsageReported(usage=usage):
            counts = f"{usage.input} in, {usage.output} out" if usage.context is None else f"{usage.context} in all"
            return f"used {counts}, {usage.source.value}"
        case Ended(stop=stop, cut=cut):
            calls = "".join(f", cut {call.name} {_quote(call.arguments)}" for call in cut)
            return f"ended {stop.value}{calls}"
        case Failed(failure=failure):
            return f"failed {failure.kind.value}: {failure.message}"


def describe_outcome(outcome: ToolOutcome | None) -> str:
    """Return what a server tool returned, in a few words."""
    match outcome:
        case SearchFound(results=results):
            return f"found {len(results)} {'page' if len(results) == 1 else 'pages'}"
        case WebPage(url=url, text=text, pdf=pdf):
            return f"read {url}, {f'{len(text)} characters' if pdf is None else 'a PDF'}"
        case ToolFailure(code=code, message=message):
            return f"failed {code.value}: {message}"
        case None:
            return "(given up)"


class FrameCutter:
    """Cuts the bytes of a response into frames as they arrive; any other body is one text for each chunk."""

    def __init__(self, content_type: str) -> None:
        self._make_framer = _find_framer(content_type)
        self._framer = None if self._make_framer is None else self._make_framer()
        self._at = 0.0

    def feed(self, chunk: Chunk) -> Iterator[Frame]:
        if self._framer is None or self._make_framer is None:
            yield chunk.at, chunk.data.decode(errors="replace") if chunk.data else OMITTED
        elif not chunk.data:
            self._framer = self._make_framer()
            yield self._at, OMITTED
        else:
            self._at = chunk.at
            yield from ((chunk.at, describe_frame(frame)) for frame in self._framer.feed(chunk.data))

    def finish(self) -> Iterator[Frame]:
        """Yield what the bytes that are left over make; once, after the last chunk."""
        if self._framer is not None:
            yield from ((self._at, describe_frame(frame)) for frame in self._framer.finish())


def _find_framer(content_type: str) -> Callable[[], Stage[bytes, object]] | None:
    if content_type.startswith(CONTENT_TYPE):
        return EventStreamFramer
    return SseFramer if content_type.startswith(EVENT_STREAM) else None


def _read_frames(chunks: Sequence[Chunk], content_type: str) -> Iterator[Frame]:
    reader = FrameCutter(content_type)
    for chunk in chunks:
        yield from reader.feed(chunk)
    yield from reader.finish()


def describe_frame(frame: object) -> str:
    """Return one text for a frame, whatever framed it."""
    match frame:
        case SseFrame(event=event, data=data):
            return f"{event} {data.decode(errors='replace')}".strip()
        case EventStreamMessage(headers=headers, payload=payload):
            name = headers.get(":event-type") or headers.get(":exception-type") or headers.get(":message-type") or ""
            return f"{name!s} {payload.decode(errors='replace')}".strip()
        case Broken(why=why):
            return f"(malformed: {why})"
        case _:
            return str(frame)


def _reorder(value: dict[str, object]) -> dict[str, object]:
    """Put what is new in this frame first: a Chat chunk's choice, and the repeated fields last."""
    choices = value.get("choices")
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        value = {**choices[0], **{name: inner for name, inner in value.items() if name != "choices"}}
    return dict(sorted(value.items(), key=lambda item: item[0] in REPEATED_FIELDS))


def _prune(value: object) -> object:
    if isinstance(value, dict):
        kept = {name: _prune(inner) for name, inner in value.items() if name not in OMITTED_FIELDS}
        return {name: inner for name, inner in kept.items() if inner is not None and inner not in ({}, [])}
    return [_prune(inner) for inner in value] if isinstance(value, list) else value


def _quote(text: str) -> str:
    return msgspec.json.encode(text.encode(errors="replace").decode()).decode()
