"""Keys and lifetimes of OpenAI's prompt caches in translated requests."""

import pytest

from dragoman.translate.hub.caching import CacheMode, CachePlan
from translate.caching.sessions import build
from wire_json import JsonObject

CHAT: JsonObject = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES: JsonObject = {"model": "m", "input": "hi"}
KEYED = CachePlan(CacheMode.AUTO, key="of the session")
PAIRS = [("chat", "responses", CHAT), ("responses", "chat", RESPONSES)]


@pytest.mark.parametrize(("client", "upstream", "body"), PAIRS)
def test_the_clients_own_key_comes_before_that_of_its_session(client: str, upstream: str, body: JsonObject) -> None:
    assert build(client, upstream, body, "m", KEYED)["prompt_cache_key"] == "of the session"
    assert build(client, upstream, {**body, "prompt_cache_key": "own"}, "m", KEYED)["prompt_cache_key"] == "own"


@pytest.mark.parametrize(("client", "upstream", "body"), PAIRS)
def test_a_host_that_knows_no_keys_gets_none(client: str, upstream: str, body: JsonObject) -> None:
    plan = CachePlan(CacheMode.AUTO, takes_keys=False, key="of the session")
    assert "prompt_cache_key" not in build(client, upstream, {**body, "prompt_cache_key": "own"}, "m", plan)


@pytest.mark.parametrize(("client", "upstream", "body"), PAIRS)
def test_two_lifetimes_are_never_sent_together(client: str, upstream: str, body: JsonObject) -> None:
    both = {**body, "prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h"}
    sent = build(client, upstream, both, "m", KEYED)
    assert "prompt_cache_options" in sent
    assert "prompt_cache_retention" not in sent
    sent = build(client, upstream, {**body, "prompt_cache_retention": "24h"}, "m", KEYED)
    assert sent["prompt_cache_retention"] == "24h"
