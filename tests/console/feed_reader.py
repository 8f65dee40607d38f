"""Reads the live feed in a thread, as a tab does."""

import http.client
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from console.browser import Browser
from wire_json import JsonObject

Event = tuple[str, JsonObject]


class FeedReader:
    """Collects the events of one feed until it is closed."""

    def __init__(self, browser: Browser, query: str, last_id: str = "") -> None:
        self.events: list[Event] = []
        self.last_id = last_id
        self.ended = threading.Event()
        self._connection = http.client.HTTPConnection("127.0.0.1", browser.gateway.port, timeout=60)
        headers = {"cookie": browser.cookie, "x-dragoman-console": browser.token, "sec-fetch-site": "same-origin"}
        headers |= {"last-event-id": last_id} if last_id else {}
        self._connection.request("GET", f"/api/v1/feed?{query}", headers=headers)
        assert self._connection.sock is not None
        self._socket = self._connection.sock
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        name = ""
        try:
            while line := self._answer.readline():
                if line.startswith(b"id: "):
                    self.last_id = line[4:].strip().decode()
                elif line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    self.events.append((name, msgspec.json.decode(line[6:], type=JsonObject)))
        except (OSError, ValueError, http.client.HTTPException):
            pass
        self.ended.set()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        patience = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < patience, self.events[-3:]
            time.sleep(0.02)

    def wait_for_entries(self, count: int) -> None:
        self.wait_for(lambda: len(self.entries) >= count)

    @property
    def rows(self) -> dict[int, JsonObject]:
        """The rows as a page has them: changes applied to what was there."""
        rows: dict[int, JsonObject] = {}
        for name, event in list(self.events):
            changed, gone = event.get("rows"), event.get("gone")
            if name == "hello":
                rows.clear()
            if isinstance(gone, list):
                rows = {number: row for number, row in rows.items() if number not in gone}
            if name == "rows" and isinstance(changed, list):
                for row in changed:
                    rows.setdefault(row["number"], {}).update(row)
        return rows

    def row(self, request_id: str) -> JsonObject:
        return next((row for row in self.rows.values() if row.get("request_id") == request_id), {})

    @property
    def entries(self) -> list[JsonObject]:
        found: list[JsonObject] = []
        for name, event in list(self.events):
            entries = event.get("entries")
            if name == "frames" and isinstance(entries, list):
                found += entries
        return found

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._connection.close()
