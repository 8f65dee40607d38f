"""What the live page says is so: after a restart, while the gateway is frozen, and while rows change places."""

from pathlib import Path

from playwright.sync_api import Browser, Locator, expect

from console.screen import Screen, screen
from console.traffic import ECHO, PRICED, ask
from gateway import running


def figure(tab: Screen, name: str) -> Locator:
    return tab.page.get_by_text(name, exact=True).locator("..").locator("dd")


def test_the_last_hour_counts_requests_from_before_a_restart(chromium: Browser, tmp_path: Path) -> None:
    with running(ECHO + PRICED, tmp_path, stored=["someone"]) as before:
        for model in ("echo", "echo", "no-such-model"):
            ask(before, model=model, key=before.keys["someone"])
        secret = before.keys["someone"]
    with running(ECHO + PRICED, tmp_path, stored=["another"]) as after:
        with screen(chromium, after, "live") as tab:
            expect(figure(tab, "Requests in the last hour")).to_have_text("3")
            expect(figure(tab, "Errors in 5 min")).to_have_text("✕ 1")
            expect(figure(tab, "Cost in the last hour")).to_contain_text("$0.0")
            ask(after)
            expect(figure(tab, "Requests in the last hour")).to_have_text("4")
            tab.keep("live-restarted")
        with screen(chromium, after, key=after.keys["another"]) as tab:
            tab.open("live")
            expect(figure(tab, "Requests in the last hour")).to_have_text("0")
        with screen(chromium, after, key=secret) as tab:
            tab.open("live")
            expect(figure(tab, "Requests in the last hour")).to_have_text("3")
