"""An account that names its reset is left out of names with several targets until then, and probed meanwhile."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from dragoman.upstreams.credentials.cooldowns import PROBE_AFTER_S
from dragoman.upstreams.credentials.pool import Pool
from e2e.pool_rig import Keyed
from fakes.upstream import Answer, FakeUpstream
from gateway import Running, provider_section, running
from raw_http import post
from rig import QUICK
from scraping import scrape, value
from scripting import write_error

ROUTE = '[[models]]\nname = "duo"\nto = ["first/m", "second/m"]\n'
SPENT = write_error(429, "Your quota is used up.", "insufficient_quota", retry_after="36000")
ENDLESS = write_error(429, "Your quota is used up.", "insufficient_quota")
LIMITED = write_error(429, "Slow down.", "rate_limit_exceeded", retry_after="36000")
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

    def advance_clock(self, seconds: float) -> None:
        self.rests.clock = lambda: time.time() + seconds

    def ask(self, model: str = "duo") -> tuple[int, list[str]]:
        """The status, and whose key was presented in which order."""
        request = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        status = post(self.gateway.port, "/v1/chat/completions", msgspec.json.encode(request)).status
        return status, self.upstream.take_used()


@pytest.fixture
def duo(tmp_path: Path) -> Iterator[Duo]:
    keyed = Keyed("chat")
    with ExitStack() as stack:
        fake = stack.enter_context(FakeUpstream(choose=keyed))
        places = {"first": FIRST, "second": SECOND}
        sections = [
            provider_section("chat", fake.url, name).replace("sk-fake-upstream", key) for name, key in places.items()
        ]
        toml = "\n".join([QUICK, *sections, ROUTE])
        gateway = stack.enter_context(running(toml, tmp_path))
        gateway.settle()
        yield Duo(gateway, keyed, toml)


def test_an_exhausted_account_is_not_tried_first_each_time(duo: Duo) -> None:
    duo.upstream.refusals[FIRST] = SPENT
    assert duo.ask() == (200, [FIRST, SECOND])
    assert [duo.ask() for _ in range(3)] == [(200, [SECOND])] * 3
    response = scrape(duo.gateway.url)
    assert value(response, "dragoman_pool_credentials", provider="first", state="cooling_down") == 1


def test_a_long_cooldown_is_probed_by_one_request_and_ends_with_a_success(duo: Duo) -> None:
    duo.upstream.refusals[FIRST] = SPENT
    duo.ask()
    duo.advance_clock(PROBE_AFTER_S + 1)
    assert duo.ask() == (200, [FIRST, SECOND])
    assert duo.ask() == (200, [SECOND])
    duo.upstream.refusals.clear()
    duo.advance_clock(3 * PROBE_AFTER_S + 2)
    assert [duo.ask() for _ in range(2)] == [(200, [FIRST])] * 2


@pytest.mark.parametrize("refusal", [ENDLESS, LIMITED, write_error(401, "Incorrect API key.", "invalid_api_key")])
def test_other_failures_and_those_without_a_reset_cause_no_cooldown(duo: Duo, refusal: Answer) -> None:
    duo.upstream.refusals[FIRST] = refusal
    assert [duo.ask() for _ in range(2)] == [(200, [FIRST, SECOND])] * 2


def test_a_request_is_not_rejected_because_of_a_cooldown(duo: Duo) -> None:
    duo.upstream.refusals.update({FIRST: SPENT, SECOND: SPENT})
    assert [duo.ask() for _ in range(2)] == [(429, [FIRST, SECOND])] * 2
    duo.upstream.refusals.clear()
    assert duo.ask() == (200, [FIRST])


def test_an_account_that_is_named_is_used_during_its_cooldown(duo: Duo) -> None:
    duo.upstream.refusals[FIRST] = SPENT
    duo.ask()
    assert duo.ask("first/m") == (429, [FIRST])


def test_a_reload_keeps_the_cooldown_of_an_account_that_stays(duo: Duo) -> None:
    duo.upstream.refusals[FIRST] = SPENT
    duo.ask()
    duo.gateway.adopt(duo.toml.replace('"fake-key-of-first"', '"fake-key-of-first"\nuser_agent = "edited/1"'))
    assert duo.ask() == (200, [SECOND])
