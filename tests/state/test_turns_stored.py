"""What a turn adds to the store: its own items, however it names the turns before it."""

from dragoman.config.settings import ResponsesSettings
from dragoman.state.context import ContextItem
from dragoman.state.service import ResponseService
from dragoman.store import Store
from dragoman.store.response_rows import ConversationRow
from dragoman.translate.hub.ports import KeptItem, StoredReply
from dragoman.translate.hub.request import Json
from store.stories import on_both_stores
from store.test_stored_responses import FAR, NOW

TURNS = 5


class Lane:
    """A client that sends turns one after the other, on a connection that remembers them if `remembers` is set."""

    def __init__(self, store: Store, *, remembers: bool = False) -> None:
        self._service = ResponseService(store, ResponsesSettings)
        self._memory: dict[str, tuple[ContextItem, ...]] = {}
        self._remembers = remembers
        self._turns = 0

    async def send(self, **fields: Json) -> str:
        """Send one message and store its reply; return the id of the response."""
        self._turns += 1
        raw: dict[str, Json] = {"model": "m", "input": [{"role": "user", "content": f"turn {self._turns}"}], **fields}
        state = await self._service.open_call("alice", raw, 0, self._memory)
        if self._remembers:
            state.memory = self._memory.__setitem__
        body = b'{"id":"msg_%d","type":"message","role":"assistant","content":[]}' % self._turns
        state.reply.take(StoredReply("completed", b"{}", b"{}", (KeptItem(f"msg_{self._turns}", body),)))
        assert await state.commit()
        return state.id


async def check(store: Store, last: str) -> None:
    """Check that all turns are in the context of the last, and that no item is stored twice."""
    row = await store.responses.find_response("alice", last, 0)
    assert row is not None
    assert len(row.digests) == 3  # its settings, its message and its reply
    chain = await store.responses.load_chain(row)
    assert len({item.id for item in chain if item is not None}) == 2 * TURNS
    assert (await store.responses.measure("alice")).items == 2 * TURNS + 1


@on_both_stores
async def test_of_a_turn_that_names_the_one_before(store: Store) -> None:
    client = Lane(store)
    last = await client.send()
    for _ in range(TURNS - 1):
        last = await client.send(previous_response_id=last)
    await check(store, last)


@on_both_stores
async def test_of_a_turn_whose_connection_remembers_the_one_before(store: Store) -> None:
    client = Lane(store, remembers=True)
    last = await client.send()
    for _ in range(TURNS - 1):
        last = await client.send(previous_response_id=last)
    await check(store, last)


@on_both_stores
async def test_of_a_turn_in_a_conversation(store: Store) -> None:
    await store.responses.add_conversation(ConversationRow("alice", "conv_1", NOW, b"{}"), [], FAR)
    client = Lane(store)
    for _ in range(TURNS):
        last = await client.send(conversation="conv_1")
    await check(store, last)
