"""The screenshots of README.md and of docs/teams.md, made from echo traffic. `make tour` writes them again."""

import os
import struct
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import asking
from console.browser import sign_in
from console.screen import screen
from console.traffic import ECHO, ask, make_capturing_config, own_id
from gateway import KEY, running

DOCS = Path(__file__).parents[2] / "docs"
WRITE = os.environ.get("DRAGOMAN_WRITE_PAGES")
SIZE = (1100, 560)
TALL, DIALOG = 1000, 680  # heights of those of budgets
MAX_BYTES = 120_000
LONG = " ".join(["A dragoman was an interpreter between parties who shared no language."] * 400)


@pytest.mark.rest
def test_the_console_is_photographed_for_the_readme(chromium: Browser, tmp_path: Path) -> None:
    light, dark = (
        (DOCS if WRITE else tmp_path) / "console-light.png",
        (DOCS if WRITE else tmp_path) / "console-dark.png",
    )
    with running(make_capturing_config(tmp_path / "captures"), tmp_path, stored=["laptop"]) as gateway:
        for number, model in enumerate(("claude-sonnet-4-5", "echo", "claude-opus-4-5", "no-such-model")):
            agent = "claude-cli/2.1" if number % 2 == 0 else "OpenAI/Python 3.4"
            ask(gateway, "What is a dragoman?", model, f"req_tour{number}", agent=agent, inference_geo="eu")
        gateway.capture("req_tour0")
        with screen(chromium, gateway, "inspect/req_tour0") as tab:
            tab.page.set_viewport_size({"width": SIZE[0], "height": SIZE[1]})
            tab.page.emulate_media(color_scheme="light", reduced_motion="reduce")
            expect(tab.page.get_by_role("table", name="Timeline of the request")).to_contain_text("message_stop")
            heading = tab.page.get_by_role("heading", name="Lost in translation: 1")
            heading.evaluate("heading => heading.scrollIntoView({ block: 'start' })")
            tab.page.screenshot(path=light)
            tab.page.emulate_media(color_scheme="dark")
            tab.open("live")
            long = {"text": LONG, "model": "claude-sonnet-4-5", "request_id": "req_tour9", "max_tokens": 5000}
            client = threading.Thread(target=ask, args=(gateway,), kwargs=long, daemon=True)
            client.start()
            expect(tab.page.get_by_role("row").filter(has_text="streaming")).to_be_visible()
            if WRITE:
                tab.page.wait_for_timeout(1500)  # so that the rows have figures
            tab.page.screenshot(path=dark)
            assert sign_in(gateway, KEY).send("DELETE", f"/api/v1/live/{own_id(gateway, 'req_tour9')}").status == 200
            client.join(60)
    check_pictures(light, dark)


TEAM = f"""{ECHO}
[[prices]]
model = "echo/*"
input = 300000.0
output = 300000.0
[limits]
usd_per_month = 500
[[teams]]
name = "core"
members = ["ann@example.com", "dev@example.com"]
limits = {{ usd_per_day = 20 }}
each_user = {{ usd_per_day = 8 }}
"""


@pytest.mark.rest
def test_budgets_are_photographed_for_the_page_about_teams(chromium: Browser, tmp_path: Path) -> None:
    place = DOCS if WRITE else tmp_path
    budgets, limits = place / "teams-budgets.png", place / "teams-limits.png"
    with running(TEAM, tmp_path, stored=["ci"]) as gateway:
        for name, times in (("ann", 3), ("dev", 6)):
            made = asking.send(gateway, "POST", "/api/v1/keys", {"name": name, "user": f"{name}@example.com"})
            for number in range(times):
                headers = {"session-id": f"{name}-{number % 2}"}
                assert asking.ask(gateway, "chat", "echo", key=made.json["secret"], headers=headers).status == 200
        asking.send(gateway, "PUT", "/api/v1/limits/key/ci", {"usd_per_month": 30, "requests_per_min": 60})
        with screen(chromium, gateway, "budgets") as tab:
            tab.page.set_viewport_size({"width": SIZE[0], "height": TALL})
            tab.page.emulate_media(color_scheme="light", reduced_motion="reduce")
            whole = tab.page.get_by_role("article").filter(has_text="All keys together")
            whole.get_by_text("Most expensive sessions").click()
            expect(whole.get_by_role("table", name="Most expensive sessions of all keys")).to_contain_text("dev-1")
            tab.page.screenshot(path=budgets)
            tab.page.emulate_media(color_scheme="dark")
            tab.page.set_viewport_size({"width": SIZE[0], "height": DIALOG})
            card = tab.page.get_by_role("article").filter(has_text="The key ci")
            card.get_by_role("button", name="Change").click()
            expect(tab.page.get_by_role("textbox", name="Dollars per month")).to_have_value("30")
            tab.page.screenshot(path=limits)
    check_pictures(budgets, limits)


def check_pictures(*written: Path) -> None:
    for file in (*written, *(DOCS / file.name for file in written)):
        data = file.read_bytes()
        width, height = struct.unpack(">II", data[16:24])
        assert width == SIZE[0]
        assert height in (SIZE[1], TALL, DIALOG)
        assert len(data) < MAX_BYTES
