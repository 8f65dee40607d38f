"""Replies of several upstream requests are released at once, too: searched, fetched, continued and completed ones."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import asking
from e2e.search_scene import (
    ANSWERS,
    BROKEN,
    FETCH,
    SEARCH,
    SEARCHES,
    URL,
    Round,
    SearchScene,
    fetches,
    run_scene,
    says,
    to_answer,
)
from e2e.test_kiro_cut_calls import CUT, WRITE
from fakes.upstream import Answer, End
from raw_http import dial, request_bytes
from release import collector_off, expect_release
from scripting import write_reply
from waiting import wait_until
from wire_json import JsonObject

DUO = "[[models]]\nname = 'duo'\nto = ['chat/m', 'messages/claude-sonnet-4-5']\n"
BEGUN = write_reply("chat", says("It was a dark and stormy night; and the rain fell in torrents."))
QUESTION = f"What does {URL} say of pandas?"


def stop(answer: Answer, end: End) -> Answer:
    """Return an answer that ends in its middle."""
    return replace(answer, body=answer.body[: len(answer.body) // 2], end=end)


@dataclass(frozen=True)
class Row:
    """What the upstreams play. `leaves_at`: the client leaves once so many requests were made, services included."""

    rounds: tuple[Round, ...]
    client: str = "messages"
    upstream: str = "chat"
    model: str = ""
    tools: tuple[JsonObject, ...] = (SEARCH,)
    search: Answer | None = None
    others: tuple[Round, ...] = ()  # of the target that continues
    leaves_at: int = 0
    stream: bool = True


ROWS = {
    "search, answered": Row((SEARCHES, ANSWERS)),
    "search, whole": Row((SEARCHES, ANSWERS), stream=False),
    "search, refused in round 2": Row((SEARCHES, BROKEN)),
    "search, cut in round 2": Row((SEARCHES, stop(write_reply("chat", ANSWERS), End.CUT))),
    "search, client gone in round 2": Row((SEARCHES, stop(write_reply("chat", ANSWERS), End.HANG)), leaves_at=3),
    "search that fails": Row((SEARCHES, ANSWERS), search=BROKEN),
    "search, client gone while it runs": Row((SEARCHES,), search=Answer(b"", end=End.HANG), leaves_at=2),
    "search of a chat client": Row((SEARCHES, ANSWERS), client="chat", tools=()),
    "search, stored": Row((SEARCHES, ANSWERS), client="responses", tools=({"type": "web_search"},)),
    "fetch": Row((fetches(), ANSWERS), tools=(FETCH,)),
    "continued": Row((stop(BEGUN, End.RESET),), model="duo", others=(says("More."),), tools=()),
    "continued, cut again": Row(
        (stop(BEGUN, End.RESET),),
        model="duo",
        others=(stop(write_reply("messages", says("More of it.")), End.CUT),),
        tools=(),
    ),
    "continued, client gone": Row(
        (stop(BEGUN, End.RESET),), model="duo", others=(Answer(b"", end=End.HANG),), tools=(), leaves_at=2
    ),
    "next target": Row((BROKEN,), model="duo", others=(says("Fine."),), tools=()),
    "cut call, completed": Row((CUT, says('.md", "lines": 3}')), upstream="kiro", tools=({**WRITE},)),
    "cut call, client gone": Row((CUT, Answer(b"", end=End.HANG)), upstream="kiro", tools=({**WRITE},), leaves_at=2),
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    directory = Path(tmp_path_factory.mktemp("rounds"))
    with run_scene(directory, settings=DUO, retry_settings="continue_streams = true\n") as shared:
        shared.gateway.settle()
        yield shared


def count_requests(scene: SearchScene) -> int:
    return len(scene.services.requests) + sum(len(scene.rig.calls(name)) for name in ("chat", "messages", "kiro"))


def send(scene: SearchScene, row: Row) -> None:
    """Send a request, and read its reply, or leave."""
    played = scene.on(row.upstream).play(*row.rounds)
    scene.rig.play("messages", *(to_answer("messages", one) for one in row.others))
    if row.search is not None:
        scene.script_search(row.search)
    model = row.model or played.model
    body = asking.make_body(row.client, model, QUESTION, stream=row.stream)
    if row.tools:
        body |= {"tools": [*row.tools]}
    elif row.client == "chat":
        body |= {"web_search_options": {}}
    path = asking.find_path(row.client, model, stream=row.stream)
    with dial(scene.gateway.port) as client:
        client.sendall(request_bytes(path, json.dumps(body).encode(), "connection: close"))
        if row.leaves_at:
            wait_until(lambda: count_requests(scene) >= row.leaves_at)
            return
        with suppress(OSError):
            while client.recv(1 << 16):
                continue


@pytest.mark.parametrize("name", ROWS)
def test_a_reply_of_several_requests_is_released_however_it_ends(scene: SearchScene, name: str) -> None:
    with collector_off(), expect_release(name):
        send(scene, ROWS[name])
        wait_until(lambda: not scene.gateway.app.site.under_way)
        assert count_requests(scene) >= 2
