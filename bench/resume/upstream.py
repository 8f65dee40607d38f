"""The fake upstream: it sends each client its own reply, slowly, and counts the calls of each client."""

import asyncio
import re
from collections import Counter
from contextlib import suppress
from random import Random

from bench.resume.replies import ARRAY, add_signs, make_reply
from bench.wire import whole_reply

PATHS = {b"/v1/chat/completions": "chat", b"/v1/messages": "messages", b"/v1/responses": "responses"}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
WHOLE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
MARK = re.compile(rb"client-(\d{4})")
PAUSE_S = 0.02  # at most, between two events
LONG_PAUSE_S = 0.3  # now and then, so that the gateway sends keep-alives of its own


class Upstream:
    """Serves all protocols on one port."""

    def __init__(self, seed: int, pauses_s: tuple[float, ...] = (PAUSE_S,)) -> None:
        self.calls: Counter[int] = Counter()  # by client
        self._seed = seed
        self._pauses_s = pauses_s  # each reply has one of these

    async def start(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            path = head.split(b" ", 2)[1]
            if head.startswith(b"POST"):
                await self._answer(path, body, writer)
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async def _answer(self, path: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        plain, _, query = path.partition(b"?")
        protocol = PATHS.get(plain) or ("gemini" if b"alt=sse" in query else ARRAY)
        found = MARK.search(body)
        assert found is not None, body
        number = int(found[1])
        self.calls[number] += 1
        chance = Random(f"{self._seed}/{number}")
        pause_s = chance.choice(self._pauses_s)
        if protocol == "chat" and b'"stream":true' not in body:
            await asyncio.sleep(pause_s * len(make_reply("chat", number)) / 2)
            writer.write(WHOLE_HEAD + whole_reply("chat").replace(b"bench", b"client-%04d" % number))
            return
        writer.write(HEAD % (b"application/json" if protocol == ARRAY else b"text/event-stream"))
        for piece in add_signs(protocol, make_reply(protocol, number), chance):
            half = chance.randrange(1, len(piece))
            for data in (piece[:half], piece[half:]) if chance.random() < 0.3 else (piece,):
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await writer.drain()
            await asyncio.sleep(LONG_PAUSE_S if chance.random() < 0.02 else chance.random() * pause_s)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
