"""Google's own SDK judges: its types, which refuse unknown fields, read what we send and what our fakes send."""

from pathlib import Path

import msgspec
import pytest
from google.genai import types
from pydantic import BaseModel

from deletion import without_refused
from e2e.cases import CASES
from scripting import encode_gemini
from scripting.replies import limit_to_protocol
from tables import each_row
from translate.protocols.gemini.gemini_replies import STREAMS
from translate.protocols.gemini.gemini_requests import GEMMA, NEW, OLD, build_from
from wire_json import JsonObject

FIXTURES = Path(__file__).parents[3] / "fixtures"
CLIENTS = ("chat", "responses", "messages")
REQUESTS = {
    file.stem if file.parent.name == "deletion" else client: (client, file)
    for client in CLIENTS
    for file in (FIXTURES / client / "request.json", *sorted((FIXTURES / "deletion").glob(f"{client}-*.json")))
}
FIELDS: dict[str, type[BaseModel]] = {
    "systemInstruction": types.Content,
    "toolConfig": types.ToolConfig,
    "generationConfig": types.GenerationConfig,
}


def check(body: JsonObject) -> None:
    """Validate every field of a request; a field that Google does not know raises."""
    for content in body.pop("contents"):
        types.Content.model_validate(content)
    for tool in body.pop("tools", ()):
        types.Tool.model_validate(tool)
    for name, kind in FIELDS.items():
        if name in body:
            kind.model_validate(body.pop(name))
    assert body.keys() <= {"serviceTier", "labels"}


@each_row("model", [NEW, OLD, GEMMA])
@each_row("name", REQUESTS)
def test_every_request_has_googles_shape(name: str, model: str) -> None:
    client, file = REQUESTS[name]
    request, _ = without_refused(client, "gemini", msgspec.json.decode(file.read_bytes()))
    check(build_from(client, request, model)[0])


@each_row("case", CASES)
def test_our_speaker_writes_googles_shape(case: str) -> None:
    scripted = limit_to_protocol(CASES[case].scripted, "gemini")
    for event in encode_gemini.encode_stream(scripted).split(b"\r\n\r\n")[:-1]:
        types.GenerateContentResponse.model_validate_json(event.removeprefix(b"data: "))
    types.GenerateContentResponse.model_validate_json(encode_gemini.encode_whole(scripted))


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_our_fixtures_have_googles_shape(path: Path) -> None:
    for event in path.read_bytes().split(b"\r\n\r\n"):
        if event.startswith(b"data: "):
            types.GenerateContentResponse.model_validate_json(event.removeprefix(b"data: "))
