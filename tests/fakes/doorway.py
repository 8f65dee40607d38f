"""A relay in front of a server: bytes pass both ways unchanged; requests and statuses are recorded."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from fakes.threaded import ThreadedServer

REQUEST = re.compile(rb"(?:^|\n)([A-Z]+) (\S+) HTTP/1\.1\r\n")
STATUS = re.compile(rb"(?:^|\n)HTTP/1\.1 (\d{3})")
Note = Callable[[bytes], None]


@dataclass
class Doorway(ThreadedServer):
    port_behind: int
    requests: list[tuple[str, str]] = field(default_factory=list)  # method, path
    answered: list[int] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)  # everything that clients have sent

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self.port_behind)
        try:
            await asyncio.gather(
                self._pass(reader, outer, self._record_request), self._pass(inner, writer, self._record_answer)
            )
        except ConnectionError:
            return
        finally:
            writer.close()
            outer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Note) -> None:
        while chunk := await reader.read(65536):
            note(chunk)
            writer.write(chunk)
            await writer.drain()
        writer.close()

    def _record_request(self, chunk: bytes) -> None:
        self.received += chunk
        self.requests += [(method.decode(), path.decode()) for method, path in REQUEST.findall(chunk)]

    def _record_answer(self, chunk: bytes) -> None:
        self.answered += [int(status) for status in STATUS.findall(chunk)]
