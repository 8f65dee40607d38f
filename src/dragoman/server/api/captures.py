"""Captures: list and read them, run them through the current code, and make fixtures of them.

Every look at one adds a row to the audit log.
"""

import asyncio
import re

from msgspec import Struct, convert

from dragoman.operate.captures.cache_why import CacheExplanation, explain_cache
from dragoman.operate.captures.files import CaptureDescription, describe_capture, find_capture, list_captures
from dragoman.operate.captures.replay.difference import ComparedPart, compare_captures
from dragoman.operate.usage.usage_writer import UsageWriter
from dragoman.proxy.capture.files import to_json
from dragoman.proxy.capture.format import Capture, CaptureSummary
from dragoman.proxy.gateway import Gateway
from dragoman.server.api.operations import STORE_TIMEOUT_S, AdminAudit
from dragoman.server.api.requests import wait_for_store
from dragoman.server.api.wire import (
    PAGE,
    NoFields,
    Operation,
    Write,
    convert_errors,
    make_cursor,
    number_parameter,
    respond_bytes,
    text_parameter,
)
from dragoman.server.routes import RoutedRequest

AGAINST = "against"
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class ListedCapture(CaptureSummary, frozen=True, kw_only=True):
    """A capture in the list, with its two protocols and the size of its file."""

    client_protocol: str
    upstream_protocol: str
    bytes: int


class CapturePage(Struct, frozen=True):
    captures: list[ListedCapture]
    next: str | None


class Replay(Struct, frozen=True):
    """What differs from the recorded exchange, part by part."""

    same: bool
    parts: list[ComparedPart]


LIST_CAPTURES = Operation("List the captures, the newest first.", (CapturePage,), PAGE)
READ_CAPTURE = Operation(
    "Read a capture, by its request id, the beginning or the end of it, or `last`.",
    (CaptureDescription,),
    (number_parameter("first", "The first entry of the timeline: `next` of the reply before."),),
)
REPLAY_CAPTURE = Write(
    "Run a captured request through the current code, with the recorded responses. Nothing is sent anywhere.",
    (Replay,),
    body=NoFields,
)
MAKE_FIXTURE = Write(
    "Make a file for `tests/fixtures/captures`, which expects what the current code does.",
    (dict[str, object],),
    body=NoFields,
)


EXPLAIN_CACHE = Operation(
    "Explain why an upstream read less of a request from its prompt cache than it could, by its id or `last`.",
    (CacheExplanation,),
    (text_parameter(AGAINST, "The request to compare it with; the session's one before if it is absent."),),
)


class CapturesApi:
    """Captures of the directory that is configured."""

    def __init__(self, gateway: Gateway, audit: AdminAudit, writer: UsageWriter) -> None:
        self._gateway = gateway
        self._audit = audit
        self._writer = writer
        self._replaying = asyncio.Lock()  # one at a time: it takes the processor from other requests

    @LIST_CAPTURES.handled_by
    async def list_captures(self, request: RoutedRequest) -> None:
        query = LIST_CAPTURES.read_query(request)
        limit, position = query.limit(), query.cursor()
        files = await asyncio.to_thread(list_captures, self._gateway.runtime.config.debug)
        # The cursor is compared with names, and never opened.
        older = [file for file in reversed(files) if position is None or file.file.name.encode() < position]
        page = older[:limit]
        following = make_cursor(page[-1].file.name.encode()) if len(older) > limit else None
        described = [convert(file.summary.list_fields() | {"bytes": file.size}, ListedCapture) for file in page]
        LIST_CAPTURES.respond(request, CapturePage(described, following))

    @READ_CAPTURE.handled_by
    async def read_capture(self, request: RoutedRequest) -> None:
        first = READ_CAPTURE.read_query(request).number("first", 0)
        capture = await self._find(request)
        await self._audit.record(request, "captures.read", capture.request_id)
        body = await asyncio.to_thread(lambda: READ_CAPTURE.encode(describe_capture(capture, first)))
        respond_bytes(request, body)

    @REPLAY_CAPTURE.handled_by
    async def replay_capture(self, request: RoutedRequest) -> None:
        await REPLAY_CAPTURE.read_body(request)
        capture = await self._find(request)
        await self._audit.record(request, "captures.replay", capture.request_id)
        replayed = await self._rerun(capture)
        parts = await asyncio.to_thread(compare_captures, capture, replayed)
        REPLAY_CAPTURE.respond(request, Replay(not any(part.changes for part in parts), parts))

    @MAKE_FIXTURE.handled_by
    async def make_fixture(self, request: RoutedRequest) -> None:
        from dragoman.operate.captures.replay.rerun import make_fixture

        await MAKE_FIXTURE.read_body(request)
        capture = await self._find(request)
        await self._audit.record(request, "captures.fixture", capture.request_id)
        replayed = await self._rerun(capture)
        body = await asyncio.to_thread(lambda: to_json(make_fixture(capture, replayed)))
        name = UNSAFE.sub("_", capture.request_id)
        respond_bytes(request, body, [(b"content-disposition", f'attachment; filename="{name}.json"'.encode())])

    @EXPLAIN_CACHE.handled_by
    async def explain_cache(self, request: RoutedRequest) -> None:
        against = EXPLAIN_CACHE.read_query(request).text(AGAINST)
        await self._audit.record(request, "captures.read", request.rest)
        with convert_errors("id"):
            async with asyncio.timeout(STORE_TIMEOUT_S):
                store = await wait_for_store(self._gateway, self._writer)
                debug = self._gateway.runtime.config.debug
                EXPLAIN_CACHE.respond(request, await explain_cache(store, debug, request.rest, against))

    async def _find(self, request: RoutedRequest) -> Capture:
        with convert_errors("id"):
            return await asyncio.to_thread(find_capture, self._gateway.runtime.config.debug, request.rest)

    async def _rerun(self, capture: Capture) -> Capture:
        from dragoman.operate.captures.replay.rerun import rerun
        from dragoman.server.handler import replay_site  # which imports this module

        async with self._replaying:
            with convert_errors("id"):
                return await asyncio.to_thread(rerun, capture, replay_site)
