"""Every search service behind one gateway, at the address that the configuration names."""

from pathlib import Path

import msgspec
import pytest

from e2e.search_scene import CHAT_ANSWERS, CHAT_SEARCHES, JSON, search_scene
from e2e.test_server_tools import ask, outcomes
from fakes.upstream import Answer, FakeUpstream
from wire_json import JsonObject

HIT = {"url": "https://a.example/1", "title": "One"}
SERVICES: dict[str, tuple[str, JsonObject]] = {
    "searxng": ("/search", {"results": [{**HIT, "content": "Text of one."}]}),
    "brave": ("/res/v1/web/search", {"web": {"results": [{**HIT, "description": "Text of one."}]}}),
    "tavily": ("/search", {"results": [{**HIT, "content": "Text of one."}]}),
    "exa": ("/search", {"results": [{**HIT, "text": "Text of one."}]}),
}


@pytest.mark.parametrize("is_whole_path", [False, True])
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_gets_its_requests_at_the_configured_address(tmp_path: Path, name: str, is_whole_path: bool) -> None:
    path, found = SERVICES[name]
    answer = Answer(msgspec.json.encode(found), content_type=JSON)
    with FakeUpstream(intercept=lambda request: answer) as service:
        root = service.url.removesuffix("/v1")
        endpoint = root + path if is_whole_path else f"{root}/"
        settings = f'[tools.web_search]\nbackend = "{name}"\nendpoint = "{endpoint}"\napi_key = "k-fake"'
        with search_scene(tmp_path, "chat", searches=False, settings=settings) as scene:
            scene.play(CHAT_SEARCHES, CHAT_ANSWERS)
            with scene.sdk.anthropic.messages.stream(**ask()) as events:
                message = events.get_final_message()
    [request] = service.requests
    assert request.path.partition("?")[0] == path
    assert outcomes(message) == [["https://a.example/1"]]
    assert "Text of one." in str(scene.sent[1]["messages"])
