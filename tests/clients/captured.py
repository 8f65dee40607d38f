"""Read captured requests of real clients, to send them again.

A capture is a JSON file with `client`, `method`, `path` and `body` in tests/fixtures/captured; tests/README.md says how
to add one.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "captured"
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
    method: str
    query: str = ""
    headers: list[tuple[str, str]] = []
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
    return (found for found in list_all() if found.protocol is not None)


def list_all() -> Iterator[Captured]:
    """Return every captured request, also those for models and token counts."""
    for file in sorted(FOLDER.glob("*/*.json")):
        found = msgspec.json.decode(file.read_bytes(), type=Captured)
        found.name = f"{file.parent.name}/{file.stem}"
        yield found
