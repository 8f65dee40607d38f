"""Web fetch for Messages clients: documents, limits, provenance and replay, with Tavily's extraction as the backend."""

from datetime import datetime

import pytest
from anthropic import BadRequestError
from anthropic.types import (
    CitationsConfig,
    DocumentBlock,
    Message,
    TextBlock,
    WebFetchBlock,
    WebFetchToolResultBlock,
)

from e2e.search_scene import (
    FETCH,
    MORE,
    OTHER,
    PAGE,
    SEARCH,
    SEARCHES,
    URL,
    SearchScene,
    content_of,
    fetches,
    kinds,
    outcomes,
    says,
    write_message,
)
from narrowing import expect
from tables import each_row
from wire_json import JsonObject

UNNAMED = "url_not_in_prior_context"
NAMED: JsonObject = {"role": "user", "content": f"Read {URL} please."}
ANSWERS = says(f"See [the page]({URL}).")


def reply(scene: SearchScene, *history: JsonObject, stream: bool = True, **more: object) -> Message:
    return scene.reply(stream=stream, **{"messages": [NAMED, *history], "tools": [FETCH], **more})


def cited_blocks(message: Message) -> list[TextBlock]:
    return [block for block in message.content if isinstance(block, TextBlock) and block.citations]


def document_of(message: Message) -> DocumentBlock:
    [result] = [block.content for block in message.content if isinstance(block, WebFetchToolResultBlock)]
    return expect(WebFetchBlock, result).content


@pytest.mark.parametrize("stream", [True, False])
def test_a_fetched_page_is_a_document(scene: SearchScene, stream: bool) -> None:
    message = reply(scene.play(fetches(), ANSWERS), stream=stream)
    assert kinds(message)[:2] == ["server_tool_use", "web_fetch_tool_result"]
    result = expect(WebFetchBlock, expect(WebFetchToolResultBlock, message.content[1]).content)
    assert result.url == URL
    assert result.retrieved_at is not None
    assert datetime.fromisoformat(result.retrieved_at).tzinfo is not None
    document = result.content
    assert (document.title, document.source.type, document.source.data) == ("Pandas", "text", PAGE)
    counts = message.usage.server_tool_use
    assert counts is not None
    assert (counts.web_search_requests, counts.web_fetch_requests) == (0, 1)


def test_the_model_reads_the_page_and_its_links_are_citations_unless_the_client_wants_none(scene: SearchScene) -> None:
    message = reply(scene.play(fetches(), ANSWERS))
    assert scene.sent[1]["messages"][2]["content"].startswith(f"# Pandas\nURL: {URL}\n\nPandas eat bamboo.")
    [cited] = cited_blocks(message)
    assert cited.text == f"[the page]({URL})"
    assert [citation.model_dump() for citation in cited.citations or ()] == [
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
    assert document_of(message).citations == CitationsConfig(enabled=True)
    message = reply(scene.play(fetches(), ANSWERS), tools=[{**FETCH, "citations": {"enabled": False}}])
    assert cited_blocks(message) == []
    assert document_of(message).citations == CitationsConfig(enabled=False)


def test_documents_of_the_request_and_earlier_pages_come_first_in_the_numbering(scene: SearchScene) -> None:
    first = content_of(reply(scene.play(fetches(), ANSWERS)))
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": f"Read {OTHER}."}}
    second = {"role": "user", "content": [document, {"type": "text", "text": "And this?"}]}
    scene.play(fetches(OTHER), says(f"[it]({OTHER}), unlike [the page]({URL})"))
    blocks = cited_blocks(reply(scene, first, second))
    citations = [citation.model_dump() for block in blocks for citation in block.citations or ()]
    assert [citation["document_index"] for citation in citations] == [2, 0]


# What may name a page

READ_TOOL = {"name": "read", "input_schema": {"type": "object"}}
READ: list[JsonObject] = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": f"It is {OTHER}"}]},
]
ALL: JsonObject = {"type": "all"}
NONE: JsonObject = {"type": "none"}


def refer(kind: str, *names: str) -> JsonObject:
    return {"type": kind, "tools": [{"type": "tool_reference", "name": name} for name in names]}


SOURCES: list[tuple[str, JsonObject, str]] = [
    (URL, {}, URL),
    (URL, {"user_input": ALL, "client_tool_results": NONE, "server_tool_results": NONE}, URL),
    (URL, {"user_input": NONE}, UNNAMED),
    (OTHER, {"user_input": NONE}, OTHER),
    (OTHER, {"client_tool_results": NONE}, UNNAMED),
    (OTHER, {"client_tool_results": refer("only", "read")}, OTHER),
    (OTHER, {"client_tool_results": refer("only", "another")}, UNNAMED),
    (OTHER, {"client_tool_results": refer("except", "read")}, UNNAMED),
    (OTHER, {"client_tool_results": refer("except", "another"), "server_tool_results": NONE}, OTHER),
]


def test_the_client_chooses_what_may_name_a_page(scene: SearchScene) -> None:
    for url, sources, outcome in SOURCES:
        tool = {**FETCH, "type": "web_fetch_20260318", "url_sources": sources, "allowed_callers": ["direct"]}
        message = reply(scene.play(fetches(url), ANSWERS), *READ, tools=[tool, READ_TOOL])
        assert outcomes(message) == [outcome], (url, sources)
    for allowed, outcome in ((refer("only", "web_search"), URL), (NONE, UNNAMED)):
        tool = {**FETCH, "url_sources": {"server_tool_results": allowed}}
        message = scene.play(SEARCHES, fetches(), ANSWERS).reply(tools=[SEARCH, tool])
        assert outcomes(message)[1:] == [outcome], allowed
    for sources, losses in (
        ({"user_input": ALL}, []),
        ({"user_input": ALL, "telepathy": NONE}, ["/tools/0/url_sources"]),
    ):
        answer = scene.play(ANSWERS).ask("messages", tools=[{**FETCH, "url_sources": sources}])
        assert [path for path, _ in answer.losses] == losses, sources
    with pytest.raises(BadRequestError, match=r"tools/0/url_sources/user_input/type must be one of all, none"):
        reply(scene.play(ANSWERS), tools=[{**FETCH, "url_sources": {"user_input": {"type": "some"}}}])


def test_a_page_is_fetched_only_if_the_conversation_or_a_search_has_named_it(scene: SearchScene) -> None:
    message = reply(scene.play(fetches("https://invented.example/"), ANSWERS))
    assert (outcomes(message), scene.fetched) == ([UNNAMED], [])
    message = reply(scene.play(SEARCHES, fetches(OTHER, "call_2"), ANSWERS), tools=[SEARCH, FETCH])
    assert outcomes(message)[1:] == [OTHER]
    counts = message.usage.server_tool_use
    assert counts is not None
    assert (counts.web_search_requests, counts.web_fetch_requests) == (1, 1)


@each_row("url", [URL.replace("a.", "%61."), URL[:-1] + "%31", URL + "//", URL + "?"])
def test_a_page_is_not_fetched_in_a_spelling_that_was_not_shown(scene: SearchScene, url: str) -> None:
    assert (outcomes(reply(scene.play(fetches(url), ANSWERS))), scene.fetched) == ([UNNAMED], [])


def test_a_page_is_fetched_in_the_spelling_that_was_named(scene: SearchScene) -> None:
    reply(scene.play(fetches(URL.replace("https", "http") + "/#data"), ANSWERS))
    assert [request.json["urls"] for request in scene.fetched] == [[URL]]


def test_limits_are_followed(scene: SearchScene) -> None:
    document = document_of(reply(scene.play(fetches(), ANSWERS), tools=[{**FETCH, "max_content_tokens": 10}]))
    assert document.source.data == PAGE[:40]
    assert "[The page is longer" in scene.sent[1]["messages"][2]["content"]
    for lists in ({"allowed_domains": ["b.example"]}, {"blocked_domains": ["a.example"]}):
        message = reply(scene.play(fetches(), ANSWERS), tools=[{**FETCH, **lists}])
        assert (outcomes(message), scene.fetched) == (["url_not_allowed"], []), lists
    scene.play(fetches(), fetches(id="call_2"), ANSWERS)
    assert outcomes(reply(scene, tools=[{**FETCH, "max_uses": 1}])) == [URL, "max_uses_exceeded"]
    assert not scene.sent[2].get("tools")


def test_a_fetched_page_of_the_history_is_call_and_result_and_the_vendors_own_block_for_it(scene: SearchScene) -> None:
    history = content_of(reply(scene.play(fetches(), ANSWERS)))
    reply(scene.play(ANSWERS), history, MORE)
    _, call, result, message, _ = scene.sent[0]["messages"]
    assert call["tool_calls"][0]["function"] == {"name": "web_fetch", "arguments": f'{{"url":"{URL}"}}'}
    assert "Pandas eat bamboo." in result["content"]
    assert message["content"] == f"See [the page]({URL})."
    native = scene.on("anthropic").play(write_message([{"type": "text", "text": "Fine."}]))
    reply(native, history, MORE)
    [request] = native.requests
    assert b"dgm1." not in request.body
    use, result = history["content"][:2]
    assert result.pop("encrypted_content").startswith("dgm1.")
    assert use.pop("caller") == result.pop("caller") == {"type": "direct"}  # the default
    assert request.json["messages"][1]["content"][:2] == [use, result]
