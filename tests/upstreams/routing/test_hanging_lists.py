"""A provider whose model list hangs does not delay requests for long."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asking import ask, send
from fakes.upstream import Answer, End, FakeUpstream
from gateway import provider_section, running
from scripting import write_reply


@pytest.mark.rest
def test_nothing_waits_for_the_end_of_a_list_that_hangs(tmp_path: Path) -> None:
    """All is asked of a gateway that has just started, and answered before it gives up the list."""
    with (
        FakeUpstream(pages={"/v1/models": Answer(headless=True, end=End.HANG)}) as hung,
        FakeUpstream([write_reply("chat", "hi", stream=False)], models=("qwen3-coder",)) as quick,
        running(
            provider_section("chat", hung.url, "hung") + provider_section("chat", quick.url, "quick"), tmp_path
        ) as gateway,
        ThreadPoolExecutor(3) as pool,
    ):
        listed_elsewhere = pool.submit(ask, gateway, "chat", "qwen3-coder")
        unlisted = pool.submit(ask, gateway, "chat", "gpt-9")
        models = pool.submit(send, gateway, "GET", "/v1/models")
        assert listed_elsewhere.result().status == 200
        assert unlisted.result().status == 404
        assert "'hung'" in unlisted.result().json["error"]["message"]
        assert "quick/qwen3-coder" in [model["id"] for model in models.result().json["data"]]
        assert hung.closed == []
