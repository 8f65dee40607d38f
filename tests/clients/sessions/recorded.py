"""Read and write recorded sessions: every request that a real client sent in one conversation, in order.

`tests/fixtures/sessions/NAME.jsonl.zst` has a line that describes the session, then one line for each request. Bodies
are the client's JSON, byte for byte, but for the words: see `clients.sessions.anonymise`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from dragoman.net import zstd
from wire_json import JsonObject

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "sessions"
RELEASES = FOLDER.with_name("releases")  # one file for each client
SUFFIX = ".jsonl.zst"
LEVEL = 19  # its window spans a whole session, so that each request costs little more than what is new in it
MAX_BYTES = 64 * 1024 * 1024


class Session(msgspec.Struct, frozen=True):
    name: str
    client: str
    version: str
    protocol: str
    model: str


class ScriptedCall(msgspec.Struct, frozen=True):
    id: str
    tool: str
    arguments: str  # JSON, or plain text for a tool that takes it


class RecordedReply(msgspec.Struct, frozen=True):
    """What the scripted upstream answered."""

    text: str
    thinking: str = ""
    calls: tuple[ScriptedCall, ...] = ()


class RecordedRequest(msgspec.Struct, frozen=True):
    client: str
    number: int  # from 1, within the session
    at_s: float  # seconds since the first request
    turn: int  # the user's turn, from 1
    is_side: bool  # not part of the conversation, such as a request for a title
    path: str
    headers: tuple[tuple[str, str], ...]  # without credentials and without those of the connection
    body: msgspec.Raw
    reply: RecordedReply

    @property
    def json(self) -> JsonObject:
        return msgspec.json.decode(self.body, type=JsonObject)

    def header(self, name: str) -> str | None:
        return next((value for known, value in self.headers if known == name), None)


def list_sessions(folder: Path = FOLDER) -> list[str]:
    """Return the names of all recorded sessions."""
    return sorted(file.name.removesuffix(SUFFIX) for file in folder.glob(f"*{SUFFIX}"))


def read_description(name: str, folder: Path = FOLDER) -> Session:
    return msgspec.json.decode(_read_lines(name, folder)[0], type=Session)


def read_requests(name: str, folder: Path = FOLDER) -> Iterator[RecordedRequest]:
    """Yield the requests of a session in the order in which they were sent."""
    for line in _read_lines(name, folder)[1:]:
        yield msgspec.json.decode(line, type=RecordedRequest)


def read_conversation(name: str, folder: Path = FOLDER) -> list[RecordedRequest]:
    """Return the requests of the conversation itself."""
    return [request for request in read_requests(name, folder) if not request.is_side]


def write_session(session: Session, requests: Iterable[RecordedRequest], folder: Path = FOLDER) -> Path:
    lines = b"".join(msgspec.json.encode(line) + b"\n" for line in (session, *requests))
    file = folder / f"{session.name}{SUFFIX}"
    file.write_bytes(zstd.compress(lines, level=LEVEL))
    return file


def _read_lines(name: str, folder: Path) -> list[bytes]:
    return zstd.decompress((folder / f"{name}{SUFFIX}").read_bytes(), MAX_BYTES).splitlines()
