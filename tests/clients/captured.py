"""Read captured requests of real clients from folders, to send them again.

A capture is a JSON file with `client`, `path` and `body`; ours are in tests/fixtures/captured.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "tests" / "fixtures" / "captured", ROOT.parent / "shared" / "corpus")
ENDPOINTS = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "messages",
    ":generateContent": "gemini",
    ":streamGenerateContent": "gemini",
}


class Captured(msgspec.Struct):
    client: str
    path: str
    body: msgspec.Raw = msgspec.Raw(b"null")
    name: str = ""

    @property
    def protocol(self) -> str | None:
        path = self.path.partition("?")[0]
        return next((name for end, name in ENDPOINTS.items() if path.endswith(end)), None)

    @property
    def json(self) -> dict[str, object]:
        return msgspec.json.decode(self.body, type=dict)


def list_captured() -> Iterator[Captured]:
    """Return every request for a reply in one of the client protocols."""
    for folder in FOLDERS:
        for file in sorted(folder.glob("*/*.json")):
            found = msgspec.json.decode(file.read_bytes(), type=Captured)
            if found.protocol is not None and bytes(found.body).startswith(b"{"):
                found.name = f"{file.parent.name}/{file.stem}"
                yield found
