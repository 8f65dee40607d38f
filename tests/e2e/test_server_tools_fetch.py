"""Web fetch for Messages clients: documents, limits, provenance and replay, with Tavily's extraction as the backend."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pytest
from anthropic import BadRequestError
from anthropic.types import (
    CitationsConfig,
    DocumentBlock,
    Message,
    TextBlock,
    TextCitation,
    WebFetchBlock,
    WebFetchToolResultBlock,
)

from e2e.search_scene import (
    CHAT_SEARCHES,
    JSON,
    SearchScene,
    chat_calls,
    chat_text,
    message,
    search_scene,
)
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from raw_http import post
from wire_json import JsonObject

FETCH: JsonObject = {"type": "web_fetch_20250910", "name": "web_fetch"}
SEARCH: JsonObject = {"type": "web_search_20250305", "name": "web_search"}
URL = "https://a.example/1"
OTHER = "https://b.example/2"
UNNAMED = "url_not_in_prior_context"
USER: JsonObject = {"role": "user", "content": f"Read {URL} please."}
PAGE = "Pandas eat bamboo. " * 100


def fetches(url: str, id: str = "call_1") -> bytes:
    return chat_calls((id, "web_fetch", json.dumps({"url": url})), text="")


ANSWERS = chat_text(f"See [the page]({URL}).")


@dataclass
class FetchScene:
    search: SearchScene
    tavily: FakeUpstream

    def play(self, *rounds: bytes) -> None:
        self.search.play(*rounds)
        self.tavily.requests.clear()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FetchScene]:
    with FakeUpstream() as tavily:
        tavily.intercept = _extract
        settings = f'[tools.web_fetch]\nbackend = "tavily"\nendpoint = "{tavily.url}"\napi_key = "tvly-fake"\n'
        with search_scene(tmp_path_factory.mktemp("fetch"), "chat", settings=settings) as search:
            yield FetchScene(search, tavily)


def _extract(request: ReceivedRequest) -> Answer:
    found = {"url": request.json["urls"][0], "raw_content": PAGE, "title": "Pandas"}
    return Answer(json.dumps({"results": [found], "failed_results": []}).encode(), content_type=JSON)


def ask(*history: JsonObject, **more: object) -> JsonObject:
    return {"model": "up/m", "max_tokens": 100, "messages": [USER, *history], "tools": [FETCH], **more}


def stream_reply(scene: SearchScene, *history: JsonObject, **more: object) -> Message:
    with scene.sdk.anthropic.messages.stream(**ask(*history, **more)) as stream:
        return stream.get_final_message()


def outcomes(reply: Message) -> list[str]:
    """What each fetch returned: its URL, or its error code."""
    results = [block.content for block in reply.content if isinstance(block, WebFetchToolResultBlock)]
    return [result.url if isinstance(result, WebFetchBlock) else result.error_code for result in results]


def cited_blocks(reply: Message) -> list[TextBlock]:
    return [block for block in reply.content if isinstance(block, TextBlock) and block.citations]


def _list_citations(block: TextBlock) -> list[TextCitation]:
    return block.citations or []


def document_of(reply: Message) -> DocumentBlock:
    [result] = [block.content for block in reply.content if isinstance(block, WebFetchToolResultBlock)]
    assert isinstance(result, WebFetchBlock)
    return result.content


@pytest.mark.parametrize("stream", [True, False])
def test_a_fetched_page_is_a_document(scene: FetchScene, stream: bool) -> None:
    scene.play(fetches(URL), ANSWERS)
    reply = stream_reply(scene.search) if stream else scene.search.sdk.anthropic.messages.create(**ask())
    assert isinstance(reply, Message)
    assert [block.type for block in reply.content][:2] == ["server_tool_use", "web_fetch_tool_result"]
    result = reply.content[1]
    assert isinstance(result, WebFetchToolResultBlock)
    assert isinstance(result.content, WebFetchBlock)
    assert result.content.url == URL
    assert result.content.retrieved_at is not None
    assert datetime.fromisoformat(result.content.retrieved_at).tzinfo is not None
    document = result.content.content
    assert isinstance(document, DocumentBlock)
    assert document.title == "Pandas"
    assert document.source.type == "text"
    assert document.source.data == PAGE
    assert reply.usage.server_tool_use is not None
    assert reply.usage.server_tool_use.web_fetch_requests == 1
    assert reply.usage.server_tool_use.web_search_requests == 0


def test_the_model_reads_the_page_and_its_links_are_citations(scene: FetchScene) -> None:
    scene.play(fetches(URL), ANSWERS)
    reply = stream_reply(scene.search)
    found = scene.search.sent[1]["messages"][2]["content"]
    assert found.startswith(f"# Pandas\nURL: {URL}\n\nPandas eat bamboo.")
    cited = cited_blocks(reply)
    assert [block.text for block in cited] == [f"[the page]({URL})"]
    assert [citation.model_dump() for citation in cited[0].citations or ()] == [
        {
            "type": "char_location",
            "cited_text": PAGE[:150],
            "document_index": 0,
            "document_title": "Pandas",
            "file_id": None,
            "start_char_index": 0,
            "end_char_index": 150,
        }
    ]
    assert document_of(reply).citations == CitationsConfig(enabled=True)


def test_a_client_that_wants_no_citations_of_pages_gets_none(scene: FetchScene) -> None:
    scene.play(fetches(URL), ANSWERS)
    reply = stream_reply(scene.search, tools=[{**FETCH, "citations": {"enabled": False}}])
    assert cited_blocks(reply) == []
    assert document_of(reply).citations == CitationsConfig(enabled=False)


def test_documents_of_the_request_and_earlier_pages_come_first_in_the_numbering(scene: FetchScene) -> None:
    scene.play(fetches(URL), ANSWERS)
    first = stream_reply(scene.search)
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": f"Read {OTHER}."}}
    history: list[JsonObject] = [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
        {"role": "user", "content": [document, {"type": "text", "text": "And this?"}]},
    ]
    scene.play(fetches(OTHER), chat_text(f"[it]({OTHER}), unlike [the page]({URL})"))
    reply = stream_reply(scene.search, *history)
    numbers = [
        citation.model_dump()["document_index"] for block in cited_blocks(reply) for citation in _list_citations(block)
    ]
    assert numbers == [2, 0]


READ_TOOL = {"name": "read", "input_schema": {"type": "object"}}
READ: list[JsonObject] = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": f"It is {OTHER}"}]},
]
NONE: JsonObject = {"type": "none"}


def make_references(kind: str, *names: str) -> JsonObject:
    return {"type": kind, "tools": [{"type": "tool_reference", "name": name} for name in names]}


@pytest.mark.parametrize(
    ("url", "sources", "outcome"),
    [
        (URL, {}, URL),
        (URL, {"user_input": {"type": "all"}, "client_tool_results": NONE, "server_tool_results": NONE}, URL),
        (URL, {"user_input": NONE}, UNNAMED),
        (OTHER, {"user_input": NONE}, OTHER),
        (OTHER, {"client_tool_results": NONE}, UNNAMED),
        (OTHER, {"client_tool_results": make_references("only", "read")}, OTHER),
        (OTHER, {"client_tool_results": make_references("only", "another")}, UNNAMED),
        (OTHER, {"client_tool_results": make_references("except", "read")}, UNNAMED),
        (OTHER, {"client_tool_results": make_references("except", "another"), "server_tool_results": NONE}, OTHER),
    ],
)
def test_the_client_chooses_what_may_name_a_page(
    scene: FetchScene, url: str, sources: JsonObject, outcome: str
) -> None:
    scene.play(fetches(url), ANSWERS)
    tool = {**FETCH, "type": "web_fetch_20260318", "url_sources": sources, "allowed_callers": ["direct"]}
    reply = stream_reply(scene.search, *READ, tools=[tool, READ_TOOL])
    assert outcomes(reply) == [outcome]


@pytest.mark.parametrize(("allowed", "outcome"), [(make_references("only", "web_search"), URL), (NONE, UNNAMED)])
def test_the_client_chooses_whether_a_search_may_name_a_page(
    scene: FetchScene, allowed: JsonObject, outcome: str
) -> None:
    scene.play(CHAT_SEARCHES, fetches(URL), ANSWERS)
    tool = {**FETCH, "url_sources": {"server_tool_results": allowed}}
    reply = stream_reply(scene.search, messages=[{"role": "user", "content": "pandas?"}], tools=[SEARCH, tool])
    assert outcomes(reply) == [outcome]


def test_url_sources_are_followed_and_those_of_another_kind_are_noted(scene: FetchScene) -> None:
    assert losses(scene, {"user_input": {"type": "all"}}) == []
    assert losses(scene, {"user_input": {"type": "all"}, "telepathy": NONE}) == ["/tools/0/url_sources"]


def test_a_source_of_unknown_kind_is_refused(scene: FetchScene) -> None:
    scene.play(ANSWERS)
    with pytest.raises(BadRequestError, match=r"tools/0/url_sources/user_input/type must be one of all, none"):
        stream_reply(scene.search, tools=[{**FETCH, "url_sources": {"user_input": {"type": "some"}}}])


def losses(scene: FetchScene, sources: JsonObject) -> list[str]:
    scene.play(ANSWERS)
    body = json.dumps(ask(tools=[{**FETCH, "url_sources": sources}])).encode()
    reply = post(scene.search.gateway.port, "/v1/messages", body, "x-dragoman-explain: 1")
    return [loss["path"] for loss in json.loads(dict(reply.headers).get("x-dragoman-loss-detail", "[]"))]


def test_max_content_tokens_cuts_the_page(scene: FetchScene) -> None:
    scene.play(fetches(URL), ANSWERS)
    reply = stream_reply(scene.search, tools=[{**FETCH, "max_content_tokens": 10}])
    result = reply.content[1]
    assert isinstance(result, WebFetchToolResultBlock)
    assert isinstance(result.content, WebFetchBlock)
    assert result.content.content.source.data == PAGE[:40]
    assert "[The page is longer" in scene.search.sent[1]["messages"][2]["content"]


def test_an_address_that_the_conversation_does_not_name_is_not_fetched(scene: FetchScene) -> None:
    scene.play(fetches("https://invented.example/"), ANSWERS)
    assert outcomes(stream_reply(scene.search)) == ["url_not_in_prior_context"]
    assert scene.tavily.requests == []


def test_an_address_of_a_search_result_is_fetched(scene: FetchScene) -> None:
    scene.play(CHAT_SEARCHES, fetches("https://b.example/2", "call_2"), ANSWERS)
    reply = stream_reply(scene.search, tools=[SEARCH, FETCH])
    assert outcomes(reply) == ["https://b.example/2"]
    assert reply.usage.server_tool_use is not None
    counts = reply.usage.server_tool_use
    assert (counts.web_search_requests, counts.web_fetch_requests) == (1, 1)


@pytest.mark.parametrize("lists", [{"allowed_domains": ["b.example"]}, {"blocked_domains": ["a.example"]}])
def test_domain_lists_are_followed(scene: FetchScene, lists: JsonObject) -> None:
    scene.play(fetches(URL), ANSWERS)
    assert outcomes(stream_reply(scene.search, tools=[{**FETCH, **lists}])) == ["url_not_allowed"]
    assert scene.tavily.requests == []


def test_a_second_fetch_beyond_max_uses_is_an_error_result(scene: FetchScene) -> None:
    scene.play(fetches(URL), fetches(URL, "call_2"), ANSWERS)
    reply = stream_reply(scene.search, tools=[{**FETCH, "max_uses": 1}])
    assert outcomes(reply) == [URL, "max_uses_exceeded"]
    assert not scene.search.sent[2].get("tools")


def test_a_fetched_page_of_the_history_is_call_and_result(scene: FetchScene) -> None:
    scene.play(fetches(URL), ANSWERS)
    content = [block.model_dump(exclude_unset=True) for block in stream_reply(scene.search).content]
    scene.play(ANSWERS)
    stream_reply(scene.search, {"role": "assistant", "content": content}, {"role": "user", "content": "more"})
    _, call, result, message, _ = scene.search.sent[0]["messages"]
    assert call["tool_calls"][0]["function"] == {
        "name": "web_fetch",
        "arguments": json.dumps({"url": URL}, separators=(",", ":")),
    }
    assert "Pandas eat bamboo." in result["content"]
    assert message["content"] == f"See [the page]({URL})."


def test_the_vendor_gets_a_fetched_page_in_its_own_shape(
    scene: FetchScene, tmp_path_factory: pytest.TempPathFactory
) -> None:
    scene.play(fetches(URL), ANSWERS)
    content = [block.model_dump(exclude_unset=True) for block in stream_reply(scene.search).content]
    with search_scene(tmp_path_factory.mktemp("native"), "messages") as native:
        native.play(message([{"type": "text", "text": "Fine."}], "end_turn"))
        stream_reply(native, {"role": "assistant", "content": content}, {"role": "user", "content": "more"})
        [request] = native.upstream.calls
        assert b"dgm1." not in request.body
        assert request.json["messages"][1]["content"][:2] == content[:2]
