"""The console by keyboard alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from console.screen import Screen, screen
from console.traffic import ask, make_capturing_config, own_id
from fakes.kiro import FakeKiro
from gateway import Running, running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("keyboard"))
    with running(make_capturing_config(directory / "captures"), directory, stored=["someone"]) as started:
        ask(started, "Fine", "echo", "fine-1")
        ask(started, "Not fine", "no-such-model", "failed-1")
        started.capture("failed-1")
        yield started


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the control with this name has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent || document.activeElement.ariaLabel") == name:
            return
    raise AssertionError(f"{name} cannot be reached with Tab")


def test_a_failed_request_is_found_inspected_replayed_and_saved(tab: Screen, gateway: Running) -> None:
    page = tab.page
    tab.open("live")
    page.get_by_role("table").wait_for()
    press(page, "g", "r")
    expect(page).to_have_url(f"{gateway.url}/console/requests")
    page.get_by_role("row").nth(2).wait_for()
    press(page, "/")
    page.keyboard.type("outcome:!ok")
    press(page, "Enter")
    expect(page.get_by_role("row")).to_have_count(2)
    press(page, "Escape", "j", "Enter")
    expect(page).to_have_url(f"{gateway.url}/console/inspect/{own_id(gateway, 'failed-1')}")
    expect(page.locator("main")).to_contain_text("no-such-model")
    page.get_by_role("button", name="Replay").wait_for()
    press(page, "r")
    expect(page.get_by_role("heading", name="Replay: same")).to_be_visible()
    tab.keep("inspect-replayed")
    tab_to(page, "Make a fixture")
    with page.expect_download() as download:
        press(page, "Enter")
    assert b"no-such-model" in Path(download.value.path()).read_bytes()
    press(page, "Escape")
    expect(page).to_have_url(f"{gateway.url}/console/requests?q=outcome%3A%21ok")


def test_a_key_is_created_and_the_focus_returns(tab: Screen) -> None:
    page = tab.page
    tab.open("live")
    page.get_by_role("table").wait_for()
    press(page, "g", "k")
    page.get_by_role("table").wait_for()
    tab_to(page, "Create a key")
    press(page, "Enter")
    page.keyboard.type("by keyboard")
    press(page, "Enter")
    expect(page.get_by_role("heading", name="The key by keyboard is created")).to_be_visible()
    assert page.evaluate("document.activeElement.textContent") == "Create a key"


def test_single_keys_can_be_switched_off(tab: Screen, gateway: Running) -> None:
    page = tab.page
    tab.open("live")
    page.get_by_role("table").wait_for()
    press(page, "?")
    page.get_by_label("Single keys are commands").uncheck()
    press(page, "g", "r")
    expect(page).to_have_url(f"{gateway.url}/console/help")
    page.get_by_label("Single keys are commands").check()
    page.locator("main").focus()
    press(page, "g", "r")
    expect(page).to_have_url(f"{gateway.url}/console/requests")


def test_an_account_is_signed_in(chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeKiro() as fake:
        toml = f'[providers.kiro]\nkind = "kiro"\nendpoint = "{fake.root}"\nauth_endpoint = "{fake.root}"\n'
        fake.device.append("authorization_pending")
        with running(toml, tmp_path, stored=["someone"]) as gateway, screen(chromium, gateway) as tab:
            monkeypatch.setenv("HOME", str(tmp_path))
            monkeypatch.delenv("XDG_DATA_HOME", raising=False)
            page = tab.page
            page.get_by_role("tablist").wait_for()
            press(page, "g", "a")
            page.get_by_role("heading", name="kiro").first.wait_for()
            tab_to(page, "Sign in to kiro")
            press(page, "Enter")
            tab_to(page, "Start")
            press(page, "Enter")
            expect(page.locator("main")).to_contain_text("FAKE-CODE")
            tab.keep("accounts-signing-in")
            expect(page.locator("main")).to_contain_text("Signed in to kiro", timeout=30_000)
            assert "aoaFAKE" not in page.content()
