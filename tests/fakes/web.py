"""The public web behind a proxy on the loopback: a client requests a checked address and gets an invented site."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fakes.upstream import Answer, FakeUpstream, ReceivedRequest

# Pages of this machine, its network and its cloud, in every spelling that some client resolves.
INNER = [
    *("http://127.0.0.1/", "http://127.1/", "http://0x7f.1/", "http://0x7f000001/", "http://2130706433/"),
    *("http://017700000001/", "http://0/", "http://0.0.0.0/", "http://[::1]/", "http://[::]/"),
    *("http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[::127.0.0.1]/", "http://[::ffff:10.0.0.1]/"),
    *("http://[64:ff9b::7f00:1]/", "http://[64:ff9b::10.0.0.1]/", "http://[64:ff9b:1::a9fe:a9fe]/"),
    *("http://[2002:7f00:1::]/", "http://[2001:0:7f00:1::]/", "http://[fe80::1]/", "http://[fd00:ec2::254]/"),
    *("http://[ff02::1]/", "http://169.254.169.254/latest/meta-data/", "http://168.63.129.16/", "http://100.64.0.1/"),
    *("http://100.100.100.200/", "http://10.0.0.1/", "http://172.16.0.1/", "http://192.168.1.1/"),
    *("http://192.0.0.192/", "http://198.18.0.1/", "http://224.0.0.1/", "http://240.0.0.1/"),
    *("http://255.255.255.255/", "http://localhost/", "http://LOCALHOST./"),
]
GetAddrInfo = Callable[..., Sequence[tuple[object, ...]]]


@dataclass
class FakeWeb(FakeUpstream):
    """Ends every tunnel: whatever the address, the page of the `host` header and the path is served.

    One for TLS is closed at once.
    """

    sites: dict[str, Answer] = field(default_factory=dict)  # "host/path" -> the page
    tunnels: list[str] = field(default_factory=list)  # the requested addresses, with their ports
    keep_alive: bool = False  # so that each request shows in `tunnels`

    def environment(self) -> dict[str, str]:
        """Return the variables that lead a gateway's fetches here, and nothing of the loopback."""
        return {"ALL_PROXY": f"http://127.0.0.1:{self.port}", "NO_PROXY": "127.0.0.1,localhost"}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.tunnels.append(head.split(b" ")[1].decode())
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        if self.tunnels[-1].endswith(":443"):
            writer.close()
        else:
            await super()._serve(reader, writer)

    def _answer(self, request: ReceivedRequest) -> Answer:
        missing = Answer(b"", status=404, content_type="text/plain", chunked=False)
        return self.sites.get(request.headers["host"] + request.path.partition("?")[0], missing)


class Names:
    """Stands in for the resolver of the operating system: invented names beside the real ones."""

    def __init__(self, real: GetAddrInfo) -> None:
        self._real = real
        self.known: dict[str, list[list[str]]] = {}  # name -> what it resolves to at each time, the last for ever
        self.requests: list[str] = []

    def add(self, name: str, *answers: list[str]) -> None:
        self.known[name] = list(answers)

    def __call__(self, host: object, port: object, *args: object, **more: object) -> Sequence[tuple[object, ...]]:
        if not isinstance(host, str) or host not in self.known:
            return self._real(host, port, *args, **more)
        self.requests.append(host)
        answers = self.known[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]
