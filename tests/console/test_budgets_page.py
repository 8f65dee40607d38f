"""Budgets: what is spent and left of each limit, and setting, raising and removing limits."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

import asking
from console.screen import Screen
from console.traffic import ECHO
from gateway import Running, running

SETTINGS = f"""{ECHO}
[[prices]]
model = "echo/*"
input = 1000.0
output = 1000.0
[limits]
usd_per_month = 500
[limits.user]
usd_per_day = 20
[[teams]]
name = "core"
members = ["dev@example.com"]
limits = {{ usd_per_day = 20, requests_per_min = 600 }}
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(SETTINGS, Path(tmp_path_factory.mktemp("budgets")), stored=["someone"]) as started:
        yield started


def list_limits(gateway: Running, scope: str) -> dict[str, object]:
    listed = asking.send(gateway, "GET", f"/api/v1/limits?scope={scope}").json["limits"]
    return {f"{row['name']} {row['limit']}": row["value"] for row in listed}


def test_limits_of_the_file_are_shown_and_not_offered_for_change(tab: Screen) -> None:
    tab.open_whole("budgets")
    card = tab.page.get_by_role("article").filter(has_text="The team core")
    expect(card).to_contain_text("Dollars per day")
    expect(card).to_contain_text("$20")
    expect(card).to_contain_text("Set in the configuration file")
    expect(card.get_by_role("button", name="Remove")).to_have_count(0)
    tab.keep("budgets")
    tab.check_page("budgets")


def test_limits_of_a_key_are_set_raised_and_removed(tab: Screen, gateway: Running) -> None:
    tab.open_whole("budgets")
    tab.page.get_by_role("button", name="Set limits").click()
    tab.page.get_by_label("Who").select_option(label="A key")
    tab.page.get_by_label("Key", exact=True).fill("someone")
    tab.page.get_by_role("button", name="Next").click()
    tab.page.get_by_role("textbox", name="Dollars per day").fill("5")
    tab.page.get_by_role("textbox", name="Requests per minute").fill("60")
    tab.page.get_by_role("button", name="Save").click()
    card = tab.page.get_by_role("article").filter(has_text="The key someone")
    expect(card).to_contain_text("$5")
    assert list_limits(gateway, "key") == {"someone usd_per_day": 5, "someone requests_per_min": 60}
    card.get_by_role("button", name="Change").click()
    tab.page.get_by_role("textbox", name="Dollars per day").fill("7.5")
    tab.page.get_by_role("textbox", name="Requests per minute").fill("")
    tab.keep("budgets-change")
    tab.page.get_by_role("button", name="Save").click()
    expect(card).to_contain_text("$7.50")
    assert list_limits(gateway, "key") == {"someone usd_per_day": 7.5}
    card.get_by_role("button", name="Remove").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(card).to_have_count(0)
    assert list_limits(gateway, "key") == {}


def ask_in_session(gateway: Running, key: str, session: str, times: int) -> None:
    body = {"model": "echo/echo", "messages": [{"role": "user", "content": "Hello"}]}
    for _ in range(times):
        found = asking.send(
            gateway, "POST", "/v1/chat/completions", body=body, key=key, headers={"session-id": session}
        )
        assert found.status == 200, found.body


def test_the_dearest_sessions_of_a_scope_are_read_once_it_is_opened(tab: Screen, gateway: Running) -> None:
    made = {"name": "desk", "user": "mia@example.com", "team": "core"}
    core = asking.send(gateway, "POST", "/api/v1/keys", body=made).json["secret"]
    for key, session, times in (
        (gateway.keys["someone"], "dear", 3),
        (gateway.keys["someone"], "cheap", 1),
        (core, "of core", 2),
    ):
        ask_in_session(gateway, key, session, times)
    urls: list[str] = []
    tab.page.on("request", lambda request: urls.append(request.url) if "/api/v1/usage" in request.url else None)
    tab.open_whole("budgets")
    card = tab.page.get_by_role("article").filter(has_text="The team core")
    card.get_by_text("Dearest sessions").click()
    table = card.get_by_role("table", name="Dearest sessions of the team core")
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table.get_by_role("row").nth(1)).to_contain_text("of core")
    assert len(urls) == 1
    whole = tab.page.get_by_role("article").filter(has_text="All keys together")
    whole.get_by_text("Dearest sessions").click()
    table = whole.get_by_role("table", name="Dearest sessions of all keys together")
    for number, session in enumerate(("dear", "of core", "cheap"), 1):
        expect(table.get_by_role("row").nth(number)).to_contain_text(session)
    tab.page.get_by_role("button", name="Read again").click()
    expect(table.get_by_role("row")).to_have_count(4)  # it is still open
    tab.keep("budgets-sessions")
    card.get_by_role("link", name="of core").click()
    expect(tab.page.get_by_label("Filter")).to_have_value('session:"of core" team:"core"')


def test_a_wrong_limit_is_refused_by_name_and_nothing_is_lost(tab: Screen, gateway: Running) -> None:
    tab.open_whole("budgets")
    tab.page.get_by_role("button", name="Set limits").click()
    tab.page.get_by_role("button", name="Next").click()
    expect(tab.page.get_by_role("textbox", name="Dollars per month")).to_be_disabled()  # the file sets it
    field = tab.page.get_by_role("textbox", name="Dollars per day")
    field.fill("-1")
    tab.page.get_by_role("button", name="Save").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("Dollars per day")
    expect(field).to_have_value("-1")
    assert list_limits(gateway, "all") == {"all usd_per_month": 500}


def test_an_unknown_name_is_refused_before_the_limits_are_entered(tab: Screen) -> None:
    tab.open_whole("budgets")
    tab.allowed = re.compile("404")
    tab.page.get_by_role("button", name="Set limits").click()
    tab.page.get_by_label("Who").select_option(label="A team, together")
    tab.page.get_by_label("Team", exact=True).fill("cores")
    tab.page.get_by_role("button", name="Next").click()
    expect(tab.page.get_by_role("alert")).to_contain_text('"core"')


def test_a_limit_that_is_spent_or_allows_nothing_says_so(tab: Screen, gateway: Running) -> None:
    limits = {"usd_per_day": 0.001, "tokens_per_day": 0, "concurrent": 4}
    assert asking.send(gateway, "PUT", "/api/v1/limits/user/dev@example.com", body=limits).status == 200
    key = asking.send(gateway, "POST", "/api/v1/keys", body={"name": "phone", "user": "dev@example.com"}).json["secret"]
    assert asking.ask(gateway, "chat", "echo", key=key).status == 402  # of tokens, none are allowed
    limits.pop("tokens_per_day")
    assert asking.send(gateway, "PUT", "/api/v1/limits/user/dev@example.com", body=limits).status == 200
    assert asking.ask(gateway, "chat", "echo", key=key).status == 200
    limits["tokens_per_day"] = 0
    assert asking.send(gateway, "PUT", "/api/v1/limits/user/dev@example.com", body=limits).status == 200
    tab.open_whole("budgets")
    card = tab.page.get_by_role("article").filter(has_text="The user dev@example.com")
    expect(card).to_contain_text("It is spent: requests are refused until then.")
    expect(card).to_contain_text("0: nothing is allowed.")
    expect(card).to_contain_text("0 under way, 4 left of 4")
    expect(card).not_to_contain_text("At this pace")
    tab.keep("budgets-spent")


def test_a_default_shows_who_has_spent_most_of_it(tab: Screen, gateway: Running) -> None:
    body = {"name": "tablet", "user": "eve@example.com"}
    key = asking.send(gateway, "POST", "/api/v1/keys", body=body).json["secret"]
    assert asking.ask(gateway, "chat", "echo", key=key).status == 200
    tab.open_whole("budgets")
    card = tab.page.get_by_role("article").filter(has=tab.page.get_by_role("heading", name="Each user", exact=True))
    expect(card).to_contain_text("$20.00 for each")
    expect(card).to_contain_text(re.compile(r"eve@example\.com: \$0\.00\d+ spent, \$20\.00 left of \$20\.00"))
