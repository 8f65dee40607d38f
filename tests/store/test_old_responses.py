"""Responses and conversations that an earlier version stored are found, counted and continued."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.store import open_store
from dragoman.store.response_rows import ItemRow, Kept
from store.old_store import find_version, run_on_old_store
from store.test_stored_responses import NOW, item, list_items, response
from store.test_stored_totals import check_totals, check_whole, save

ITEMS = tuple(item(f"msg_{number}", b"opaque" if number == 1 else None) for number in range(6))
RESPONSES = (
    "owner, id, created_at, expires_at, status, model, route, head, settings, context, input_start, output,"
    " conversation, keeper, account, mode, bytes"
)


def write_statements(url: str) -> list[str]:
    """Return what an earlier version wrote: a chain of two, whose second has the whole context, and a conversation."""
    schema = "" if url.startswith("sqlite") else "dragoman."

    def blob(value: bytes | None) -> str:
        if value is None:
            return "NULL"
        return f"x'{value.hex()}'" if not schema else f"decode('{value.hex()}', 'hex')"

    def write_response(id: str, context: Sequence[ItemRow], output: Sequence[ItemRow], status: str, mode: str) -> str:
        joined, made = (b"".join(one.digest for one in items) for items in (context, output))
        values = f"'alice', '{id}', {NOW}, {NOW + 100}, '{status}', 'm', 'up/m', {blob(b'{}')}, {blob(b'')}"
        rest = f"{blob(joined)}, {len(context) - 1}, {blob(made)}, '', '', '', '{mode}', 9"
        return f"INSERT INTO {schema}responses ({RESPONSES}) VALUES ({values}, {rest})"

    numbers = {0: 2, 1: 2, 2: 1, 3: 1, 4: 2, 5: 1}  # references
    return [
        *(
            f"INSERT INTO {schema}response_items (owner, digest, id, body, hidden)"
            f" VALUES ('alice', {blob(one.digest)}, '{one.id}', {blob(one.body)}, {blob(one.hidden)})"
            for one in ITEMS
        ),
        *(
            f"INSERT INTO {schema}item_references VALUES ('alice', {blob(ITEMS[place].digest)}, {number})"
            for place, number in numbers.items()
        ),
        write_response("resp_1", ITEMS[:1], ITEMS[1:2], "completed", ""),
        write_response("resp_2", ITEMS[:3], ITEMS[3:4], "completed", ""),
        write_response("resp_3", ITEMS[4:5], (), "queued", "background"),
        f"INSERT INTO {schema}background_runs (owner, id, conversation, request, last_event, token, lease_until)"
        f" VALUES ('alice', 'resp_3', '', {blob(b'request')}, 1, '', 0)",
        f"INSERT INTO {schema}response_events VALUES ('alice', 'resp_3', 0, 1, {blob(b'first')}, {NOW})",
        f"INSERT INTO {schema}conversations (owner, id, created_at, metadata)"
        f" VALUES ('alice', 'conv_1', {NOW}, {blob(b'{}')})",
        *(
            f"INSERT INTO {schema}conversation_items VALUES ('alice', 'conv_1', {place}, {blob(one.digest)})"
            for place, one in enumerate(ITEMS[4:])
        ),
    ]


def test_an_old_chain_is_found_counted_continued_and_deleted(store_url: str) -> None:
    async def scenario() -> None:
        await run_on_old_store(store_url, find_version("stored_totals"), write_statements(store_url))
        store = await open_store(store_url)
        await check_totals(store)
        kept = await store.responses.measure("alice")
        assert (kept.responses, kept.conversations, kept.items) == (3, 1, 6)
        assert await list_items(store, "alice", "conv_1") == ITEMS[4:]
        await check_whole(store, "resp_1", ITEMS[:2])
        await check_whole(store, "resp_2", ITEMS[:4])
        third = await save(store, replace(response("new", [], []), base="resp_2"), ITEMS[:4], (item("msg_new"),), ())
        await check_whole(store, "new", third)
        for id in ("resp_1", "resp_2", "resp_3"):
            assert await store.responses.delete_response("alice", id)
            await check_totals(store)
        await check_whole(store, "new", third)
        assert await store.responses.delete_response("alice", "new")
        assert await store.responses.delete_conversation("alice", "conv_1")
        assert await store.responses.measure() == Kept()
        await store.close()

    asyncio.run(scenario())
