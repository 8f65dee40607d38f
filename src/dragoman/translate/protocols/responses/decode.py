"""Decode a Responses reply, streamed or whole, into hub events."""

from collections.abc import Callable, Iterator
from itertools import count

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dragoman.translate.framing.jsonread import (
    parse_or,
    read_json_leniently,
    replace_invalid_utf8,
    replace_lone_surrogates,
)
from dragoman.translate.framing.sse import Broken, Frame
from dragoman.translate.hub.events import (
    Closed,
    Ended,
    Event,
    Failed,
    HostedBlock,
    Opened,
    Started,
    Stop,
    UsageReported,
    find_excess,
)
from dragoman.translate.hub.failure import NO_REPLY, Failure, Kind
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Issuer, Progress
from dragoman.translate.hub.request import Citation, Json
from dragoman.translate.hub.server_tools import FETCH, SEARCH
from dragoman.translate.hub.usage import Usage, clamp_usage
from dragoman.translate.protocols.responses import errors, wire
from dragoman.translate.protocols.responses.decode_blocks import Calls, Events, MessageItems, ReasoningItems
from dragoman.translate.protocols.responses.wire import HOSTED_ITEMS, SEARCH_ITEM, Item, text_at

_STOP_BY_REASON = {"max_output_tokens": Stop.LENGTH, "content_filter": Stop.FILTERED}
_CALLS = {"function_call": False, "custom_tool_call": True}  # item type -> custom
_STREAMED_TYPES = frozenset(("message", "reasoning", *_CALLS))  # item types with a class in decode_blocks
_notice = msgspec.json.Decoder(wire.StreamEvent)
_typed = msgspec.json.Decoder(wire.TypeOnly)
_error_event = msgspec.json.Decoder(wire.ErrorEvent)
_response = msgspec.json.Decoder(wire.Response)
_part = msgspec.json.Decoder(wire.Part)
_message_item = msgspec.json.Decoder(wire.MessageItem)
_reasoning_item = msgspec.json.Decoder(wire.ReasoningItem)
_call_item = msgspec.json.Decoder(wire.CallItem)
_object = msgspec.json.Decoder(dict[str, object])


def _read_hosted(type_: str, item: Item) -> HostedBlock:
    """Return the block of a finished hosted item; `raw` is for clients of this protocol."""
    id_ = item.get("id")
    read = _READERS.get(type_)
    input_, results = read(item) if read else ({}, None)
    output, failed = _read_outcome(type_, item)
    kind = FETCH if type_ == SEARCH_ITEM and "url" in input_ else HOSTED_ITEMS[type_]
    return HostedBlock(id_ if isinstance(id_, str) else "", kind, input_, results, item, output, failed)


def _read_search(item: Item) -> tuple[Item, tuple[Citation, ...] | None]:
    action = item.get("action")
    if not isinstance(action, dict):
        return {}, None
    queries = action.get("queries")
    query = action.get("query") or (queries[0] if isinstance(queries, list) and queries else None)
    fields = {"query": query, "url": action.get("url"), "pattern": action.get("pattern")}
    sources = action.get("sources")
    return {key: value for key, value in fields.items() if isinstance(value, str)}, (
        tuple(_read_sources(sources)) if isinstance(sources, list) else None
    )


def _read_sources(sources: list[Json]) -> Iterator[Citation]:
    for source in sources:
        if isinstance(source, dict) and isinstance(url := source.get("url"), str):
            title = source.get("title")
            yield Citation(url=url, title=title if isinstance(title, str) else None)


def _read_code(item: Item) -> tuple[Item, None]:
    return {"code": text_at(item, "code")}, None


def _read_mcp(item: Item) -> tuple[Item, None]:
    arguments = text_at(item, "arguments")
    parsed: Json = parse_or(arguments, object, arguments) if arguments else {}
    return {"server": text_at(item, "server_label"), "name": text_at(item, "name"), "arguments": parsed}, None


def _read_outcome(type_: str, item: Item) -> tuple[str | None, bool]:
    """Return what the tool printed or returned, and whether that is an error."""
    match type_:
        case _ if type_ == SEARCH_ITEM:
            return None, item.get("status") == "failed"
        case "code_interpreter_call":
            outputs = item.get("outputs")
            entries = outputs if isinstance(outputs, list) else []
            logs = [text_at(output, "logs") for output in entries if isinstance(output, dict)]
            return ("".join(logs) if logs else None), item.get("status") == "failed"
        case "mcp_call":
            failure = item.get("error")
            if failure is not None:
                return (failure if isinstance(failure, str) else msgspec.json.encode(failure).decode()), True
            return text_at(item, "output") or None, False
        case "image_generation_call":
            return text_at(item, "result") or None, item.get("status") == "failed"
    return None, False


_READERS: dict[str, Callable[[Item], tuple[Item, tuple[Citation, ...] | None]]] = {
    SEARCH_ITEM: _read_search,
    "code_interpreter_call": _read_code,
    "mcp_call": _read_mcp,
    "image_generation_call": lambda item: ({"media_type": f"image/{text_at(item, 'output_format') or 'png'}"}, None),
}


class Decoder:
    """Decode the frames of one reply."""

    def __init__(self, issuer: Issuer, ledger: Ledger) -> None:
        self._ledger = ledger
        self._started = False
        self._is_over = False
        self._block_numbers = count()
        self._messages = MessageItems(self._block_numbers)
        self._thoughts = ReasoningItems(self._block_numbers, issuer)
        self._calls = Calls(self._block_numbers)
        self._finished_types: dict[int, set[str]] = {}  # item types finished at an output_index
        self._early_items: dict[int, Raw] = {}  # finished items that came before their predecessor
        self._searches = self._pages = 0
        self._error_event: wire.Error | None = None  # usually followed by a failed response
        self.progress = Progress.READING
        self._readers = self._make_readers()

    def feed(self, item: object) -> Events:
        if self._is_over:
            return ()
        if not isinstance(item, Frame):
            return self._fail(Kind.CORRUPT, item.why if isinstance(item, Broken) else "not an event")
        try:
            notice = _notice.decode(item.data)
            reader = self._readers.get(notice.type)
            if reader is not None:
                events = reader(notice)
            elif notice.type in ("error", ""):
                events = self._read_error_event(item.data)
            else:
                return ()
        except (ValueError, RecursionError) as error:
            return self._read_invalid(item, error)
        return events if self._started or not events else self._ensure_started(events)

    def finish(self) -> Events:
        if self._is_over:
            return ()
        if self._error_event is not None:
            return self._fail_with(errors.read_stream_error(self._error_event))
        return self._fail(Kind.TRUNCATED, "the upstream's stream ended without its terminal event")

    def read_whole(self, response: wire.Response) -> list[Event]:
        """Return the events of a whole reply."""
        started = Started(response.id or "", response.model or "")
        match response.status:
            case "completed" | None:
                return [started, *self._read_completed(response)]
            case "incomplete":
                return [started, *self._read_incomplete(response)]
            case "failed":
                return [started, *self._read_failed(response)]
        return [started, *self._fail(Kind.UPSTREAM, f"the upstream's reply is not finished: {response.status}")]

    def _make_readers(self) -> dict[str, Callable[[wire.StreamEvent], Events]]:
        messages, thoughts, calls = self._messages, self._thoughts, self._calls
        return {
            "response.output_text.delta": messages.text_delta,
            "response.function_call_arguments.delta": calls.delta,
            "response.custom_tool_call_input.delta": calls.delta,
            "response.reasoning_summary_text.delta": thoughts.summary_delta,
            "response.reasoning_text.delta": thoughts.raw_delta,
            "response.reasoning.delta": thoughts.raw_delta,  # Open Responses' spelling
            "response.refusal.delta": messages.refusal_delta,
            "response.output_text.annotation.added": messages.add_annotation,
            "response.output_text.done": messages.text_done,
            "response.refusal.done": messages.refusal_done,
            "response.content_part.done": self._read_part_done,
            "response.function_call_arguments.done": calls.arguments_done,
            "response.custom_tool_call_input.done": calls.input_done,
            "response.reasoning_summary_text.done": thoughts.summary_done,
            "response.reasoning_summary_part.done": thoughts.summary_part_done,
            "response.reasoning_text.done": thoughts.raw_done,
            "response.reasoning.done": thoughts.raw_done,
            "response.output_item.added": self._read_item_added,
            "response.output_item.done": self._read_item_done,
            "response.created": self._read_created,
            "response.queued": self._read_created,
            "response.in_progress": self._read_created,
            "response.completed": lambda notice: self._read_completed(_read_response(notice.response)),
            "response.incomplete": lambda notice: self._read_incomplete(_read_response(notice.response)),
            "response.failed": lambda notice: self._read_failed(_read_response(notice.response)),
            "response.cancelled": lambda _: self._fail(Kind.UPSTREAM, "the upstream's response was cancelled"),
        }

    def _ensure_started(self, events: Events) -> Events:
        self._started = True
        return events if isinstance(events[0], Failed) else [Started("", ""), *events]

    def _read_invalid(self, item: Frame, error: Exception) -> Events:
        data = item.data.strip()
        if not data or data == b"[DONE]":
            return ()
        if isinstance(error, msgspec.ValidationError):
            try:
                known = _typed.decode(data).type in self._readers
            except (ValueError, RecursionError):
                known = True
            return self._fail(Kind.CORRUPT, f"the upstream sent an event of a wrong shape: {error}") if known else ()
        repaired = replace_lone_surrogates(data)
        if repaired != data:
            return self.feed(Frame(item.event, repaired))
        if "truncated" in str(error):  # the last event of a cut stream
            return self._fail(Kind.TRUNCATED, "the upstream's stream ended within an event")
        return self._fail(Kind.CORRUPT, f"the upstream sent an event that is not JSON: {error}")

    # Lifecycle

    def _read_created(self, notice: wire.StreamEvent) -> Events:
        if self._started:
            return ()
        self._started = True
        response = _read_response(notice.response)
        return (Started(response.id or "", response.model or ""),)

    def _read_completed(self, response: wire.Response) -> Events:
        events = self._finish_items(response)
        if self._calls.has_unfinished():
            events += self._fail(Kind.CORRUPT, "the upstream's reply ended inside a tool call")
        return self._end_reply(response, events, Stop.TOOL if self._calls.indexes() else Stop.END)

    def _read_incomplete(self, response: wire.Response) -> Events:
        details = response.incomplete_details
        reason = (details.reason if details else None) or ""
        stop = _STOP_BY_REASON.get(reason)
        if stop is None:
            self._ledger.record_approximated(
                "/incomplete_details/reason", f"{reason!r:.80} is read as a reached token limit"
            )
            stop = Stop.LENGTH
        return self._end_reply(response, self._finish_items(response), stop)

    def _end_reply(self, response: wire.Response, events: list[Event], stop: Stop) -> Events:
        """Return the last events, closed blocks, usage and the end; or everything up to the first failure."""
        failed = next((at for at, event in enumerate(events) if isinstance(event, Failed)), None)
        if failed is not None:
            return [*events[:failed], *self._usage_events(response), events[failed]]
        closed = (*self._messages.close(), *self._thoughts.close(), *self._calls.close())
        return [*events, *closed, *self._usage_events(response), Ended(stop)]

    def _read_failed(self, response: wire.Response) -> Events:
        error = errors.read_error(response.error)
        if error is None or (error.code is None and error.message is None):
            error = self._error_event or wire.Error(message="the upstream's response failed")
        return [*self._usage_events(response), *self._fail_with(errors.read_stream_error(error))]

    def _read_error_event(self, data: bytes) -> Events:
        nested = errors.read_error(_error_event.decode(data).error)
        if not _typed.decode(data).type:  # not an event of this protocol: an error body, or irrelevant
            return self._fail_with(errors.read_stream_error(nested)) if nested else ()
        flat = errors.read_error(Raw(data)) or wire.Error()
        if nested is None:
            self._error_event = flat
        else:  # some servers write the status beside the error
            self._error_event = replace(nested, status=nested.status or flat.status or flat.status_code)
        return ()

    def _finish_items(self, response: wire.Response) -> list[Event]:
        """Return the events of items that the terminal snapshot has and the stream lacked."""
        self._is_over = True
        events: list[Event] = []
        for index in sorted(self._early_items):
            events += self._finish_item(index, self._early_items[index])
        output = response.output or []
        if too_many := find_excess(blocks=len(output)):
            return [Failed(too_many)]
        # The number of items; some servers give one index to two items of different types.
        streamed = sum(len(items.indexes()) for items in (self._messages, self._thoughts, self._calls))
        finished = (type_ for types in self._finished_types.values() for type_ in types)
        longer = len(output) > (streamed + sum(type_ not in _STREAMED_TYPES for type_ in finished))
        for index, raw in enumerate(output):
            # Positions differ where output_index has gaps or repeats; only a longer output holds new items.
            if longer or self._has_seen(index):
                events += self._finish_item(index, raw)
        return events

    def _usage_events(self, response: wire.Response) -> Events:
        counts = response.usage
        if counts is None:
            return ()
        inputs = counts.input_tokens_details or wire.InputDetails()
        outputs = counts.output_tokens_details or wire.OutputDetails()
        searches = response.tool_usage.web_search if response.tool_usage else None
        usage = Usage(
            input=int(counts.input_tokens or 0),
            output=int(counts.output_tokens or 0),
            cache_read=int(inputs.cached_tokens or 0),
            cache_write=int(inputs.cache_write_tokens or 0),
            reasoning=int(outputs.reasoning_tokens or 0),
            web_searches=int(searches.num_requests or 0) if searches else self._searches,
            web_fetches=self._pages,
            service_tier=response.service_tier,
        )
        return (UsageReported(clamp_usage(usage, self._ledger)),)

    def _fail(self, kind: Kind, message: str) -> Events:
        return self._fail_with(Failure(kind, message))

    def _fail_with(self, failure: Failure) -> Events:
        self._is_over = True
        return (Failed(failure),)

    # Items

    def _read_part_done(self, notice: wire.StreamEvent) -> Events:
        done = _part.decode(notice.part)
        if done.type == "reasoning_text":
            return self._thoughts.part_done(notice, done)
        return self._messages.part_done(notice, done)

    def _read_item_added(self, notice: wire.StreamEvent) -> Events:
        type_ = _typed.decode(notice.item).type
        custom = _CALLS.get(type_)
        if custom is None:
            if type_ != "message":
                self.progress = Progress.WORKING_SILENTLY if type_ == "reasoning" else Progress.ACTING
            return ()
        return self._calls.open_call(notice.output_index, custom, _call_item.decode(notice.item))

    def _read_item_done(self, notice: wire.StreamEvent) -> Events:
        index = notice.output_index
        if index > 0 and not self._has_seen(index) and not self._has_seen(index - 1):
            self._early_items[index] = notice.item.copy()
            return ()
        events = [*self._finish_item(index, notice.item)]
        while (index := index + 1) in self._early_items:
            events += self._finish_item(index, self._early_items.pop(index))
        return events

    def _has_seen(self, index: int) -> bool:
        streamed = (self._messages, self._thoughts, self._calls)
        return index in self._finished_types or any(index in items.indexes() for items in streamed)

    def _finish_item(self, index: int, raw: Raw) -> Events:
        type_ = _typed.decode(raw).type
        done = self._finished_types.setdefault(index, set())
        if type_ in done:
            return ()
        done.add(type_)
        match type_:
            case "message":
                return self._messages.item_done(index, _message_item.decode(raw))
            case "reasoning":
                return self._thoughts.item_done(index, _reasoning_item.decode(raw))
            case "function_call" | "custom_tool_call":
                return self._finish_call(index, _CALLS[type_], _call_item.decode(raw))
            case _ if type_ in wire.HOSTED_ITEMS:
                hosted = _read_hosted(type_, _object.decode(raw))
                self._searches += hosted.kind == SEARCH and not hosted.failed
                self._pages += hosted.kind == FETCH and not hosted.failed
                number = next(self._block_numbers)
                return Opened(number, hosted), Closed(number)
        self._ledger.record_dropped(f"/output/{index}", f"an output item of the unknown type {type_!r}")
        return ()

    def _finish_call(self, index: int, custom: bool, item: wire.CallItem) -> Events:
        if not item.name and index not in self._calls.indexes():
            return self._fail(Kind.CORRUPT, "the upstream called a tool without a name")
        return self._calls.item_done(index, custom, item)


def decode_whole(body: bytes, issuer: Issuer, ledger: Ledger) -> list[Event]:
    """Return the events of a whole reply; an error body, or one that is not JSON, gives Failed."""
    body = replace_invalid_utf8(body)
    try:
        response = _read_response(body)
        if response.output is None and response.status is None:
            return [Failed(errors.read_unusable(body, "it is no response object", NO_REPLY))]
        return Decoder(issuer, ledger).read_whole(response)
    except (ValueError, RecursionError) as error:
        repaired = replace_lone_surrogates(body)
        if repaired != body and not isinstance(error, msgspec.ValidationError):
            return decode_whole(repaired, issuer, ledger)
        return [Failed(errors.read_unusable(body, str(error)))]


def _read_response(json: bytes | Raw) -> wire.Response:
    return read_json_leniently(_response, json, wire.INESSENTIAL_FIELDS)
