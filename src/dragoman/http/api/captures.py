"""Captures: list, read, replay, make a fixture. Every look at the content of one leaves a row in the audit log."""

import asyncio
import re

import msgspec

from dragoman.admin.captures import describe_capture, find_capture, list_captures
from dragoman.flow.capture.file_format import to_json
from dragoman.flow.capture.format import Capture
from dragoman.flow.gateway import Gateway
from dragoman.http.api.audit import AuditLog
from dragoman.http.api.bodies import NoFields, read_body
from dragoman.http.api.parameters import CURSOR, LIMIT, Parameters, make_cursor
from dragoman.http.api.responses import convert_errors, respond, respond_bytes
from dragoman.http.routes import RoutedRequest

UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class CapturesApi:
    """Captures of the directory that is configured."""

    def __init__(self, gateway: Gateway, audit: AuditLog) -> None:
        self._gateway = gateway
        self._audit = audit
        self._replaying = asyncio.Lock()  # one at a time: it takes the processor from other requests

    async def list_captures(self, request: RoutedRequest) -> None:
        query = Parameters(request.exchange.query, (LIMIT, CURSOR))
        limit, position = query.limit(), query.cursor()
        files = await asyncio.to_thread(list_captures, self._gateway.runtime.config.debug)
        # The cursor is compared with names, and never opened.
        older = [file for file in reversed(files) if position is None or file.file.name.encode() < position]
        page = older[:limit]
        following = make_cursor(page[-1].file.name.encode()) if len(older) > limit else None
        listed = [msgspec.structs.asdict(file.summary) | {"bytes": file.size} for file in page]
        respond(request, {"captures": listed, "next": following})

    async def read_capture(self, request: RoutedRequest) -> None:
        first = Parameters(request.exchange.query, ("first",)).number("first", 0)
        capture = await self._find(request)
        await self._audit.record(request, "captures.read", capture.request_id)
        body = await asyncio.to_thread(lambda: msgspec.json.encode(describe_capture(capture, first)))
        respond_bytes(request, body)

    async def replay_capture(self, request: RoutedRequest) -> None:
        """Run a captured request through the current code, with the recorded responses, and report what differs."""
        from dragoman.admin.replay.difference import compare_captures

        await read_body(request, NoFields)
        capture = await self._find(request)
        await self._audit.record(request, "captures.replay", capture.request_id)
        replayed = await self._rerun(capture)
        parts = await asyncio.to_thread(compare_captures, capture, replayed)
        respond(request, {"same": not any(part.changes for part in parts), "parts": parts})

    async def make_fixture(self, request: RoutedRequest) -> None:
        """Return a fixture, for `tests/fixtures/captures`, which expects what the current code does."""
        from dragoman.admin.replay.rerun import make_fixture

        await read_body(request, NoFields)
        capture = await self._find(request)
        await self._audit.record(request, "captures.fixture", capture.request_id)
        replayed = await self._rerun(capture)
        body = await asyncio.to_thread(lambda: to_json(make_fixture(capture, replayed)))
        name = UNSAFE.sub("_", capture.request_id)
        respond_bytes(request, body, [(b"content-disposition", f'attachment; filename="{name}.json"'.encode())])

    async def _find(self, request: RoutedRequest) -> Capture:
        with convert_errors("id"):
            return await asyncio.to_thread(find_capture, self._gateway.runtime.config.debug, request.rest)

    async def _rerun(self, capture: Capture) -> Capture:
        from dragoman.admin.replay.rerun import rerun
        from dragoman.http.handler import replay_site  # which imports this module

        async with self._replaying:
            with convert_errors("id"):
                return await asyncio.to_thread(rerun, capture, replay_site)
