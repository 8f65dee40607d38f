"""Reads the live feed in a thread, as a tab does, and sends the requests that it shows."""

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from asking import find_path, make_body
from console.browser import Browser
from gateway import KEY, Running
from waiting import wait_until
from wire_json import JsonObject

Event = tuple[str, JsonObject]
WORDS = " ".join(f"word{number}" for number in range(40))  # echo sends one word in 20 ms


class FeedReader:
    """Collects the events of one feed until it is closed."""

    def __init__(self, browser: Browser, query: str, last_id: str = "") -> None:
        self.events: list[Event] = []
        self.last_id = last_id
        self.ended = threading.Event()
        self._connection = http.client.HTTPConnection("127.0.0.1", browser.gateway.port, timeout=60)
        headers = {"cookie": browser.cookie, "x-dragoman-console": browser.token, "sec-fetch-site": "same-origin"}
        headers |= browser.headers | ({"last-event-id": last_id} if last_id else {})
        self._connection.request("GET", f"/api/v1/feed?{query}", headers=headers)
        assert self._connection.sock is not None
        self._socket = self._connection.sock
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        name = ""
        with suppress(OSError, ValueError, http.client.HTTPException):
            while line := self._answer.readline():
                if line.startswith(b"id: "):
                    self.last_id = line[4:].strip().decode()
                elif line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    self.events.append((name, msgspec.json.decode(line[6:], type=JsonObject)))
        self.ended.set()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until what was read fulfils a condition."""
        try:
            wait_until(condition)
        except AssertionError as late:
            raise AssertionError(self.events[-3:]) from late

    def wait_for_entries(self, count: int) -> None:
        self.wait_for(lambda: len(self.entries) >= count)

    def wait_for_entry(self, text: str) -> None:
        self.wait_for(lambda: any(text in str(entry["text"]) for entry in self.entries))

    def wait_for_end(self, *request_ids: str) -> None:
        self.wait_for(lambda: all(self.row(id).get("state") == "ended" for id in request_ids))

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
        """The row of a request, by our id or the client's."""
        ids = ("request_id", "client_request_id")
        return next((row for row in self.rows.values() if request_id in map(row.get, ids)), {})

    @property
    def entries(self) -> list[JsonObject]:
        """The frames of the inspected request."""
        events = [event for name, event in list(self.events) if name == "frames"]
        return [entry for event in events for entry in event["entries"]]

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._connection.close()


@contextmanager
def reading(browser: Browser, query: str = "watch=live", last_id: str = "") -> Iterator[FeedReader]:
    """Read a feed, as a tab that is open meanwhile."""
    reader = FeedReader(browser, query, last_id)
    try:
        yield reader
    finally:
        reader.close()


def wait_until_unwatched(*gateways: Running) -> None:
    """Wait until the gateway knows that the tabs of earlier tests have left: it records requests for open tabs."""
    wait_until(lambda: not any(gateway.app.gateway.captures.live_left for gateway in gateways))


class Client(threading.Thread):
    """Sends a streamed request, and keeps the response."""

    def __init__(
        self,
        gateway: Running,
        request_id: str,
        key: str = KEY,
        text: str = WORDS,
        model: str = "echo",
        protocol: str = "messages",
    ) -> None:
        super().__init__(daemon=True)
        self._gateway, self._path = gateway, find_path(protocol, model)
        self._body = msgspec.json.encode(make_body(protocol, model, text, stream=True))
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._headers["x-request-id"] = request_id
        self.response = b""

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._gateway.port, timeout=60)
        connection.request("POST", self._path, self._body, self._headers)
        answer = connection.getresponse()
        while piece := answer.read1():
            self.response += piece
        connection.close()


def run_clients(*clients: Client) -> None:
    """Send requests side by side, and wait for their responses."""
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
