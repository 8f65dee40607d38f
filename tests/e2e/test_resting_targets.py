"""An account that says until when it is used up is left out of names with several targets, and doubted meanwhile."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from dragoman.accounts.pool import PROBE_AFTER_S, Pool
from e2e.pool_rig import QUICK, Keyed, error
from e2e.raw_http import post
from fakes.upstream import Answer, FakeUpstream
from gateway import Running, provider_section, running
from scraping import scrape, value

ROUTE = '[[models]]\nname = "duo"\nto = ["first/m", "second/m"]\n'
SPENT = error(429, "Your quota is used up.", "insufficient_quota", retry_after="36000")
ENDLESS = error(429, "Your quota is used up.", "insufficient_quota")
LIMITED = error(429, "Slow down.", "rate_limit_exceeded", retry_after="36000")
FIRST, SECOND = "fake-key-of-first", "fake-key-of-second"


class Duo:
    def __init__(self, gateway: Running, upstream: Keyed, toml: str) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self.toml = toml

    @property
    def rests(self) -> Pool:
        rests = self.gateway.app.gateway.runtime.providers["first"].account.cooldowns
        assert rests is not None
        return rests

    def later(self, seconds: float) -> None:
        self.rests.clock = lambda: time.time() + seconds

    def ask(self, model: str = "duo") -> tuple[int, list[str]]:
        """The status, and whose key was presented in which order."""
        asked = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        status = post(self.gateway.port, "/v1/chat/completions", msgspec.json.encode(asked)).status
        return status, self.upstream.taken()


@pytest.fixture
def duo(tmp_path: Path) -> Iterator[Duo]:
    keyed = Keyed("chat")
    with ExitStack() as stack:
        fake = stack.enter_context(FakeUpstream(choose=keyed))
        places = {"first": FIRST, "second": SECOND}
        stanzas = [
            provider_section("chat", fake.url, name).replace("sk-fake-upstream", key) for name, key in places.items()
        ]
        toml = "\n".join([QUICK, *stanzas, ROUTE])
        gateway = stack.enter_context(running(toml, tmp_path))
        gateway.settle()
        yield Duo(gateway, keyed, toml)


def test_a_used_up_account_is_not_asked_first_each_time(duo: Duo) -> None:
    duo.upstream.refusals[FIRST] = SPENT
    assert duo.ask() == (200, [FIRST, SECOND])
    assert [duo.ask() for _ in range(3)] == [(200, [SECOND])] * 3
    told = scrape(duo.gateway.url)
    assert value(told, "dragoman_pool_credentials", provider="first", state="cooling_down") == 1


def test_a_long_rest_is_doubted_by_one_request_and_ends_with_a_good_answer(duo: Duo) -> None:
    duo.upstream.refusals[FIRST] = SPENT
    duo.ask()
    duo.later(PROBE_AFTER_S + 1)
    assert duo.ask() == (200, [FIRST, SECOND])
    assert duo.ask() == (200, [SECOND])
    duo.upstream.refusals.clear()
    duo.later(3 * PROBE_AFTER_S + 2)
    assert [duo.ask() for _ in range(2)] == [(200, [FIRST])] * 2


@pytest.mark.parametrize("refusal", [ENDLESS, LIMITED, error(401, "Incorrect API key.", "invalid_api_key")])
def test_what_is_no_used_up_account_or_says_no_end_of_it_is_asked_first_again(duo: Duo, refusal: Answer) -> None:
    duo.upstream.refusals[FIRST] = refusal
    assert [duo.ask() for _ in range(2)] == [(200, [FIRST, SECOND])] * 2


def test_nobody_is_refused_by_hearsay(duo: Duo) -> None:
    duo.upstream.refusals.update({FIRST: SPENT, SECOND: SPENT})
    assert [duo.ask() for _ in range(2)] == [(429, [FIRST, SECOND])] * 2
    duo.upstream.refusals.clear()
    assert duo.ask() == (200, [FIRST])


def test_who_asks_for_the_account_by_name_asks_it(duo: Duo) -> None:
    duo.upstream.refusals[FIRST] = SPENT
    duo.ask()
    assert duo.ask("first/m") == (429, [FIRST])


def test_an_edit_keeps_the_rest_of_an_account_that_stays(duo: Duo) -> None:
    duo.upstream.refusals[FIRST] = SPENT
    duo.ask()
    duo.gateway.adopt(duo.toml.replace('"fake-key-of-first"', '"fake-key-of-first"\nuser_agent = "edited/1"'))
    assert duo.ask() == (200, [SECOND])
