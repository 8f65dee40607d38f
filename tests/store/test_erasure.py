"""What was removed is in no file of SQLite's, and its space is given back."""

import asyncio
import logging
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from dragoman.store import open_store
from dragoman.store.response_rows import ConversationRow, ItemRow, Room
from dragoman.store.sqlite_checkpoints import DESCRIPTORS, clear_unused
from dragoman.store.sqlite_migrations import MIGRATIONS
from store.test_stored_responses import FAR, HELLO, NOW, item, response

VERSION_WITHOUT_ERASURE = 15
MB = 1024 * 1024


def read_files(file: Path) -> bytes:
    return b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))


def make_marked(number: int, repeated: int) -> ItemRow:
    return replace(item(f"msg_{number}"), body=mark(number) * repeated)


def mark(number: int) -> bytes:
    return b"an earlier text %06d." % number


def find_marks(file: Path, numbers: Sequence[int]) -> list[int]:
    data = read_files(file)
    return [number for number in numbers if mark(number) in data]


def test_nothing_of_deleted_responses_and_conversations_is_left_in_any_file(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.db"

    async def use() -> None:
        store = await open_store(f"sqlite:///{file}")
        try:
            for number in range(3):
                row = replace(response(f"resp_{number}", [make_marked(number, 1)], []), head=mark(100 + number))
                await store.responses.save_response(row, [make_marked(number, 1)])
            conversation = ConversationRow("alice", "conv_1", NOW, mark(200))
            assert await store.responses.add_conversation(conversation, [make_marked(201, 500)], FAR) == Room.FREE
            assert await store.responses.delete_response("alice", "resp_1")
            assert await store.responses.delete_conversation("alice", "conv_1")
            await store.database.tidy()
            assert find_marks(file, [0, 1, 2, 100, 101, 102, 200, 201]) == [0, 2, 100, 102]
        finally:
            await store.close()

    asyncio.run(use())
    assert find_marks(file, [1, 101, 200, 201]) == []


def test_nothing_is_left_however_many_rows_were_moved(tmp_path: Path) -> None:
    file, chance = tmp_path / "dragoman.db", random.Random(0)
    live: list[int] = []
    deleted: list[int] = []

    async def use() -> None:
        store = await open_store(f"sqlite:///{file}")
        for number in range(1200):
            message = make_marked(number, chance.choice((1, 1, 3, 30, 300)))
            row = replace(response(f"resp_{number}", [message], []), head=mark(number) * chance.choice((1, 5, 50)))
            await store.responses.save_response(row, [message])
            live.append(number)
            if chance.random() < 0.5:
                deleted.append(live.pop(chance.randrange(len(live))))
                assert await store.responses.delete_response("alice", f"resp_{deleted[-1]}")
        await store.database.tidy()
        assert find_marks(file, live) == live
        assert find_marks(file, deleted) == []
        await store.close()

    asyncio.run(use())
    assert find_marks(file, deleted) == []
    with apsw.Connection(str(file)) as connection:
        assert connection.pragma("integrity_check") == "ok"


def test_the_file_becomes_smaller_when_much_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.db"

    async def use() -> None:
        store = await open_store(f"sqlite:///{file}")
        for number in range(300):
            message = make_marked(number, 1000)
            await store.responses.save_response(response(f"resp_{number}", [message], []), [message])
        held = await store.responses.measure()
        bounds = replace(FAR, owner_bytes=held.bytes // 4)
        while await store.responses.remove_responses(NOW, bounds, 10):
            pass
        await store.database.tidy()
        assert len(read_files(file)) <= 2 * bounds.owner_bytes
        await store.close()

    asyncio.run(use())


def write_old_file(file: Path) -> None:
    """Write a file of an older version with a response that it has, and much that it has removed."""
    connection = apsw.Connection(str(file))
    connection.pragma("auto_vacuum", 0)
    connection.pragma("secure_delete", False)
    connection.pragma("journal_mode", "WAL")
    for statements in MIGRATIONS[:VERSION_WITHOUT_ERASURE]:
        connection.execute(statements)
    connection.pragma("user_version", VERSION_WITHOUT_ERASURE)
    message = [make_marked(number, 100) for number in range(200)]
    rows = [("alice", one.digest, one.id, one.body, None) for one in message]
    connection.executemany("INSERT INTO response_items VALUES (?, ?, ?, ?, ?)", rows)
    connection.executemany("INSERT INTO item_references VALUES (?, ?, 1)", [row[:2] for row in rows])
    kept = response("resp_199", [message[199]], [])
    columns = "owner, id, created_at, expires_at, status, model, route, head, settings, context, input_start, output"
    connection.execute(
        f"INSERT INTO responses ({columns}, conversation, keeper, account, bytes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', '', 9)",
        (
            *(kept.owner, kept.id, kept.created_at, kept.expires_at, kept.status, kept.model, kept.route),
            *(kept.head, kept.settings, kept.context, kept.input_start, kept.output),
        ),
    )
    connection.execute("DELETE FROM response_items WHERE id <> 'msg_199'")
    connection.execute("DELETE FROM item_references WHERE digest <> ?", (message[199].digest,))
    connection.close()


def test_a_file_of_an_older_version_is_rewritten_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "dragoman.db"
    write_old_file(file)
    before = len(read_files(file))
    assert len(find_marks(file, range(200))) > 100

    async def use() -> None:
        for _ in range(2):
            store = await open_store(f"sqlite:///{file}")
            row = await store.responses.find_response("alice", "resp_199", NOW)
            assert row is not None
            assert await store.responses.load_chain(row) == (make_marked(199, 100),)
            kept = await store.responses.measure("alice")
            assert (kept.responses, kept.items) == (1, 1)
            await store.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(use())
    assert [record.getMessage().count("is rewritten once") for record in caplog.records] == [1]
    assert find_marks(file, range(200)) == [199]
    assert len(read_files(file)) < before / 2


def test_a_file_of_an_older_version_can_be_opened_while_another_process_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.db"
    write_old_file(file)
    reader = apsw.Connection(str(file))
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM responses").fetchall() == [(1,)]

    async def use() -> None:
        store = await open_store(f"sqlite:///{file}")
        assert (await store.responses.measure()).responses == 1
        assert reader.execute("SELECT count(*) FROM responses").fetchall() == [(1,)]
        reader.close()
        await store.database.tidy()
        assert find_marks(file, range(200)) == [199]
        await store.close()

    asyncio.run(use())


def test_only_what_no_row_uses_is_cleared_of_a_page() -> None:
    page = bytes((13, 0, 0, 0, 2, 15, 160, 0)) + b"ptrs" + b"x" * 3988 + b"rows" * 24  # its content begins at 4000
    cleared = page[:12] + bytes(3988) + page[4000:]
    assert clear_unused(page, 3) == cleared
    assert clear_unused(cleared, 3) is cleared
    assert clear_unused(page, 2) is page  # it says where other pages are
    assert clear_unused(page, 822) is page
    rest_of_long_row = b"\0" + page[1:]
    assert clear_unused(rest_of_long_row, 3) is rest_of_long_row
    assert clear_unused(bytes(100) + page[:-100], 1) == bytes(100) + page[:12] + bytes(3888) + page[3900:-100]


def test_a_store_that_closes_takes_no_lock_away_from_another_one_on_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.db"
    # In a process of its own, which removes the log when it closes the file, unless others have locked that.
    count = "SELECT count(*) FROM responses"
    program = f"import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute({count!r}).fetchone()[0])"

    def count_elsewhere() -> int:
        run = subprocess.run([sys.executable, "-c", program, file], check=True, capture_output=True, timeout=60)
        return int(run.stdout)

    async def use() -> None:
        store, other = await open_store(f"sqlite:///{file}"), await open_store(f"sqlite:///{file}")
        for number, one in enumerate((store, other)):
            await one.responses.save_response(response(f"resp_{number}", [HELLO], []), [HELLO])
            await one.database.tidy()
        await other.close()
        assert count_elsewhere() == 2
        await store.responses.save_response(response("resp_2", [HELLO], []), [HELLO])
        assert count_elsewhere() == 3
        await store.close()

    asyncio.run(use())
    assert not DESCRIPTORS.has_open(file)
    assert count_elsewhere() == 3
