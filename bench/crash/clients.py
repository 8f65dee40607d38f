"""Clients of the gateways that are killed: they queue, follow and poll responses."""

import asyncio
import re
from dataclasses import dataclass, field

import msgspec

from bench.gateways import KEY
from bench.resume.clients import unchunk
from bench.wire import LAST_WORDS

EVENT = re.compile(rb"^data: (\{.*)$", re.MULTILINE)
FINAL = ("completed", "incomplete", "failed", "cancelled")
Fields = dict[str, object]


async def request(
    port: int, method: str, path: str, body: Fields | None = None, received: bytearray | None = None
) -> tuple[int, bytes]:
    """Return the status and the body of a response, as far as it came; add its bytes to `received` meanwhile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    content = b"" if body is None else msgspec.json.encode(body)
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    received = bytearray() if received is None else received
    try:
        while data := await reader.read(65536):
            received += data
    except ConnectionError:
        pass  # the gateway was killed
    finally:
        writer.transport.abort()
    head_bytes, _, rest = bytes(received).partition(b"\r\n\r\n")
    status = int(head_bytes[9:12] or b"0")
    return status, unchunk(rest)[0] if b"transfer-encoding: chunked" in head_bytes else rest


def read_events(body: bytes) -> list[Fields]:
    return [msgspec.json.decode(found, type=Fields) for found in EVENT.findall(body.rpartition(b"\n\n")[0])]


def response_of(event: Fields) -> Fields:
    response = event["response"]
    assert isinstance(response, dict)
    return response


@dataclass
class Client:
    """One client with one response."""

    number: int
    background: bool
    stream: bool
    received: bytearray = field(default_factory=bytearray)
    id: str = ""
    events: list[Fields] = field(default_factory=list)
    final: Fields | None = None  # the response, once it has ended
    problem: str = ""

    @property
    def knows_id(self) -> bool:
        return b'"store":true}' in self.received

    async def send(self, port: int) -> None:
        body: Fields = {"model": "chat/m", "input": f"client-{self.number:04}", "stream": self.stream}
        if self.background:
            body["background"] = True
        status, answer = await request(port, "POST", "/v1/responses", body, self.received)
        if status not in (0, 200):
            self.problem = f"{status} {answer[:200]!r}"
        elif self.stream:
            self.events = read_events(answer)
            self.id = str(response_of(self.events[0])["id"]) if self.events else ""
        elif answer:
            self.id = str(msgspec.json.decode(answer, type=Fields)["id"])

    async def find(self, port: int) -> str:
        """Return the status of the response now; empty if it is not stored."""
        status, answer = await request(port, "GET", f"/v1/responses/{self.id}")
        if status != 200:
            return ""
        response = msgspec.json.decode(answer, type=Fields)
        if response["status"] in FINAL:
            self.final = response
        return str(response["status"])

    async def come_back(self, port: int) -> None:
        """Get the events after the last one received, and compare all with those that another client gets."""
        cursor = len(self.events) - 1
        _, rest = await request(port, "GET", f"/v1/responses/{self.id}?stream=true&starting_after={cursor}")
        _, whole = await request(port, "GET", f"/v1/responses/{self.id}?stream=true")
        self.events += read_events(rest)
        numbers = [event["sequence_number"] for event in self.events]
        if numbers != list(range(len(numbers))):
            self.problem = f"events are missing or repeated: {numbers}"
        elif self.events != read_events(whole):
            self.problem = "the events differ from those that another client gets"
        elif response_of(self.events[-1])["status"] not in FINAL:
            self.problem = "there is no last event"

    def check_reply(self) -> None:
        """Note a problem if a response is stored in part."""
        assert self.final is not None
        text, status = msgspec.json.encode(self.final["output"]).decode(), self.final["status"]
        if status == "completed" and LAST_WORDS not in text:
            self.problem = f"a completed response without its end: {text[-100:]}"
        if status == "failed" and not self.final["error"]:
            self.problem = "a failed response without an error"
