"""A relay before a server: bytes pass both ways unchanged, and what was asked and how it was answered is noted."""

import asyncio
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

REQUEST = re.compile(rb"(?:^|\n)([A-Z]+) (\S+) HTTP/1\.1\r\n")
STATUS = re.compile(rb"(?:^|\n)HTTP/1\.1 (\d{3})")
Note = Callable[[bytes], None]


@dataclass
class Doorway:
    port_behind: int
    asked: list[tuple[str, str]] = field(default_factory=list)  # method, path
    answered: list[int] = field(default_factory=list)

    def __enter__(self) -> "Doorway":
        self._loop = asyncio.new_event_loop()
        started = threading.Event()

        def run() -> None:
            asyncio.set_event_loop(self._loop)
            self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
            self.port = self._server.sockets[0].getsockname()[1]
            started.set()
            self._loop.run_forever()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _close(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self.port_behind)
        try:
            await asyncio.gather(
                self._pass(reader, outer, self._note_request), self._pass(inner, writer, self._note_answer)
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

    def _note_request(self, chunk: bytes) -> None:
        self.asked += [(method.decode(), path.decode()) for method, path in REQUEST.findall(chunk)]

    def _note_answer(self, chunk: bytes) -> None:
        self.answered += [int(status) for status in STATUS.findall(chunk)]
