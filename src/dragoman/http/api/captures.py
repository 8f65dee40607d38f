"""List captures, and read one. Every look at a capture's content leaves a row in the audit log."""

import asyncio

import msgspec

from dragoman.admin.captures import describe_capture, find_capture, list_captures
from dragoman.flow.gateway import Gateway
from dragoman.http.api.audit import AuditLog
from dragoman.http.api.parameters import CURSOR, LIMIT, Parameters, make_cursor
from dragoman.http.api.responses import convert_errors, respond, respond_bytes
from dragoman.http.routes import RoutedRequest


class CapturesApi:
    """Captures of the directory that is configured."""

    def __init__(self, gateway: Gateway, audit: AuditLog) -> None:
        self._gateway = gateway
        self._audit = audit

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
        debug = self._gateway.runtime.config.debug
        with convert_errors("id"):
            capture = await asyncio.to_thread(find_capture, debug, request.rest)
        await self._audit.record(request, "captures.read", capture.request_id)
        body = await asyncio.to_thread(lambda: msgspec.json.encode(describe_capture(capture, first)))
        respond_bytes(request, body)
