"""Run a search between two rounds of a reply, over a real socket to the upstream."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.config.settings import Tools
from dragoman.flow.rounds import Rounds
from dragoman.hub.request import Role, Text
from dragoman.hub.server_tools import SearchFound, SearchOutcome, SearchResult
from dragoman.net.errors import ClientDisconnected
from dragoman.tools.backends import McpServers, make_plan
from dragoman.tools.web_search import SearchQuery
from fakes.upstream import Answer
from flow.in_memory import make_call
from flow.rigs import STREAM, ClientCall, GatewayRig, chunk
from replies import END, START, text
from waiting import wait_until_async

TOOL = {"type": "web_search_20250305", "name": "web_search"}
USER = {"role": "user", "content": "x"}
REQUEST = {"model": "m", "max_tokens": 99, "stream": True, "messages": [USER], "tools": [TOOL]}
FUNCTION = {"name": "web_search", "arguments": '{"query": "x"}'}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": FUNCTION}
CALLS_SEARCH = chunk({"role": "assistant", "tool_calls": [CALL]}) + chunk({}, "tool_calls") + b"data: [DONE]\n\n"


class SlowSearch:
    """A search service that answers when the test lets it."""

    name = "slow"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.was_cancelled = False

    async def search(self, query: SearchQuery, timeout_s: float) -> SearchOutcome:
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return SearchFound((SearchResult("https://a.example/", "A", "text"),))


def ask(rig: GatewayRig, service: SlowSearch) -> ClientCall:
    plan = make_plan(service, None, frozenset(), Tools(), McpServers())
    rig.gateway.adopt(replace(rig.gateway.runtime, tool_plans={"one": plan}))
    return rig.make_call("messages", msgspec.json.encode(REQUEST))


async def test_the_reply_continues_with_what_the_search_found() -> None:
    async with GatewayRig([Answer(CALLS_SEARCH), Answer(STREAM)]) as rig:
        service = SlowSearch()
        service.may_end.set()
        reply = await ask(rig, service).answer()
        assert b"web_search_tool_result" in reply.body
        assert b"https://a.example/" in rig.one.calls[1].body


async def test_a_client_that_has_left_ends_the_search_and_is_noticed_as_such() -> None:
    async with GatewayRig([Answer(CALLS_SEARCH), Answer(STREAM)]) as rig:
        service = SlowSearch()
        client = ask(rig, service)
        answering = asyncio.create_task(client.answer())
        await service.begun.wait()
        client.exchange.gone = True
        service.may_end.set()
        with pytest.raises(ClientDisconnected):
            await answering
        assert len(rig.one.calls) == 1


async def test_a_call_that_is_cancelled_cancels_its_search() -> None:
    async with GatewayRig([Answer(CALLS_SEARCH)]) as rig:
        service = SlowSearch()
        client = ask(rig, service)
        answering = asyncio.create_task(client.answer())
        await service.begun.wait()
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        await wait_until_async(lambda: service.was_cancelled)


def test_the_request_of_the_next_round_has_the_reply_so_far() -> None:
    rounds, request = Rounds(), make_call().request()
    assert rounds.extend(request, None) == request
    rounds.add([START, *text(0, "One"), END], {}, 1)
    [*_, added] = rounds.extend(request, None).turns
    assert (added.role, [part.text for part in added.parts if isinstance(part, Text)]) == (Role.ASSISTANT, ["One"])
    rounds.continue_with("token")
    assert rounds.extend(request, None).continuation == "token"
