"""What sessions read from the caches of upstreams that need no marks, billed by the simulator."""

from collections.abc import Callable

import pytest

from translate.caching.agent import WRITERS, rewrite_history, script
from translate.caching.sessions import Session, send_all
from translate.caching.simulator import (
    BreakpointCache,
    PrefixCache,
    Prompt,
    possible_share,
    read_chat,
    read_gemini,
    read_responses,
    share,
)
from wire_json import JsonObject

Read = Callable[[JsonObject], Prompt]


@pytest.mark.parametrize("client", ["messages", "gemini"])
@pytest.mark.parametrize(("upstream", "read"), [("responses", read_responses), ("chat", read_chat)])
def test_a_growing_session_is_read_at_openais_newer_models(client: str, upstream: str, read: Read) -> None:
    session = Session(client, upstream, "gpt-5.6", breakpoints=True)
    sent = send_all(session, [WRITERS[client](request) for request in script()])
    cache = BreakpointCache(read)
    bills = [cache.send(body) for body in sent]
    assert share(bills) >= 0.98 * possible_share([read(body) for body in sent], 1024)


@pytest.mark.parametrize("client", ["messages", "responses", "gemini"])
@pytest.mark.parametrize(
    ("upstream", "read", "minimum", "step"),
    [("chat", read_chat, 1024, 128), ("chat", read_chat, 0, 0), ("gemini", read_gemini, 4096, 0)],
    ids=["earlier models", "local servers", "gemini"],
)
def test_a_growing_session_is_read_where_prefixes_are_compared(
    client: str, upstream: str, read: Read, minimum: int, step: int
) -> None:
    sent = send_all(Session(client, upstream, "m"), [WRITERS[client](request) for request in script()])
    cache = PrefixCache(read, minimum, step)
    bills = [cache.send(body) for body in sent]
    assert share(bills) >= 0.98 * possible_share([read(body) for body in sent], minimum)


def test_a_rewritten_history_still_reads_the_instructions_at_openai() -> None:
    bodies = [WRITERS["gemini"](request) for request in rewrite_history(script())]
    shares = []
    for breakpoints in (False, True):
        sent = send_all(Session("gemini", "responses", "gpt-5.6", breakpoints=breakpoints), bodies)
        cache = BreakpointCache()
        shares.append(share([cache.send(body) for body in sent]))
    assert shares[1] > shares[0]
