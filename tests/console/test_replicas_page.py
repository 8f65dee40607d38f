"""The live page of a gateway that has other replicas: where each request is, and that others are not known."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from console.feed_reader import Client, run_clients
from console.screen import screen
from console.traffic import ECHO
from gateway import running_replicas
from postgres import Postgres
from valkey_server import ValkeyServer
from waiting import wait_until

pytestmark = pytest.mark.rest
ALONE = "This is what one replica does."


@pytest.fixture
def database(postgres: Postgres) -> str:
    """An empty one, made in another thread: Playwright's event loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(postgres.empty_database).result()


def test_the_live_page_names_the_replica_of_each_request(
    chromium: Browser, tmp_path: Path, database: str, valkey: ValkeyServer
) -> None:
    with running_replicas(ECHO, tmp_path, database, valkey.url) as (first, other):
        wait_until(lambda: first.app.processes is not None and len(first.app.processes.names) == 2)
        run_clients(*(Client(gateway, f"on-{gateway.port}", text="Hi") for gateway in (first, other)))
        with screen(chromium, first) as tab:
            tab.open("live")
            for gateway in (first, other):
                tab.page.get_by_role("cell", name=f":{gateway.port}").wait_for()
            expect(tab.page.get_by_role("columnheader", name="Replica")).to_be_visible()
            expect(tab.page.get_by_text(ALONE)).to_be_hidden()
            tab.keep("live-replicas")
            tab.check_width()


def test_the_live_page_of_a_replica_on_postgresql_alone_says_what_it_shows(
    chromium: Browser, tmp_path: Path, database: str
) -> None:
    with running_replicas(ECHO, tmp_path, database, count=1) as (only,):
        run_clients(Client(only, "here", text="Hi"))
        with screen(chromium, only) as tab:
            tab.open("live")
            expect(tab.page.get_by_text(ALONE)).to_be_visible()
            expect(tab.page.get_by_role("columnheader", name="Replica")).to_be_hidden()
            tab.keep("live-one-replica")
            tab.check_width()
