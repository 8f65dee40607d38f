"""GET /v1/models/{id} finds whatever name a request may use, in every shape, and nothing else."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from rig import Rig, run_rig
from tables import each_row

SETTINGS = """
[[models]]
name = "team-*"
to = ["messages/claude-opus-4-1-20250805"]
[[models]]
name = "kept-*"
to = ["messages/*"]
[[models]]
name = "daily"
to = ["chat/vendor-model"]
"""
SHAPES = {  # what asks for a shape, and where that has the name
    "openai": ({}, "id", ""),
    "anthropic": ({"anthropic-version": "2023-06-01"}, "id", ""),
    "gemini": ({"x-goog-api-client": "x"}, "name", "models/"),
}
KNOWN = {  # names, and why requests may use them
    "daily": "configured",
    "team-anything": "a glob with one target",
    "claude-opus-4-1": "without its date",
    "claude-opus-4-1-latest": "with another date",
    "messages/claude-opus-4.1": "written with a dot",
    "chat/vendor-model": "listed",
    "claude-sonnet-4-5": "Kiro's claude-sonnet-4.5",
    "claude-sonnet-4-5-20250929": "Kiro's, with a date",
    "kiro/claude-sonnet-4-5": "Kiro's, by its provider",
}
UNKNOWN = ("nope", "chat/nope", "kept-nope", "nobody/vendor-model", "team", "claude-opus-9")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    models = ("vendor-model", "claude-opus-4-1-20250805")
    with run_rig(tmp_path_factory.mktemp("names"), SETTINGS, models, upstreams=("chat", "messages", "kiro")) as rig:
        rig.gateway.settle()
        yield rig


@each_row("name", KNOWN)
def test_a_name_that_requests_may_use_is_found_in_every_shape(rig: Rig, name: str) -> None:
    for shape, (headers, field, prefix) in SHAPES.items():
        reply = rig.send("GET", f"/v1/models/{name}", headers=headers)
        assert (reply.status, reply.json.get(field)) == (200, prefix + name), (shape, reply.body)
    by_gemini = rig.send("GET", f"/v1beta/models/{quote(name)}")
    assert by_gemini.json["name"] == f"models/{name}"


@each_row("name", UNKNOWN)
def test_any_other_name_is_404(rig: Rig, name: str) -> None:
    for shape, (headers, _, _) in SHAPES.items():
        reply = rig.send("GET", f"/v1/models/{name}", headers=headers)
        assert reply.status == 404, (shape, reply.body)
        assert repr(name) in reply.json["error"]["message"], shape


def test_an_alias_has_the_limits_and_the_name_of_its_model(rig: Rig) -> None:
    alias = rig.send("GET", "/v1/models/claude-sonnet-4-5", headers={"anthropic-version": "2023-06-01"}).json
    own = rig.send("GET", "/v1/models/claude-sonnet-4.5", headers={"anthropic-version": "2023-06-01"}).json
    assert alias["max_input_tokens"] == own["max_input_tokens"] == 200_000
    assert alias["display_name"] == own["display_name"]
