"""Accounts: expiry, limits and cooldowns of credentials, and signing in by code or in a browser."""

import asyncio
import re
import time
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from console.screen import screen
from console.traffic import ECHO, ask
from dragoman.upstreams.credentials.cooldowns import CredentialCooldown
from dragoman.upstreams.learned_quirks import Learned, LearnedQuirks
from fakes.kiro import FakeKiro
from gateway import Running, running
from narrowing import expect as expect_type
from waiting import wait_until


def kiro(fake: FakeKiro) -> str:
    roots = "".join(f'{name} = "{fake.root}"\n' for name in ("endpoint", "auth_endpoint", "control_endpoint"))
    return f'[providers.kiro]\nkind = "kiro"\n{roots}'


def test_a_credential_that_cools_down_is_used_again_at_once(chromium: Browser, tmp_path: Path) -> None:
    with running(ECHO, tmp_path, stored=["someone"]) as gateway, screen(chromium, gateway) as tab:
        cool_down(gateway)
        tab.open("accounts")
        card = tab.page.get_by_role("article").filter(has_text="echo")
        expect(card).to_contain_text("cooling down")
        expect(card).to_contain_text("quota")
        tab.keep("accounts-cooling")
        card.get_by_role("button", name="Ask again now").click()
        expect(card).to_contain_text("available")
        expect(card.get_by_role("button", name="Ask again now")).to_have_count(0)


def cool_down(gateway: Running) -> None:
    cooldowns = gateway.app.gateway.runtime.providers["echo"].account.cooldowns
    assert cooldowns is not None
    now = time.time()
    cooldowns.start_cooldown(0, CredentialCooldown("", now + 600, "quota"), now)


def test_a_browser_signs_in_and_the_expiry_is_shown(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    environ = {"HOME": str(tmp_path)}
    with (
        FakeKiro() as fake,
        running(kiro(fake), tmp_path, environ, ["someone"]) as gateway,
        screen(chromium, gateway, "accounts") as tab,
    ):
        tab.page.get_by_role("button", name="Sign in to kiro").click()
        tab.page.get_by_label("How").select_option(label="Google, in a browser on the gateway's machine")
        tab.page.get_by_role("button", name="Start").click()
        shown = tab.page.locator("main code").filter(has_text="redirect_uri").inner_text()
        tab.keep("accounts-browser")
        query = {name: values[0] for name, values in parse_qs(urlsplit(shown).query).items()}
        back = query["redirect_uri"].replace("localhost", "127.0.0.1")
        with urllib.request.urlopen(f"{back}?{urlencode({'state': query['state'], 'code': 'fake-code'})}") as page:
            assert page.status == 200
        expect(tab.page.locator("main")).to_contain_text("Signed in to kiro")
        expect(tab.page.get_by_role("article")).to_contain_text("Its token expires in")
        assert "aoaFAKE" not in tab.page.content()


def test_doctor_leads_to_the_sign_in_that_it_recommends(chromium: Browser, tmp_path: Path) -> None:
    with (
        FakeKiro() as fake,
        running(kiro(fake), tmp_path, {"HOME": str(tmp_path)}, ["someone"]) as gateway,
        screen(chromium, gateway, "doctor") as tab,
    ):
        tab.page.get_by_role("row", name="provider kiro").get_by_role("link", name="Sign in here").click()
        expect(tab.page.get_by_role("heading", name="Sign in to kiro")).to_be_visible()
        expect(tab.page.get_by_role("button", name="Start")).to_be_visible()


def test_doctor_shows_what_is_broken_first(chromium: Browser, tmp_path: Path) -> None:
    section = (
        '[providers.late]\nkind = "openai-compatible"\nendpoint = "http://127.0.0.1:1/v1"\napi_key = "env:NOT_SET"\n'
    )
    toml = f"{ECHO}{section}"
    with running(toml, tmp_path, stored=["someone"]) as gateway, screen(chromium, gateway, "doctor") as tab:
        expect(tab.page.get_by_role("paragraph").filter(has_text="broken, ")).to_be_visible()
        states = tab.page.locator("tbody tr td:first-child").all_inner_texts()
    order = ["broken", "warning", "ok"]
    found = [order.index(state.split()[-1]) for state in states]
    assert found[0] < 2 < 3 <= len(found)
    assert found == sorted(found)


def test_plans_are_shown_with_what_is_left_of_them(chromium: Browser, tmp_path: Path) -> None:
    window = {"used_percent": 82.0, "resets_at": time.time() + 5430, "unlimited": False}
    limits = {"windows": {"primary": window}, "credits": None, "plan": "pro <b>", "exhausted_until": None}
    credential = {
        "label": "2 of 2 (env:B)",
        "is_available": True,
        "expires_at": None,
        "cooldowns": [],
        "limits": limits,
    }
    account = {"provider": "codex", "kind": "codex", "login_command": "", "problem": "", "has_quotas": True}
    body = msgspec.json.encode({"accounts": [account | {"credentials": [credential]}]}).decode()
    with running(ECHO, tmp_path, stored=["someone"]) as gateway, screen(chromium, gateway) as tab:
        ask(gateway)
        tab.page.route("**/api/v1/accounts", lambda route: route.fulfill(body=body))
        for name in ("accounts", "usage"):
            tab.open(name)
            card = tab.page.get_by_role("article").filter(has_text="codex")
            expect(card).to_contain_text("Plan: pro <b>")
            expect(card).to_contain_text("primary: 82 % used, resets in 1 h 30 min")
            expect(card.get_by_role("img", name="primary: 82 % used")).to_be_visible()
            tab.keep(f"{name}-plan")
            tab.check_page(name)


def test_a_sign_in_is_cancelled_by_leaving_it(chromium: Browser, tmp_path: Path) -> None:
    with FakeKiro() as fake, running(kiro(fake), tmp_path, stored=["someone"]) as gateway:
        fake.device.extend(["authorization_pending"] * 1000)
        with screen(chromium, gateway, "accounts?sign-in=kiro") as tab:
            tab.page.get_by_role("button", name="Start").click()
            expect(tab.page.locator("main")).to_contain_text("FAKE-CODE")
            assert is_signing_in(gateway)
            tab.check_page("sign-in")
            tab.page.get_by_role("button", name="Cancel").click()
            expect(tab.page.locator("main")).not_to_contain_text("FAKE-CODE")
            wait_until(lambda: not is_signing_in(gateway))


def is_signing_in(gateway: Running) -> bool:
    return any(task.get_name() == "sign-in with kiro" for task in asyncio.all_tasks(gateway.loop))


def test_what_was_learned_from_rejections_is_shown_and_forgotten(chromium: Browser, tmp_path: Path) -> None:
    with running(ECHO, tmp_path, stored=["someone"]) as gateway, screen(chromium, gateway) as tab:
        memory = expect_type(LearnedQuirks, gateway.app.gateway.runtime.learned_quirks)
        for found in (("extra_field", "/tools/*/<b>new", "m"), ("no_system_role", "", "")):
            gateway.loop.call_soon_threadsafe(memory.keep, Learned("someone", "echo", *found, time.time()))
        wait_until(lambda: len(memory.list_all()) == 2)
        tab.open("accounts")
        card = tab.page.get_by_role("article").filter(has_text="echo")
        card.get_by_text("2 learned from rejections").click()
        expect(card).to_contain_text(
            re.compile(r"/tools/\*/<b>new extra_field, m, key someone, forgotten in (23 h|24 h 0 min)")
        )
        expect(card).to_contain_text("no_system_role, all models")
        tab.keep("accounts-learned")
        tab.check_page("accounts")
        card.get_by_role("button", name="Forget").click()
        expect(card).not_to_contain_text("learned from rejections")
        assert memory.list_all() == []
