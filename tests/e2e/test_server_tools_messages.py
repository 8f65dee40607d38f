"""Server tools for Messages clients: tokens, tool versions, ledger, and replay to the vendor itself."""

import json
from collections.abc import Iterator

import pytest
from anthropic import BadRequestError
from anthropic.types import CitationsWebSearchResultLocation, Message, TextBlock, WebSearchToolResultBlock

from dragoman.hub.server_tools import unseal_source
from e2e.search_scene import CHAT_ANSWERS, CHAT_SEARCHES, JSON, SearchScene, message, search_scene
from fakes.upstream import Answer
from raw_http import post
from wire_json import JsonObject

TOOL: JsonObject = {"type": "web_search_20250305", "name": "web_search"}
FETCH: JsonObject = {"type": "web_fetch_20250910", "name": "web_fetch"}
USER: JsonObject = {"role": "user", "content": "pandas?"}
VENDOR_USE: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_v", "name": "web_search", "input": {"query": "q"}}
VENDOR_HIT: JsonObject = {
    "type": "web_search_result",
    "url": "https://v.example/",
    "title": "V",
    "encrypted_content": "vendor-secret",
    "page_age": None,
}
VENDOR_RESULT: JsonObject = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_v",
    "content": [VENDOR_HIT],
}
PLAIN = message([{"type": "text", "text": "Fine."}], "end_turn")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with search_scene(tmp_path_factory.mktemp("chat"), "chat") as scene:
        yield scene


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchScene]:
    with search_scene(tmp_path_factory.mktemp("native"), "messages") as scene:
        yield scene


def ask(*history: JsonObject, **more: object) -> JsonObject:
    return {"model": "up/m", "max_tokens": 100, "messages": [USER, *history], "tools": [TOOL], **more}


def stream_reply(scene: SearchScene, *history: JsonObject, **more: object) -> Message:
    with scene.sdk.anthropic.messages.stream(**ask(*history, **more)) as stream:
        return stream.get_final_message()


def losses(scene: SearchScene, **more: object) -> list[tuple[str, str]]:
    """The ledger of a streamed request: paths and how."""
    body = json.dumps(ask(stream=True, **more)).encode()
    reply = post(scene.gateway.port, "/v1/messages", body, "x-dragoman-explain: 1")
    assert reply.status == 200, reply.body
    detail = dict(reply.headers).get("x-dragoman-loss-detail", "[]")
    return [(loss["path"], loss["how"]) for loss in json.loads(detail)]


def content_of(reply: Message) -> JsonObject:
    return {"role": "assistant", "content": [block.model_dump(exclude_unset=True) for block in reply.content]}


def test_results_and_citations_carry_tokens_and_never_null_titles(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    reply = stream_reply(chat)
    [result] = [block for block in reply.content if isinstance(block, WebSearchToolResultBlock)]
    assert isinstance(result.content, list)
    assert [item.title for item in result.content] == ["One", "https://b.example/2"]
    assert [item.page_age for item in result.content] == ["2026-01-02", None]
    sources = [unseal_source(item.encrypted_content) for item in result.content]
    assert [source and source.text for source in sources] == ["Text of one.", "Text of two."]
    cited = [block.citations for block in reply.content if isinstance(block, TextBlock) and block.citations]
    [[citation]] = cited
    assert isinstance(citation, CitationsWebSearchResultLocation)
    token = unseal_source(citation.encrypted_index)
    assert token is not None
    assert token.text == "Text of one."


def test_a_search_that_the_gateway_runs_is_no_loss(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    assert losses(chat) == []


@pytest.mark.parametrize("version", ["web_search_20250305", "web_search_20260209", "web_search_20260318"])
def test_every_version_of_web_search_is_run(chat: SearchScene, version: str) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    reply = stream_reply(chat, tools=[{**TOOL, "type": version, "allowed_callers": ["direct"]}])
    assert [block.type for block in reply.content][1:3] == ["server_tool_use", "web_search_tool_result"]


def test_two_versions_of_one_tool_are_offered_once(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    stream_reply(chat, tools=[{**TOOL, "type": "web_search_20260209"}, TOOL])
    assert [tool["function"]["name"] for tool in chat.sent[0]["tools"]] == ["web_search"]


@pytest.mark.parametrize(
    "version", ["web_fetch_20250910", "web_fetch_20260209", "web_fetch_20260309", "web_fetch_20260318"]
)
def test_every_version_of_web_fetch_is_offered(chat: SearchScene, version: str) -> None:
    chat.play(CHAT_ANSWERS)
    stream_reply(chat, tools=[{**FETCH, "type": version, "max_uses": 2, "allowed_domains": ["a.example"]}])
    [tool] = chat.sent[0]["tools"]
    assert tool["function"]["name"] == "web_fetch"
    assert list(tool["function"]["parameters"]["properties"]) == ["url"]


@pytest.mark.parametrize(
    ("tool", "path"),
    [
        ({**TOOL, "user_location": {"type": "approximate", "city": "Rome"}}, "/tools/0/user_location"),
        ({**TOOL, "type": "web_search_20260318"}, "/tools/0/type"),
        ({**FETCH, "max_content_tokens": 500}, "/tools/0/max_content_tokens"),
        (
            {**FETCH, "type": "web_fetch_20260318", "allowed_callers": ["direct"], "url_sources": {"type": "none"}},
            "/tools/0/url_sources",
        ),
    ],
)
def test_what_the_gateway_cannot_do_is_approximated(chat: SearchScene, tool: JsonObject, path: str) -> None:
    chat.play(CHAT_ANSWERS)
    assert losses(chat, tools=[tool]) == [(path, "approximated")]


def test_callers_other_than_the_model_are_approximated(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    tool = {**TOOL, "type": "web_search_20260209", "allowed_callers": ["direct", "code_execution_20250825"]}
    assert losses(chat, tools=[tool]) == [
        ("/tools/0/allowed_callers", "approximated"),
        ("/tools/0/type", "approximated"),
    ]


@pytest.mark.parametrize("tool", [TOOL, FETCH])
def test_allowed_and_blocked_domains_together_are_refused(chat: SearchScene, tool: JsonObject) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    both = {**tool, "allowed_domains": ["a.example"], "blocked_domains": ["b.example"]}
    with pytest.raises(BadRequestError) as refused:
        stream_reply(chat, tools=[both])
    assert "allowed_domains" in str(refused.value)
    assert chat.upstream.calls == chat.searxng.requests == []


def test_domain_lists_filter_what_is_shown(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    reply = stream_reply(chat, tools=[{**TOOL, "blocked_domains": ["a.example"]}])
    [result] = [block for block in reply.content if isinstance(block, WebSearchToolResultBlock)]
    assert isinstance(result.content, list)
    assert [item.url for item in result.content] == ["https://b.example/2"]
    assert "a.example" not in chat.sent[1]["messages"][2]["content"]


# Replay to the vendor's own API


def test_our_own_search_reaches_the_vendor_as_text_without_a_token(chat: SearchScene, native: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    history = content_of(stream_reply(chat))
    native.play(PLAIN)
    stream_reply(native, history, {"role": "user", "content": "more"})
    [request] = native.upstream.calls
    assert b"dgm1." not in request.body
    blocks = request.json["messages"][1]["content"]
    assert [block["type"] for block in blocks] == ["text"] * 5
    assert "pandas" in blocks[1]["text"]
    assert "1. One\nURL: https://a.example/1\nDate: 2026-01-02\nText of one." in blocks[1]["text"]
    assert all("citations" not in block for block in blocks)
    assert request.json["tools"] == [TOOL]


def test_our_own_search_sent_to_the_vendor_is_in_the_ledger(chat: SearchScene, native: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    history = content_of(stream_reply(chat))
    native.play(PLAIN)
    noted = losses(native, messages=[USER, history, {"role": "user", "content": "more"}])
    assert noted == [("/messages/1/content/1", "approximated"), ("/messages/1/content/4/citations", "dropped")]


def test_the_vendors_own_search_passes_byte_for_byte(native: SearchScene) -> None:
    native.play(PLAIN)
    history = {"role": "assistant", "content": [VENDOR_USE, VENDOR_RESULT, {"type": "text", "text": "So."}]}
    body = json.dumps(ask(history, USER)).encode()
    post(native.gateway.port, "/v1/messages", body)
    assert native.upstream.calls[0].body == body.replace(b'"up/m"', b'"m"')


def test_beside_ours_the_vendors_own_search_stays_as_it_was(chat: SearchScene, native: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    ours = content_of(stream_reply(chat))
    theirs = {"role": "assistant", "content": [VENDOR_USE, VENDOR_RESULT, {"type": "text", "text": "So."}]}
    native.play(PLAIN)
    stream_reply(native, theirs, USER, ours, USER)
    assert native.sent[0]["messages"][1] == theirs


def test_the_vendors_search_is_call_and_result_with_titles_for_others(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    theirs = {"role": "assistant", "content": [VENDOR_USE, VENDOR_RESULT, {"type": "text", "text": "So."}]}
    assert losses(chat, messages=[USER, theirs, USER]) == [("/messages/1/content/0", "approximated")]
    _, call, result, rest, _ = chat.sent[0]["messages"]
    assert call["tool_calls"][0]["function"] == {"name": "web_search", "arguments": '{"query":"q"}'}
    assert "1. V\nURL: https://v.example/" in result["content"]
    assert "vendor-secret" not in result["content"]
    assert rest["content"] == "So."


def test_an_error_result_of_the_history_is_an_error_text(chat: SearchScene) -> None:
    chat.play(CHAT_ANSWERS)
    failed = {"type": "web_search_tool_result_error", "error_code": "too_many_requests"}
    result = {**VENDOR_RESULT, "content": failed}
    history = {"role": "assistant", "content": [VENDOR_USE, result, {"type": "text", "text": "So."}]}
    stream_reply(chat, history, USER)
    assert "too_many_requests" in chat.sent[0]["messages"][2]["content"]


def test_the_split_is_the_same_bytes_every_time(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    history = content_of(stream_reply(chat))
    chat.play(CHAT_ANSWERS)
    stream_reply(chat, history, USER)
    first = json.dumps(chat.sent[0]["messages"])
    chat.play(CHAT_ANSWERS)
    stream_reply(chat, history, USER, {"role": "assistant", "content": "Yes."}, USER)
    assert json.dumps(chat.sent[0]["messages"]).startswith(first[:-1])


def test_a_later_reply_may_cite_what_an_earlier_search_has_found(chat: SearchScene) -> None:
    chat.play(CHAT_SEARCHES, CHAT_ANSWERS)
    history = content_of(stream_reply(chat))
    chat.play(CHAT_ANSWERS)
    reply = stream_reply(chat, history, USER)
    cited = [block for block in reply.content if isinstance(block, TextBlock) and block.citations]
    assert [block.text for block in cited] == ["[One](https://a.example/1)"]
    assert [citation.cited_text for block in cited for citation in block.citations or ()] == ["Text of one."]


def test_a_search_by_a_whole_chat_reply_is_the_same(chat: SearchScene) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "web_search", "arguments": '{"query": "q"}'}}
    calling: JsonObject = {"role": "assistant", "content": None, "tool_calls": [call]}
    counts = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": counts}

    def body(message: JsonObject, finish: str) -> Answer:
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return Answer(json.dumps({**whole, "choices": [choice]}).encode(), content_type=JSON)

    link = {"role": "assistant", "content": "See [One](https://a.example/1)."}
    chat.play(body(calling, "tool_calls"), body(link, "stop"))
    reply = chat.sdk.anthropic.messages.create(**ask())
    assert isinstance(reply, Message)
    assert [block.type for block in reply.content] == [
        "server_tool_use",
        "web_search_tool_result",
        "text",
        "text",
        "text",
    ]
    assert reply.usage.output_tokens == 10
