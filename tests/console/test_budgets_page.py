"""Budgets: what is spent and left of each limit, and setting, raising and removing limits."""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

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
[[limits.providers]]
names = ["echo"]
credits_per_month = 1000
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


def test_the_most_expensive_sessions_of_a_scope_are_read_once_it_is_opened(tab: Screen, gateway: Running) -> None:
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
    card.get_by_text("Most expensive sessions").click()
    table = card.get_by_role("table", name="Most expensive sessions of the team core")
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table.get_by_role("row").nth(1)).to_contain_text("of core")
    assert len(urls) == 1
    whole = tab.page.get_by_role("article").filter(has_text="All keys together")
    whole.get_by_text("Most expensive sessions").click()
    table = whole.get_by_role("table", name="Most expensive sessions of all keys together")
    for number, session in enumerate(("dear", "of core", "cheap"), 1):
        expect(table.get_by_role("row").nth(number)).to_contain_text(session)
    tab.page.get_by_role("button", name="Read again").click()
    expect(table.get_by_role("row")).to_have_count(4)  # it is still open
    tab.keep("budgets-sessions")
    for title, sessions in (("the provider echo", ["dear", "of core", "cheap"]), ("each user", ["of core"])):
        heading = tab.page.get_by_role("heading", name=re.compile(f"^{title}$", re.IGNORECASE))
        other = tab.page.get_by_role("article").filter(has=heading)
        other.get_by_text("Most expensive sessions").click()
        found = other.get_by_role("table", name=f"Most expensive sessions of {title}").get_by_role("rowheader")
        expect(found).to_have_text(sessions)
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


def test_teams_and_what_is_set_for_keys_are_changed_on_the_page_of_keys(tab: Screen, gateway: Running) -> None:
    tab.open_whole("keys")
    page = tab.page
    table = page.get_by_role("table", name="Teams")
    expect(table.get_by_role("row").filter(has_text="core")).to_contain_text("the configuration file")
    page.get_by_role("button", name="Create a team").click()
    page.get_by_label("Name", exact=True).fill("night")
    page.get_by_label("Members").fill("ada@example.com, eli@example.com")
    page.get_by_role("button", name="Create", exact=True).click()
    row = table.get_by_role("row").filter(has_text="night")
    expect(row).to_contain_text("ada@example.com, eli@example.com")
    row.get_by_role("button", name="Change").click()
    page.get_by_label("Models").fill("echo, claude-*")
    tab.keep("team-change")
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("echo, claude-*")
    asking.send(gateway, "POST", "/api/v1/keys", body={"name": "night-key"})
    tab.open_whole("keys")
    keys = page.get_by_role("table", name="Keys")
    keys.get_by_role("row").filter(has_text="night-key").get_by_role("button", name="Change").click()
    page.get_by_label("Team, if").fill("night")
    page.get_by_label("Most tokens").fill("many")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("not a whole number")
    page.get_by_label("Most tokens").fill("4000")
    page.get_by_label("Your own notes").fill("host=attic, disk=2")
    page.get_by_label("Providers").fill("echo")
    page.get_by_label("Captures").select_option("off")
    tab.keep("key-change")
    page.get_by_role("button", name="Save").click()
    expect(keys.get_by_role("row").filter(has_text="night-key")).to_contain_text("team night")
    key = asking.send(gateway, "GET", "/api/v1/keys/night-key").json
    assert (key["team"], key["max_output_tokens"], key["metadata"]) == ("night", 4000, {"host": "attic", "disk": "2"})
    assert (key["providers"], key["models"], key["capture"], key["strict"]) == (["echo"], [], "off", False)
    tab.allowed = re.compile("409")
    row.get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Remove").click()
    expect(dialog.get_by_role("alert")).to_contain_text("night-key")
    dialog.get_by_role("button", name="Cancel").click()
    assert asking.send(gateway, "DELETE", "/api/v1/keys/night-key").status == 200
    tab.open_whole("keys")
    row.get_by_role("button", name="Remove").click()
    dialog.get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)


BEGINNINGS = """async (ends) => {
  const page = document.querySelector("script[type=module]").src.replace("main.js", "pages/budgets.js");
  const { beginning } = await import(page);
  return ends.map((end) => beginning(end, "month"));
}"""


def test_a_month_begins_at_its_first_midnight_in_every_time_zone(tab: Screen) -> None:
    zones = ("UTC", "Pacific/Auckland", "Pacific/Kiritimati", "America/Anchorage", "Etc/GMT+12")
    firsts = [[datetime(2026 + at // 12, at % 12 + 1, 1, tzinfo=ZoneInfo(zone)) for at in range(25)] for zone in zones]
    starts = [first.timestamp() * 1000 for found in firsts for first in found[:-1]]
    ends = [first.timestamp() * 1000 for found in firsts for first in found[1:]]
    tab.open_whole("budgets")
    begun = tab.page.evaluate(BEGINNINGS, ends)
    assert all(abs(one - start) <= 3_600_000 for one, start in zip(begun, starts, strict=True))  # clocks may change
