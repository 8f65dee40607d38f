"""Refreshers of ChatGPT credentials at a fake issuer, and files as `codex login` writes them."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from dragoman.accounts.refresher import CredentialRefresher
from dragoman.accounts.service_client import ServerClock, ServiceClient
from dragoman.net.client import DialOptions, HttpClient
from dragoman.providers.codex.credential import AuthFile, Credential, TokenIssuer
from fakes.codex import CLIENT_ID, FakeCodex

T = TypeVar("T")
MARGIN_S = 300.0


def write_file(path: Path, table: dict[str, object]) -> Path:
    path.write_bytes(msgspec.json.encode(table))
    return path


def read(path: Path) -> dict[str, object]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, object])


def tokens(table: dict[str, object]) -> dict[str, str]:
    return msgspec.convert(table["tokens"], dict[str, str])


class Rig:
    """A refresher with its HTTP client and its clock."""

    def __init__(self, fake: FakeCodex, path: Path) -> None:
        self.http = HttpClient()
        self.ahead_s = 0.0
        self.clock = ServerClock(lambda: time.time() + self.ahead_s)
        self.service = ServiceClient(self.http.send, DialOptions(), self.clock, ())
        issuer = TokenIssuer(self.service, fake.root, CLIENT_ID)
        self.refresher: CredentialRefresher[Credential] = CredentialRefresher(
            "codex", lambda: AuthFile(path), issuer, self.clock, MARGIN_S
        )


async def make_rig(fake: FakeCodex, path: Path, work: Callable[[Rig], Awaitable[T]]) -> T:
    rig = Rig(fake, path)
    try:
        return await work(rig)
    finally:
        await rig.http.close()
