"""The list of models in the shape of each protocol."""

import msgspec
import pytest

from dragoman.server.models import choose_model_list, read_parameters
from dragoman.translate.hub.ports import ListedModel
from dragoman.translate.protocols import PROTOCOLS
from wire_json import JsonObject

MODELS = [ListedModel("a", "Model A", 1794700000, "vendor", 1000, 100), ListedModel("p/b")]


def render(query: str = "", **headers: str) -> JsonObject:
    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    parameters = read_parameters(query)
    body = choose_model_list(PROTOCOLS, given.get, parameters).render(MODELS, parameters)
    return msgspec.json.decode(body, type=JsonObject)


def test_openais_list_is_the_default() -> None:
    listed = render()
    assert listed["object"] == "list"
    assert listed["data"][0] == {"id": "a", "object": "model", "created": 1794700000, "owned_by": "vendor"}
    assert listed["data"][1]["owned_by"] == "dragoman"
    assert "models" not in listed


def test_codex_finds_its_own_list_beside_openais() -> None:
    listed = render("client_version=1.2")
    assert [model["id"] for model in listed["data"]] == ["a", "p/b"]
    assert listed["models"][0] == {"slug": "a", "display_name": "Model A", "context_window": 1000}


def test_anthropics_list_has_limits_and_dates() -> None:
    listed = render(anthropic_version="2023-06-01")
    assert listed["data"][0]["created_at"] == "2026-11-14T23:46:40Z"
    assert (listed["data"][0]["max_input_tokens"], listed["data"][0]["max_tokens"]) == (1000, 100)
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "a", "p/b")


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ("limit=1", ["a"], True),
        ("limit=1&after_id=a", ["p/b"], False),
        ("before_id=p%2Fb", ["a"], False),
        ("limit=none&after_id=unknown", ["a", "p/b"], False),
    ],
)
def test_anthropics_list_is_paged(query: str, ids: list[str], more: bool) -> None:
    listed = render(query, anthropic_version="2023-06-01")
    assert ([model["id"] for model in listed["data"]], listed["has_more"]) == (ids, more)


@pytest.mark.parametrize("header", ["x_goog_api_key", "x_goog_api_client"])
def test_geminis_list_is_for_googles_clients(header: str) -> None:
    first, second = render(**{header: "x"})["models"]
    assert first == {
        "name": "models/a",
        "baseModelId": "a",
        "version": "a",
        "displayName": "Model A",
        "supportedGenerationMethods": ["generateContent", "countTokens"],
        "inputTokenLimit": 1000,
        "outputTokenLimit": 100,
    }
    assert second["name"] == "models/p/b"
    assert "inputTokenLimit" not in second
