"""What a resumable reply may cost: its memory is bounded, and a client that is connected never notices."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.resume.replies import without_signs
from websockets.sync.client import connect

from dragoman.state import run_index
from fakes.upstream import Answer, End
from raw_http import get
from state.parked_rig import DIALECTS, Parking, parking
from waiting import wait_until

PARK = "x-dragoman-park: 1"
clients = pytest.mark.parametrize("client", DIALECTS)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parking]:
    monkeypatch.setattr(run_index, "MAX_RUN_BYTES", 4000)
    with parking(tmp_path, "[responses]\npark_s = 20\n") as opened:
        yield opened


@clients
def test_a_stream_that_is_too_large_to_keep_is_delivered_and_cannot_be_resumed(rig: Parking, client: str) -> None:
    reply = rig.send(client, "", PARK)
    assert without_signs(reply.body) == DIALECTS[client].events
    assert rig.resume(client, f"{reply.get('x-dragoman-run')}:-1").status == 404
    assert rig.gateway.app.site.parked_runs.index.size == 0


def test_a_whole_reply_that_is_too_large_to_keep_is_delivered_and_made_again(rig: Parking) -> None:
    large = DIALECTS["chat"].whole.replace(b"word-0", b"word" * 1000)
    rig.upstreams["chat"].choose = lambda request: Answer(large, content_type="application/json")
    replies = [rig.send("chat", "", "idempotency-key: large", stream=False) for _ in range(2)]
    assert [reply.body for reply in replies] == [large] * 2
    assert rig.calls("chat") == 2


def test_a_stream_that_grows_too_large_without_a_client_is_cancelled(rig: Parking) -> None:
    opening = DIALECTS["chat"].stream[:600]
    opening = opening[: opening.rindex(b"\n\n") + 2]
    event = opening[opening[:-2].rindex(b"\n\n") + 2 :]
    rig.upstreams["chat"].choose = lambda request: Answer(
        event, floods=True, opening=opening, pause_s=0.1, end=End.HANG
    )
    run, _ = rig.leave_after(300, rig.request("chat", "", PARK))
    wait_until(lambda: len(rig.gateway.outcomes) == 1)
    assert rig.gateway.outcomes[0].outcome == "client_gone"
    assert rig.resume("chat", f"{run}:-1").status == 404


def test_runs_are_removed_when_their_time_is_over(tmp_path: Path) -> None:
    with parking(tmp_path, "[responses]\npark_s = 600\n") as rig:
        kept, parked = rig.send("chat", "", PARK).get("x-dragoman-run"), rig.gateway.app.site.parked_runs
        size = parked.index.size
        assert b"dragoman_runs_parked 1" in get(rig.gateway.port, "/metrics").body
        settings = tmp_path / "dragoman.toml"
        rig.gateway.adopt(settings.read_text().replace("park_s = 600", "park_s = 0.3"))
        run = rig.send("chat", "", PARK).get("x-dragoman-run")
        wait_until(lambda: len(parked.index) == 1)
        assert parked.index.size == size
        assert [rig.resume("chat", f"{id}:-1").status for id in (kept, run)] == [200, 404]


def test_requests_over_a_websocket_are_not_parked(tmp_path: Path) -> None:
    with parking(tmp_path, '[responses]\non_disconnect = "park"\n') as rig:
        url = f"ws://127.0.0.1:{rig.gateway.port}/v1/responses"
        headers = {"authorization": f"Bearer {rig.gateway.keys['alice']}", "idempotency-key": "of the handshake"}
        with connect(url, additional_headers=headers) as opened:
            for text in ("Hi", "Ho"):
                opened.send(f'{{"type":"response.create","model":"chat/m","input":"{text}","store":false}}')
                while '"response.completed"' not in str(opened.recv(timeout=60)):
                    pass
        assert len(rig.gateway.app.site.parked_runs.index) == 0
        assert rig.calls("chat") == 2
