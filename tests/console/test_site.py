"""The page and its files: headers, caching, compression, and where the console is not served at all."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.browser import Browser, sign_in
from console.traffic import ECHO
from dragoman.config.load import ConfigSource
from dragoman.config.settings import find_console_state
from dragoman.server.console.site import make_browser_check
from gateway import KEY, Running, running

FILES = Path(__file__).parents[2] / "src" / "dragoman" / "console"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(ECHO, Path(tmp_path_factory.mktemp("site"))) as started:
        yield started


def test_a_browser_at_the_root_is_sent_to_the_console_and_a_program_is_not(gateway: Running) -> None:
    reply = Browser(gateway).send("GET", "/", accept="text/html,application/xhtml+xml", sec_fetch_site="none")
    assert (reply.status, reply.headers["location"]) == (302, "/console")
    assert Browser(gateway).send("GET", "/", accept="*/*").json["status"] == "ok"


def test_the_page_has_the_strictest_policy_there_is(gateway: Running) -> None:
    reply = Browser(gateway).send("GET", "/console", sec_fetch_site="none")
    assert reply.headers["content-security-policy"] == CSP
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cross-origin-opener-policy"] == "same-origin"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert b"<script>" not in reply.body
    assert b" style=" not in reply.body
    assert re.search(rb' on\w+="', reply.body) is None


def test_files_are_immutable_below_the_hash_of_their_tree(gateway: Running) -> None:
    browser = Browser(gateway)
    page = browser.send("GET", "/console", sec_fetch_site="none").body.decode()
    addresses = re.findall(r'(?:src|href)="(/console/[0-9a-f]{16}/[^"]+)"', page)
    assert len(addresses) == 3
    total = 0
    version = addresses[0].split("/")[2]
    for file in FILES.rglob("*.*"):
        if file.suffix == ".html":
            continue
        address = f"/console/{version}/{file.relative_to(FILES)}"
        reply = browser.send("GET", address)
        assert reply.status == 200
        assert "immutable" in reply.headers["cache-control"]
        assert reply.body == file.read_bytes()
        packed = browser.send("GET", address, accept_encoding="gzip, br")
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == reply.body
        total += len(packed.body)
    assert total < 120_000
    assert browser.send("GET", f"/console/{version}/absent.js").status == 404
    assert browser.send("GET", "/console/0123456789abcdef/main.js").status == 404


def test_the_page_its_files_and_a_sign_out_carry_a_request_id(gateway: Running) -> None:
    browser = Browser(gateway)
    page = browser.send("GET", "/console", sec_fetch_site="none")
    file = re.findall(rb'href="(/console/[0-9a-f]{16}/[^"]+)"', page.body)[0].decode()
    replies = [page, browser.send("GET", file), browser.send("GET", "/console", if_none_match=page.headers["etag"])]
    browser.sign_in(KEY)
    replies.append(browser.send("DELETE", "/console/session"))
    assert [reply.status for reply in replies] == [200, 200, 304, 204]
    assert all(reply.headers["x-request-id"].startswith("req_") for reply in replies)


def test_the_page_is_revalidated_by_its_etag_at_every_address_of_a_state(gateway: Running) -> None:
    browser = Browser(gateway)
    etag = browser.send("GET", "/console", sec_fetch_site="none").headers["etag"]
    for path in ("/console", "/console/live", "/console/inspect/req_1.2:3", "/console/requests?q=a"):
        assert browser.send("GET", path, sec_fetch_site="none", if_none_match=etag).status == 304


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_on_another_site_opens_the_page_and_nothing_else_of_that_site_does(gateway: Running, site: str) -> None:
    browser = sign_in(gateway, KEY)
    link = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    page = browser.send("GET", "/console/inspect/req_1", cookie="", x_dragoman_console="", **link)
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for path in ("/api/v1/config", "/console/session", "/api/v1/feed"):
        assert browser.send("GET", path, **link).status == 403, path
    for mode, dest in (("navigate", "iframe"), ("no-cors", "script"), ("cors", "empty"), ("", "")):
        reply = browser.send("GET", "/console", sec_fetch_site=site, sec_fetch_mode=mode, sec_fetch_dest=dest)
        assert reply.status == 403, (mode, dest)


def test_names_from_the_browser_open_no_files(gateway: Running) -> None:
    browser = Browser(gateway)
    page = browser.send("GET", "/console", sec_fetch_site="none").body.decode()
    found = re.search(r"/console/([0-9a-f]{16})/", page)
    assert found is not None
    for name in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "index.html", "pages/../main.js"):
        reply = browser.send("GET", f"/console/{found[1]}/{name}")
        assert reply.status in (404, 200)
        assert b"import" not in reply.body or reply.status == 404


def test_a_setting_removes_every_path(tmp_path: Path) -> None:
    with running(ECHO + "[console]\nenabled = false\n", tmp_path) as gateway:
        for path in ("/console", "/console/session", "/api/v1/feed", "/api/v1/live/x"):
            assert Browser(gateway, headers={"authorization": f"Bearer {KEY}"}).send("GET", path).status == 404
        assert Browser(gateway).send("GET", "/", accept="text/html").status == 200
        gateway.adopt(ECHO)
        assert Browser(gateway).send("GET", "/console", sec_fetch_site="none").status == 200


def test_a_variable_removes_every_path_whatever_the_file_says(tmp_path: Path) -> None:
    with running(ECHO + "[console]\nenabled = true\n", tmp_path, {"DRAGOMAN_CONSOLE": "0"}) as gateway:
        reply = Browser(gateway, headers={"authorization": f"Bearer {KEY}"}).send("GET", "/console")
        assert reply.status == 404


@pytest.mark.parametrize(
    ("toml", "is_on", "problem"),
    [
        ("", True, ""),
        ('[server]\nhost = "0.0.0.0"\n', False, ""),
        ('[server]\nhost = "0.0.0.0"\n[console]\nenabled = true\n', False, "TLS"),
        ('[server]\nhost = "0.0.0.0"\n[console]\nenabled = true\ntrusted_proxies = ["10.0.0.0/8"]\n', True, ""),
        ("[console]\nenabled = false\n", False, ""),
    ],
)
def test_where_others_reach_the_gateway_the_console_needs_tls(
    tmp_path: Path, toml: str, is_on: bool, problem: str
) -> None:
    file = tmp_path / "dragoman.toml"
    file.write_text(toml)
    state = find_console_state(ConfigSource(str(file), {}, tmp_path, tmp_path).read({}), {})
    assert state.is_on is is_on
    assert problem in state.problem


def test_tls_is_believed_from_trusted_proxies_only(tmp_path: Path) -> None:
    toml = ECHO + '[server]\nhost = "0.0.0.0"\n[console]\nenabled = true\ntrusted_proxies = ["127.0.0.1"]\n'
    with running(toml, tmp_path) as gateway:
        named = {"host": "gateway.example", "sec_fetch_site": "none"}
        assert Browser(gateway).send("GET", "/console", **named).status == 403
        assert Browser(gateway).send("GET", "/console", **named, x_forwarded_proto="http").status == 403
        assert Browser(gateway).send("GET", "/console", **named, x_forwarded_proto="https").status == 200
        browser = Browser(gateway, headers={"host": "gateway.example", "x-forwarded-proto": "https"})
        reply = browser.send("POST", "/console/session", {"key": KEY}, origin="https://gateway.example")
        assert reply.status == 200
        reply = browser.send("POST", "/console/session", {"key": KEY}, origin="http://gateway.example")
        assert reply.status == 403
        other = make_browser_check(ConfigSource(str(tmp_path / "dragoman.toml"), {}, tmp_path, tmp_path).read({}))
        assert [str(network) for network in other.proxies] == ["127.0.0.1/32"]


def test_a_proxy_is_an_address_or_a_network(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.toml"
    file.write_text('[console]\ntrusted_proxies = ["nginx"]\n')
    with pytest.raises(Exception, match=r"console.trusted_proxies: expected IP addresses"):
        ConfigSource(str(file), {}, tmp_path, tmp_path).read({})
