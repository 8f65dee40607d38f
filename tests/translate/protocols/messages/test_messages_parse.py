"""Parse bodies of Messages clients into hub requests; no field may vanish."""

from collections.abc import Iterator
from copy import deepcopy

import msgspec
import pytest

from dragoman.translate.hub.ext import record_foreign_fields
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm, encode_envelope
from dragoman.translate.hub.request import (
    Cache,
    Document,
    FileId,
    Foreign,
    Format,
    Function,
    Hosted,
    Image,
    Inline,
    Link,
    Part,
    Pick,
    Reasoning,
    Role,
    Shape,
    Switch,
    Text,
    Thinking,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from tables import each_row
from translate.protocols.messages.messages_dialogue import CLIENT, build, fixture, losses, parse
from wire_json import Json, JsonObject

BODY: JsonObject = msgspec.json.decode(fixture("request.json"))
REQUEST = parse(BODY)


def minimal(**fields: object) -> JsonObject:
    return {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **fields}


def with_blocks(*blocks: object) -> JsonObject:
    return minimal(messages=[{"role": "user", "content": list(blocks)}])


def expect_refusal(body: object) -> Failure:
    with pytest.raises(RequestError) as caught:
        parse(body)
    return caught.value.failure


def test_system_blocks_lead_and_later_instructions_stay_in_place() -> None:
    assert [turn.role for turn in REQUEST.turns] == [Role.SYSTEM, Role.USER, Role.SYSTEM, Role.ASSISTANT, Role.USER]
    assert REQUEST.turns[0].parts == (
        Text("Be brief.", "/system/0"),
        Text("Be kind.", "/system/1", cache=Cache("/system/1/cache_control", "1h")),
    )
    later = REQUEST.turns[2]
    assert (later.at, later.ext) == ("/messages/1", {"output_config": {"effort": "low"}})


def test_media_of_every_source_are_parts() -> None:
    parts = REQUEST.turns[1].parts
    assert parts[1] == Image(Inline("image/png", "aW1n"), "/messages/0/content/1")
    assert isinstance(parts[2], Image)
    assert parts[2].source == Link("https://example.com/cat.jpg")
    pdf = parts[3]
    assert isinstance(pdf, Document)
    assert (pdf.source, pdf.title) == (Inline("application/pdf", "cGRm"), "Report")
    assert pdf.ext == {"context": "quarterly", "citations": {"enabled": True}}
    assert [part.source for part in parts[4:] if isinstance(part, Document)] == [
        "plain words",
        "part one\n\npart two",
        "https://example.com/r\n\nfound words",
    ]


AT = "/messages/0/content/0"
SEALED = Opaque("openai", OpaqueForm.ENCRYPTED, "gAAAA", "gpt-test", "the text")
CALL = {"type": "tool_use", "id": "t", "name": "look", "input": {}, "caller": {"type": "direct"}}
UNKNOWN = [
    {"type": kind, "id": "x", "deep": {"er": [1]}}
    for kind in ("server_tool_use", "web_search_tool_result", "container_upload", "not_yet_invented")
]


@each_row(
    ("block", "part"),
    [
        ({"type": "image", "source": {"type": "file", "file_id": "file_1"}}, Image(FileId("file_1"), AT)),
        (CALL, ToolCall("t", "look", "{}", AT)),  # made by the model itself
        ({"type": "tool_result", "tool_use_id": "t"}, ToolResult("t", (), AT)),
        ({"type": "thinking", "thinking": "hm", "signature": ""}, Thinking("hm", AT)),
        ({"type": "redacted_thinking", "data": encode_envelope(SEALED)}, Thinking("", AT, SEALED)),
        *((block, Foreign(str(block["type"]), block, AT)) for block in UNKNOWN),  # kept whole
    ],
)
def test_each_block_is_one_part(block: object, part: Part) -> None:
    assert parse(with_blocks(block)).turns[0].parts == (part,)


def test_calls_and_results_keep_ids_flags_and_media() -> None:
    call, empty = REQUEST.turns[3].parts[3:]
    assert call == ToolCall(
        "toolu_1",
        "look",
        '{"at":[1,2.5,null,"é"]}',
        "/messages/2/content/3",
        ext={"caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}},
    )
    assert isinstance(empty, ToolCall)
    assert empty.arguments == "{}"
    seen, failed, _ = REQUEST.turns[4].parts
    assert isinstance(seen, ToolResult)
    assert [type(part) for part in seen.content] == [Text, Image, Foreign]
    assert isinstance(failed, ToolResult)
    assert (failed.is_error, failed.content) == (True, (Text("failed", "/messages/3/content/1/content"),))


def test_signatures_belong_to_anthropic() -> None:
    thinking, redacted = REQUEST.turns[3].parts[:2]
    signed = Opaque("anthropic", OpaqueForm.SIGNATURE, "c2lnbmF0dXJl")
    assert thinking == Thinking("Look it up.", "/messages/2/content/0", signed)
    assert redacted == Thinking("", "/messages/2/content/1", Opaque("anthropic", OpaqueForm.REDACTED, "cmVkYWN0ZWQ="))


def test_tools_are_functions_or_hosted() -> None:
    look, later, search, bash = REQUEST.tools
    assert isinstance(look, Function)
    assert (look.strict, look.deferred, look.ext) == (True, False, {"input_examples": [{"at": [1]}]})
    assert isinstance(later, Function)
    assert (later.deferred, later.cache) == (True, Cache("/tools/1/cache_control"))
    assert isinstance(search, Hosted)
    assert (search.kind, search.allowed_domains, search.max_uses) == ("web_search", ("example.com",), 3)
    assert search.location == {"type": "approximate", "city": "Bern", "country": "CH"}
    assert isinstance(bash, Hosted)
    assert bash.kind == "bash_20250124"


@pytest.mark.parametrize(
    ("kind", "hub"),
    [
        ("web_search_20260318", "web_search"),
        ("code_execution_20250825", "code_execution"),
        ("tool_search_tool_bm25_20251119", "tool_search"),
        ("web_fetch_20250910", "web_fetch"),
    ],
)
def test_dated_tools_have_one_name(kind: str, hub: str) -> None:
    (tool,) = parse(minimal(tools=[{"type": kind, "name": "x"}])).tools
    assert isinstance(tool, Hosted)
    assert tool.kind == hub


def test_an_mcp_server_and_its_plain_toolset_are_one_tool() -> None:
    server = {"type": "url", "name": "s", "url": "https://mcp.example.com", "authorization_token": "fake"}
    request = parse(minimal(mcp_servers=[server], tools=[{"type": "mcp_toolset", "mcp_server_name": "s"}]))
    (tool,) = request.tools
    assert isinstance(tool, Hosted)
    assert (tool.kind, tool.server_url, tool.server_name) == ("mcp", "https://mcp.example.com", "s")
    assert build(request)["mcp_servers"] == [server]
    assert build(request)["tools"] == [{"type": "mcp_toolset", "mcp_server_name": "s"}]


@pytest.mark.parametrize(
    ("written", "choice", "parallel"),
    [
        ({"type": "auto"}, ToolChoice(Pick.AUTO, "/tool_choice"), None),
        ({"type": "any"}, ToolChoice(Pick.REQUIRED, "/tool_choice"), None),
        ({"type": "none"}, ToolChoice(Pick.NONE, "/tool_choice"), None),
        ({"type": "tool", "name": "f"}, ToolChoice(Pick.NAMED, "/tool_choice", "f"), None),
        (
            {"type": "tool", "name": "web_search", "disable_parallel_tool_use": True},
            ToolChoice(Pick.NAMED, "/tool_choice", "web_search", hosted="web_search"),
            False,
        ),
    ],
)
def test_the_tool_choice_is_read(written: object, choice: ToolChoice, parallel: bool | None) -> None:
    tools = [{"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search"}]
    request = parse(minimal(tools=tools, tool_choice=written))
    assert (request.tool_choice, request.parallel) == (choice, parallel)


def test_settings_are_read_and_know_where_they_stood() -> None:
    assert REQUEST.reasoning == Reasoning(
        at="/output_config/effort",
        effort="high",
        budget_at="/thinking/budget_tokens",
        switch=Switch.ADAPTIVE,
        switch_at="/thinking",
        show="summarized",
        show_at="/thinking/display",
    )
    assert isinstance(REQUEST.format, Format)
    assert (REQUEST.format.shape, REQUEST.format.at) == (Shape.SCHEMA, "/output_config/format")
    assert REQUEST.sampling.stop == ("END",)
    assert (REQUEST.attribution.user, REQUEST.attribution.service_tier) == ("user-7", "default")
    assert (REQUEST.max_tokens, REQUEST.stream, REQUEST.parallel) == (4000, True, False)
    assert REQUEST.pointer("stop") == "/stop_sequences"
    assert REQUEST.pointer("user") == "/metadata/user_id"
    assert REQUEST.raw == BODY


def test_what_only_messages_has_is_recorded_in_the_ledger_of_any_other_protocol() -> None:
    ledger = Ledger()
    record_foreign_fields(REQUEST, "chat", ledger)
    assert set(losses(ledger)) == {
        "/context_management",
        "/inference_geo",
        "/speed",
        "/messages/1/output_config",
        "/messages/0/content/3/context",
        "/messages/0/content/3/citations",
        "/messages/0/content/6/citations",
        "/messages/2/content/3/caller",
        "/messages/3/content/0/content/2",
        "/tools/0/input_examples",
    }


@each_row("protocol", ["chat", "responses", "kiro"])
def test_a_compaction_is_refused_for_protocols_that_would_answer_instead(protocol: str) -> None:
    compacting = parse(minimal(compaction={"type": "summarize"}))
    record_foreign_fields(compacting, "messages", Ledger())
    with pytest.raises(RequestError, match="compaction requests a compacted context") as refused:
        record_foreign_fields(compacting, protocol, Ledger())
    assert (refused.value.failure.kind, refused.value.failure.at) == (Kind.BAD_REQUEST, "/compaction")


def test_why_a_context_is_not_managed_elsewhere_is_explained_correctly() -> None:
    ledger = Ledger()
    record_foreign_fields(REQUEST, "responses", ledger)
    (why,) = [loss.why for loss in ledger if loss.path == "/context_management"]
    assert "only its own vendor can read back" in why


def test_defaults_and_nulls_are_no_fields() -> None:
    request = parse(minimal(speed="standard", service_tier="auto", thinking=None, temperature=None, container=None))
    assert request.ext == {}


def test_a_missing_cap_is_named() -> None:
    body = minimal()
    del body["max_tokens"]
    failure = expect_refusal(body)
    assert (failure.kind, failure.at) == (Kind.BAD_REQUEST, "/max_tokens")
    assert "max_tokens" in failure.message


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_a_thread_is_refused_with_the_code_that_makes_the_sdk_resend_everything(thread: object) -> None:
    failure = expect_refusal(minimal(thread=thread))
    assert failure.detail == {"error_code": "thread_unsupported_request"}
    body = CLIENT.render_error(failure, "req_1").body
    assert msgspec.json.decode(body)["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_zero_tokens_and_a_container_without_an_id_are_kept() -> None:
    assert parse(minimal(max_tokens=0)).max_tokens == 0
    assert parse(minimal(container={"skills": []})).ext == {"container": {"skills": []}}


@each_row(
    ("body", "at"),
    [
        (minimal(messages="hi"), "/messages"),
        (minimal(messages=[{"role": "tool", "content": "x"}]), "/messages/0/role"),
        (minimal(messages=[{"role": "user"}]), "/messages/0/content"),
        (minimal(messages=[7]), "/messages/0"),
        (with_blocks({"text": "no type"}), "/messages/0/content/0/type"),
        (with_blocks({"type": "tool_use", "id": "a", "name": "b", "input": "{}"}), "/messages/0/content/0/input"),
        (minimal(tools=[{"input_schema": {}}]), "/tools/0/name"),
        (minimal(stop_sequences=[1]), "/stop_sequences"),
        (minimal(tool_choice={"type": "maybe"}), "/tool_choice/type"),
        (minimal(stream="yes"), "/stream"),
        (minimal(max_tokens=-1), "/max_tokens"),
        (minimal(container="container_1"), "/container"),
        (minimal(container={"id": "container_1"}), "/container"),
    ],
)
def test_a_wrong_field_is_named(body: object, at: str) -> None:
    assert expect_refusal(body).at == at


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b"\xff", b'{"a":' * 100_000])
def test_a_body_that_is_no_object_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        CLIENT.parse(body, Ledger())
    assert caught.value.failure.kind is Kind.BAD_REQUEST


def test_half_a_surrogate_in_a_body_costs_one_character() -> None:
    body = msgspec.json.encode(minimal()).replace(b'"hi"', rb'"h\ud83di"')
    assert CLIENT.parse(body, Ledger()).turns[0].parts == (Text("h\ufffdi", "/messages/0/content"),)


def test_a_request_for_messages_itself_comes_out_as_it_went_in() -> None:
    ledger = Ledger()
    expected = without(BODY, ("tools", 1, "type"))
    assert isinstance(expected, dict)
    assert build(REQUEST, ledger=ledger) == {**expected, "model": "claude-up"}
    assert list(ledger) == []


def leaves(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    match value:
        case dict():
            for key, item in value.items():
                yield from leaves(item, (*path, key))
        case list():
            for index, item in enumerate(value):
                yield from leaves(item, (*path, index))
    if path:
        yield path


def without(body: Json, path: tuple[str | int, ...]) -> Json:
    copy = deepcopy(body)
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return copy


# Defaults: a tool is custom, and a tool without a schema takes an empty object.
NO_LOSS = {("tools", 1, "type"), ("tools", 1, "input_schema")}


@each_row("path", list(leaves(BODY)))
def test_no_field_vanishes_quietly(path: tuple[str | int, ...]) -> None:
    try:
        built = build(parse(without(BODY, path)))
    except RequestError:
        return
    assert (built == build(REQUEST)) == (path in NO_LOSS or path == ("model",))
