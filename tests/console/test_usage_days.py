"""Usage over time: the bars are hours and days of the viewer's zone, also where its clock is changed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, Page, expect

from console.screen import Screen, open_context
from console.traffic import ECHO
from gateway import running
from store.rows import row_at

# A day on which the clock of a zone is changed: ahead, then back.
CHANGES = {
    "America/New_York": ((2026, 3, 8), (2026, 11, 1)),
    "Europe/Berlin": ((2026, 3, 29), (2026, 10, 25)),
    "Pacific/Auckland": ((2026, 9, 27), (2026, 4, 5)),
}
BARS = "svg.chart g title"


@contextmanager
def showing_usage(
    chromium: Browser, directory: Path, zone: str, now: datetime, requests: Sequence[datetime]
) -> Iterator[Page]:
    """Open Usage in a browser of this zone and time, with requests that began at these times."""
    rows = [row_at(int(moment.timestamp() * 1000), number) for number, moment in enumerate(requests)]
    with running(ECHO, directory, stored=["someone"]) as gateway:
        gateway.store_usage(rows)
        context = open_context(chromium, zone)
        try:
            made = Screen(context.new_page(), gateway)
            made.page.clock.install(time=now)
            made.follow_link("usage?chart=requests")
            yield made.page
            made.check_log()
        finally:
            context.close()


def read_bars(page: Page, span: str) -> list[tuple[str, int]]:
    """Return the label of each bar and its number of requests."""
    page.get_by_role("combobox", name="Time").select_option(span)
    expect(page.locator("main [aria-busy]")).to_have_count(0)
    titles = [title.partition(": ") for title in page.locator(BARS).all_text_contents()]
    return [(label, int(counts.partition(" ok")[0])) for label, _, counts in titles]


def name_day(moment: datetime) -> str:
    return f"{moment.day} {'Sept' if moment.month == 9 else moment.strftime('%b')}"


@pytest.mark.parametrize("back", [False, True], ids=["ahead", "back"])
@pytest.mark.parametrize(
    "zone", [pytest.param(zone, marks=() if "Berlin" in zone else pytest.mark.rest) for zone in CHANGES]
)
def test_a_request_is_in_the_bar_of_its_day(chromium: Browser, tmp_path: Path, zone: str, back: bool) -> None:
    where = ZoneInfo(zone)
    year, month, day = CHANGES[zone][back]
    noon = datetime(year, month, day, 12, tzinfo=where)
    edges = [
        datetime(year, month, day, hour, minute, tzinfo=where) + timedelta(days=days)
        for days in (-3, -2, -1, 1, 2)
        for hour, minute in ((0, 1), (23, 59))
    ]
    requests = [*edges, noon, noon, noon]  # on the day itself, only after its clock was changed
    now = noon + timedelta(days=4)
    with showing_usage(chromium, tmp_path, zone, now.astimezone(UTC), requests) as page:
        bars = read_bars(page, "30d")
    counted = {label: count for label, count in bars if count}
    assert counted == Counter(name_day(moment) for moment in requests)
    days = [(now - timedelta(days=age)) for age in range(30, -1, -1)]
    assert [label for label, _ in bars] == [name_day(moment) for moment in days]


@pytest.mark.rest
@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York"])
def test_a_request_is_in_the_bar_of_its_hour(chromium: Browser, tmp_path: Path, zone: str) -> None:
    now = datetime(2026, 11, 3, 18, 30, tzinfo=ZoneInfo(zone))
    requests = [now - timedelta(minutes=minutes) for minutes in (5, 25, 65, 400, 60 * 24 * 4)]
    with showing_usage(chromium, tmp_path, zone, now.astimezone(UTC), requests) as page:
        hours = read_bars(page, "24h")
        quarters = read_bars(page, "7d")
    assert [bar for bar in hours if bar[1]] == [("11:00", 1), ("17:00", 1), ("18:00", 2)]
    assert [bar for bar in quarters if bar[1]] == [("Fri, 18", 1), ("Tue, 06", 1), ("Tue, 12", 1), ("Tue, 18", 2)]


def test_usage_is_grouped_by_who_spent_it(chromium: Browser, tmp_path: Path) -> None:
    now = datetime(2026, 11, 18, 12, tzinfo=UTC)
    with showing_usage(chromium, tmp_path, "UTC", now, [now - timedelta(hours=hours) for hours in range(1, 4)]) as page:
        group = page.get_by_role("combobox", name="By")
        for by in ("team", "user", "session", "agent"):
            group.select_option(by)
            table = page.get_by_role("table", name=f"Usage by {by}", exact=True)
            expect(table.get_by_role("row").nth(1)).to_contain_text("none")
        group.select_option("tag")
        expect(page.locator("main")).to_contain_text("By which tag?")
        page.get_by_label("Name of the tag").fill("job")
        page.keyboard.press("Tab")
        expect(page.get_by_role("table", name="Usage by tag job", exact=True)).to_be_visible()
        assert page.url.endswith("by=tag%3Ajob&chart=requests")
        page.reload()
        expect(page.get_by_role("table", name="Usage by tag job", exact=True)).to_be_visible()
