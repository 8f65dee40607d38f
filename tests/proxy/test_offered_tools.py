"""Settings of server tools: which contradict each other, and which the gateway follows only roughly."""

import pytest

from dragoman.proxy.offered_tools import check_domains, record_settings
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Hosted, Json, Request


def list_noted_paths(tool: Hosted, *located_by: str) -> list[str]:
    ledger = Ledger()
    record_settings(tool, located_by, ledger)
    return [loss.path for loss in ledger]


def search(**ext: Json) -> Hosted:
    return Hosted("web_search", {}, "/tools/0", ext=ext)


@pytest.mark.parametrize("kind", ["web_search", "web_fetch"])
def test_a_tool_cannot_both_allow_and_block_domains(kind: str) -> None:
    tool = Hosted(kind, {}, "/tools/1", allowed_domains=("a.example",), blocked_domains=("b.example",))
    with pytest.raises(BadRequest) as refused:
        check_domains(Request(protocol="messages", model="m", turns=(), tools=(search(), tool)))
    assert refused.value.failure.at == "/tools/1/blocked_domains"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("allowed_callers", ["direct"]),
        ("defer_loading", None),
        ("defer_loading", False),
        ("response_inclusion", "excluded"),
        ("strict", True),
        ("use_cache", False),
    ],
)
def test_a_setting_without_effect_is_no_loss(key: str, value: Json) -> None:
    assert list_noted_paths(search(**{key: value})) == []


@pytest.mark.parametrize(
    ("key", "value"), [("defer_loading", True), ("url_sources", {"user_messages": {"type": "none"}})]
)
def test_a_setting_that_is_not_followed_is_noted(key: str, value: Json) -> None:
    assert list_noted_paths(search(**{key: value})) == [f"/tools/0/{key}"]


@pytest.mark.parametrize(
    ("location", "located_by", "losses"),
    [
        ({"type": "approximate", "country": "IT"}, (), 1),
        ({"type": "approximate", "country": "IT"}, ("country",), 0),
        ({"type": "approximate", "country": "IT", "city": "Rome"}, ("country",), 1),
        ({"type": "approximate"}, (), 0),
        (None, (), 0),
    ],
)
def test_a_location_is_noted_unless_the_service_uses_all_of_it(
    location: Json, located_by: tuple[str, ...], losses: int
) -> None:
    tool = Hosted("web_search", {}, "/tools/0", location=location)
    assert len(list_noted_paths(tool, *located_by)) == losses
