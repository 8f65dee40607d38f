"""The page of models: one prompt to several of them, and what a translation loses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from console.screen import Screen
from console.traffic import make_capturing_config
from fakes.kiro import FakeKiro
from gateway import Running, provider_section, running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = Path(tmp_path_factory.mktemp("models"))
    toml = make_capturing_config(directory / "captures") + provider_section("messages", "http://127.0.0.1:9/v1")
    with FakeKiro() as kiro:
        toml += kiro.section(kiro.sign_in(directory / "kiro-auth-token.json"))
        with running(toml, directory, stored=["someone"]) as started:
            started.settle()
            yield started


def test_one_prompt_goes_to_two_routes_side_by_side(tab: Screen) -> None:
    tab.open("models")
    tab.page.get_by_label("Prompt").fill("Say <i>this</i>")
    for name in ("echo-think", "claude-by-route"):
        tab.page.get_by_label("Add a model").fill(name)
        tab.page.keyboard.press("Enter")
    tab.page.get_by_role("button", name="Send").click()
    for name in ("echo-think", "claude-by-route"):
        expect(tab.page.get_by_role("region", name=f"Answer of {name}", exact=True)).to_have_text("Say <i>this</i>")
    answer = tab.page.get_by_role("article").filter(has=tab.page.get_by_role("heading", name="claude-by-route"))
    expect(answer).to_contain_text("Tokens2 in, 2 out")
    expect(answer).to_contain_text("Cost$0.00004")
    expect(answer).to_contain_text("Routeecho/echo")
    expect(answer).to_contain_text("Lossesnone")
    tab.keep("models-tried")
    tab.check_page("models")
    address = tab.page.url
    assert "prompt" not in address.partition("#")[0]  # what is written stays out of logs
    tab.page.goto("about:blank")
    tab.page.goto(address)
    expect(tab.page.get_by_label("Prompt")).to_have_value("Say <i>this</i>")
    expect(tab.page.get_by_role("button", name="claude-by-route")).to_be_visible()
    tab.open("requests?q=client:console")
    expect(tab.page.get_by_role("row")).to_have_count(3)


def test_a_model_of_kiro_has_its_credit_rate(tab: Screen) -> None:
    tab.open("models")
    table = tab.page.get_by_role("table", name="Models")
    expect(table.get_by_role("row", name="Claude Sonnet 4.5")).to_contain_text("credits × 1.3")
    expect(table.get_by_role("row", name="Claude Opus 4.6")).not_to_contain_text("credits")


def test_the_losses_of_a_translation_are_those_of_the_matrix(tab: Screen) -> None:
    tab.open("models")
    table = tab.page.get_by_role("table", name="Losses by protocol")
    expect(table.get_by_role("columnheader")).to_have_text(
        ["Client speaks", "Provider speaks Messages", "Provider speaks Kiro's own protocol"]
    )
    expect(table.get_by_role("row", name="Messages unchanged")).to_be_visible()
    row = table.get_by_role("row", name="Chat Completions")
    row.get_by_text("fields").first.click()
    expect(row.get_by_text("/logit_bias dropped: messages has no such field")).to_be_visible()
    expect(tab.page.locator("main")).to_contain_text("For echo there is no such table")
    row.get_by_text("fields").last.click()
    expect(row.get_by_text("/temperature dropped: Kiro has no such setting")).to_be_visible()
    tab.keep("models-losses")
    tab.check_page("models")
