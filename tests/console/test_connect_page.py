"""Connect: the lines of each client, the choice of its key, and the light for its first request."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import expect

import asking
from console.screen import Screen
from console.traffic import ECHO, ask
from gateway import KEY, Running, running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(ECHO, Path(tmp_path_factory.mktemp("connect")), stored=["someone", "laptop"]) as started:
        yield started


def test_connect_sees_the_first_request_of_a_client(tab: Screen, gateway: Running) -> None:
    tab.open("connect")
    tab.page.get_by_role("tab", name="OpenAI SDK").click()
    expect(tab.page.get_by_role("tabpanel")).to_contain_text(f"OPENAI_BASE_URL={gateway.url}/v1")
    expect(tab.page.get_by_role("tabpanel")).to_contain_text('model="echo"')
    ask_until_connected(tab, gateway)


def ask_until_connected(tab: Screen, gateway: Running, key: str = KEY) -> None:
    """Send requests until the page shows one; what ends before the page has its first rows is not news to it."""
    expect(tab.page.get_by_role("banner")).to_contain_text("Live")
    for _ in range(60):
        ask(gateway, key=key, agent="aider/1.0")
        with suppress(AssertionError):
            expect(tab.page.locator("main")).to_contain_text("aider is connected", timeout=1000)
            return
    raise AssertionError("no request was shown")


def test_the_light_waits_for_the_chosen_key(tab: Screen, gateway: Running) -> None:
    tab.open("connect?client=aider")
    tab.page.get_by_label("Key").select_option(label=option(gateway, "laptop"))
    expect(tab.page.locator("main")).to_contain_text("Waiting for the first request with the key laptop")
    expect(tab.page.locator("main")).to_contain_text("The secret of this key was shown when it was made")
    expect(tab.page.get_by_role("banner")).to_contain_text("Live")
    ask(gateway, key=gateway.keys["someone"], agent="other/1.0")
    ask_until_connected(tab, gateway, gateway.keys["laptop"])  # the page shows the first request that counts
    expect(tab.page.locator("main")).not_to_contain_text("other is connected")
    tab.page.reload()
    expect(tab.page.locator("main")).to_contain_text("Waiting for the first request with the key laptop")


def test_without_a_choice_the_light_waits_for_the_key_of_the_environment(tab: Screen, gateway: Running) -> None:
    tab.open("connect?client=aider")
    expect(tab.page.locator("main")).to_contain_text("Waiting for the first request with the key in $DRAGOMAN_API_KEY")
    expect(tab.page.get_by_role("banner")).to_contain_text("Live")
    ask(gateway, key=gateway.keys["someone"], agent="other/1.0")
    ask_until_connected(tab, gateway)  # the page shows the first request that counts
    expect(tab.page.locator("main")).not_to_contain_text("other is connected")


def test_without_a_key_the_light_asks_for_one(tab: Screen, gateway: Running) -> None:
    keys = {**asking.send(gateway, "GET", "/api/v1/keys").json, "environment_key": False}
    tab.page.route("**/api/v1/keys", lambda route: route.fulfill(json=keys))
    tab.open("connect?client=aider")
    expect(tab.page.locator("main")).to_contain_text("Choose the key of your client")
    expect(tab.page.get_by_role("banner")).to_contain_text("Live")
    ask(gateway, key=gateway.keys["someone"], agent="other/1.0")
    ask(gateway, key=gateway.keys["laptop"], agent="aider/1.0")
    tab.page.get_by_label("Key").select_option(label=option(gateway, "laptop"))
    expect(tab.page.locator("main")).to_contain_text("aider is connected")


def option(gateway: Running, name: str) -> str:
    secret = gateway.keys[name]
    return f"{name} ({secret[:8]}…{secret[-4:]})"


def test_a_key_is_made_for_a_client_and_shown_once(tab: Screen, gateway: Running) -> None:
    tab.open("connect?client=cline")
    expect(tab.page.get_by_role("tabpanel")).to_contain_text("the value of $DRAGOMAN_API_KEY")
    tab.page.get_by_role("button", name="Create a key for this client").click()
    line = tab.page.get_by_text("export DRAGOMAN_API_KEY=").inner_text()
    secret = line.partition("=")[2]
    assert ask(gateway, key=secret) == 200
    expect(tab.page.get_by_role("tabpanel")).to_contain_text(f"API Key       {secret}")
    tab.keep("connect-key")
    tab.check_page("connect")
    tab.page.reload()
    expect(tab.page.get_by_label("Key")).to_contain_text("cline (dgm_")
    assert secret not in tab.page.content()
