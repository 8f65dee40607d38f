"""Old responses are removed in the background, what else refers to their items keeps them, and bounds hold."""

import asyncio
from pathlib import Path

from dragoman.config.settings import ResponsesSettings
from dragoman.state.service import remove_old_responses
from dragoman.store import open_store
from state.state_rig import HELLO as HELLO_ADA
from state.state_rig import state_rigged
from store.test_stored_responses import HELLO, MORE, REPLY, response
from waiting import wait_until


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


def test_a_client_that_stores_much_is_held_to_its_bounds_soon_and_its_conversations_too(
    tmp_path: Path,
) -> None:
    settings = "[responses]\nmax_mb_per_key = 1\nmax_per_key = 30\n"
    with state_rigged(tmp_path, settings) as rig:
        rig.play("chat", HELLO_ADA)
        model = rig.model("chat")
        responses = [
            rig.http("POST", "/responses", body={"model": model, "input": f"{number} " + "x" * 50_000}).json["id"]
            for number in range(29)
        ]
        wait_until(lambda: rig.http("GET", f"/responses/{responses[0]}").status == 404)
        assert rig.http("GET", f"/responses/{responses[-1]}").status == 200

        item = {"role": "user", "content": "y" * 600_000}
        full = rig.http("POST", "/conversations", body={"items": [item]}).json["id"]
        refused = rig.http("POST", f"/conversations/{full}/items", body={"items": [item]})
        assert (refused.status, refused.json["error"]["code"]) == (400, "storage_limit_reached")
        assert "1 MB together ([responses] max_mb_per_key)" in refused.json["error"]["message"]
        request = {"model": model, "input": "z" * 500_000, "conversation": full}
        assert rig.http("POST", "/responses", body=request).status == 200  # its end is not known before
        refused = rig.http("POST", "/responses", body={**request, "input": "And now?"})
        assert (refused.status, refused.json["error"]["param"]) == (400, "conversation")
        assert rig.http("POST", "/responses", "bob", body={"model": model, "input": "Hello"}).status == 200
        assert rig.http("DELETE", f"/conversations/{full}").status == 200
        for _ in range(30):
            assert rig.http("POST", "/conversations").status == 200
        refused = rig.http("POST", "/conversations")
        assert (refused.status, refused.json["error"]["code"]) == (400, "storage_limit_reached")
        assert "30 conversations" in refused.json["error"]["message"]
        assert rig.http("POST", "/conversations", "bob").status == 200
