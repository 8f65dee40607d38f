"""Old responses are removed in the background, and what else refers to their items keeps them."""

import asyncio
from pathlib import Path

from dragoman.config.settings import ResponsesSettings
from dragoman.responses.service import remove_old_responses
from dragoman.store import open_store
from store.test_stored_responses import HELLO, MORE, REPLY, response


def test_all_that_is_too_old_or_too_much_is_removed(tmp_path: Path) -> None:
    async def story() -> None:
        store = await open_store(f"sqlite:///{tmp_path}/store.db")
        try:
            for number in range(250):
                row = response(f"resp_{number}", [HELLO, MORE], [REPLY], age=-(10**9))
                await store.responses.save_response(row, [HELLO, MORE, REPLY])
            expired = response("resp_old", [HELLO], [REPLY], age=10**9)
            await store.responses.save_response(expired, [HELLO, REPLY])
            assert await remove_old_responses(store.responses, ResponsesSettings(max_per_key=20)) == 231
            assert (await store.responses.measure()).responses == 20
            assert (await store.responses.measure()).items == 3
        finally:
            await store.close()

    asyncio.run(story())
