"""Turns, thoughts, media and cache breakpoints as Chat writes them."""

from dragoman.translate.hub.caching import CacheMode, CachePlan
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import (
    Cache,
    Document,
    FileId,
    Foreign,
    Function,
    Image,
    Inline,
    Link,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from tables import each_row
from translate.protocols.chat.chat_building import (
    APPROXIMATED,
    CALLS,
    DROPPED,
    INVENTED,
    LOCAL,
    OPENAI,
    PNG,
    STRICT,
    WIRE_CALLS,
    Losses,
    assistant,
    build_body,
    expect_refusal_at,
    messages,
    request,
    result,
    system,
    tool,
    user,
)

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aW1n"}}


def words(*texts: str) -> list[object]:
    return [{"type": "text", "text": text} for text in texts]


def test_one_text_is_a_plain_string_and_more_are_parts() -> None:
    assert messages(user(Text("a"))) == [{"role": "user", "content": "a"}]
    assert messages(user(Text("a"), Image(PNG))) == [{"role": "user", "content": [*words("a"), PICTURE]}]


def test_separate_blocks_of_instructions_and_of_the_assistant_are_joined_by_a_blank_line() -> None:
    assert messages(system(Text("a"), Text("b")), assistant(Text("c"), Text("d")), user(Text("e"))) == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "assistant", "content": "c\n\nd"},
        {"role": "user", "content": "e"},
    ]


def test_the_developer_becomes_the_system_where_the_server_has_none() -> None:
    turn = system(Text("a"), role=Role.DEVELOPER)
    assert messages(turn) == [{"role": "developer", "content": "a"}]
    quirky = Target("m", "local", quirks=frozenset({"no_developer"}))
    assert messages(turn, target=quirky) == [{"role": "system", "content": "a"}]


def test_results_leave_the_users_turn_first_and_the_rest_follows() -> None:
    turns = assistant(Text("I look."), *CALLS), user(Text("and"), result("b", Text("2")), result("a", Text("1")))
    assert messages(*turns) == [
        {"role": "assistant", "content": "I look.", "tool_calls": WIRE_CALLS},
        tool("b", "2"),
        tool("a", "1"),
        {"role": "user", "content": "and"},
    ]


def test_calls_that_are_items_of_their_own_share_one_message() -> None:
    calls = assistant(Text("I look.")), assistant(CALLS[0]), assistant(CALLS[1])
    results = user(result("a", Text("1"))), user(result("b", Text("2"))), user(Text("go on"))
    assert messages(*calls, *results, protocol="responses") == [
        {"role": "assistant", "content": "I look.", "tool_calls": WIRE_CALLS},
        tool("a", "1"),
        tool("b", "2"),
        {"role": "user", "content": "go on"},
    ]


CALLED = {"role": "assistant", "content": None, "tool_calls": WIRE_CALLS[:1]}
CALLED_BOTH = {**CALLED, "tool_calls": WIRE_CALLS}
PICTURED = [*words("[image from the result of tool call a]"), PICTURE]


@each_row(
    ("turns", "sent", "lost"),
    [
        (  # late
            (assistant(*CALLS), user(result("a", Text("1"))), assistant(Text("x")), user(result("b", Text("2")))),
            [CALLED_BOTH, tool("a", "1"), tool("b", "2"), {"role": "assistant", "content": "x"}],
            [("/r/b", APPROXIMATED)],
        ),
        (  # twice
            (assistant(CALLS[0]), user(result("a", Text("1")), result("a", Text("again")))),
            [CALLED, tool("a", "1")],
            [("/r/a", DROPPED)],
        ),
        (  # without its call
            (user(result("lost", Text("42")), Text("so?")),),
            [{"role": "user", "content": words("[result of tool call lost]", "42", "so?")}],
            [("/r/lost", APPROXIMATED)],
        ),
        (  # a call without one, with text after it
            (assistant(*CALLS), user(result("b", Text("ok")), Text("Go on"))),
            [CALLED_BOTH, tool("b", "ok"), tool("a", "[no result]"), {"role": "user", "content": "Go on"}],
            [("/c0", INVENTED)],
        ),
        (  # the last calls
            (assistant(*CALLS),),
            [CALLED_BOTH, tool("a", "[no result]"), tool("b", "[no result]")],
            [("/c0", INVENTED), ("/c1", INVENTED)],
        ),
        (  # an error
            (assistant(CALLS[0]), user(result("a", Text("no such file"), is_error=True))),
            [CALLED, tool("a", "[tool error] no such file")],
            [("/r/a/is_error", APPROXIMATED)],
        ),
        (  # pictures follow all results as one message
            (
                assistant(*CALLS),
                user(result("a", Text("shot:"), Image(PNG, "/i")), result("b", Text("2")), Text("see")),
            ),
            [
                CALLED_BOTH,
                tool("a", "shot:\n\n[image: see the user message that follows]"),
                tool("b", "2"),
                {"role": "user", "content": PICTURED},
                {"role": "user", "content": "see"},
            ],
            [("/i", APPROXIMATED)],
        ),
        ((assistant(CALLS[0]), user(result("a"))), [CALLED, tool("a", "")], []),  # nothing
    ],
)
def test_every_call_is_followed_by_its_result(turns: tuple[Turn, ...], sent: object, lost: Losses) -> None:
    body, recorded = build_body(request(*turns, protocol="responses"))
    assert body["messages"] == sent
    assert recorded == lost


ODD = Target("llama", "local", quirks=frozenset({"text_content"}))


def test_content_is_one_string_and_never_null_for_a_server_that_takes_no_parts() -> None:
    marked = Text("a", "/a", cache=Cache("/a/cache_control"))
    turns = user(marked, Text("b")), assistant(CALLS[0]), user(result("a", Text("r"), Text("s")))
    body, lost = build_body(request(*turns), ODD)
    assert [message["content"] for message in body["messages"]] == ["a\n\nb", "", "r\n\ns"]
    assert lost == []


def test_an_item_that_chat_cannot_represent_leaves_no_empty_message() -> None:
    hi = user(Text("hi"))
    body, lost = build_body(
        request(hi, user(Foreign("configuration_update", {"x": 1}, "/1")), hi, protocol="responses")
    )
    assert body["messages"] == [{"role": "user", "content": "hi"}] * 2
    assert lost == [("/1", DROPPED)]


def test_a_custom_call_keeps_its_raw_input() -> None:
    call = ToolCall("a", "patch", "*** Begin", custom=True)
    assert messages(assistant(call))[0]["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    ]


def test_a_refusal_is_returned_as_one() -> None:
    expected = {"role": "assistant", "content": None, "refusal": "No."}
    assert messages(assistant(Refusal("No.")), user(Text("why?")))[0] == expected


SIGNED = Thinking("Hm.", "/t", Opaque("anthropic", OpaqueForm.SIGNATURE, "c2ln"))
PLAIN = Thinking("Hm.", "/t")
DETAIL = Thinking(
    "Hm.", "/t", Opaque("local", OpaqueForm.DETAIL, '{"type":"reasoning.text","signature":"c2ln","index":0}')
)
ITEM = Thinking("", "/t", Opaque("local", OpaqueForm.ENCRYPTED, "ZW5j"))  # of Responses, which has no place in Chat
WANTS_REASONING = Target("r1", "local", quirks=frozenset({"replay_reasoning"}))
DETAILS = [{"type": "reasoning.text", "signature": "c2ln", "index": 0}]


@each_row(
    ("thought", "target", "sent", "lost"),
    [
        (SIGNED, OPENAI, {}, [("/t", DROPPED)]),
        (PLAIN, OPENAI, {}, [("/t", DROPPED)]),
        (DETAIL, OPENAI, {}, [("/t", DROPPED)]),
        (PLAIN, LOCAL, {}, [("/t", DROPPED)]),
        (ITEM, LOCAL, {}, [("/t", DROPPED)]),
        (PLAIN, WANTS_REASONING, {"reasoning_content": "Hm."}, []),
        (SIGNED, WANTS_REASONING, {"reasoning_content": "Hm."}, [("/t", APPROXIMATED)]),
        (DETAIL, LOCAL, {"reasoning_content": "Hm.", "reasoning_details": DETAILS}, []),
    ],
)
def test_reasoning_returns_to_a_server_that_wants_it_or_issued_it_and_never_with_anothers_signature(
    thought: Thinking, target: Target, sent: dict[str, object], lost: Losses
) -> None:
    body, recorded = build_body(request(assistant(thought, Text("Yes.")), user(Text("so?"))), target)
    assert body["messages"][0] == {"role": "assistant", "content": "Yes.", **sent}
    assert recorded == lost


def test_an_assistant_turn_of_nothing_but_lost_reasoning_is_left_out() -> None:
    assert messages(user(Text("a")), assistant(SIGNED), user(Text("b"))) == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


def test_documents_go_out_as_files_and_an_absent_name_is_invented() -> None:
    named = Document(Inline("application/pdf", "cGRm"), "/d", title="a.pdf")
    file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,cGRm"}
    assert messages(user(named))[0]["content"] == [{"type": "file", "file": file}]
    body, lost = build_body(request(user(Document(Inline("application/pdf", "cGRm"), "/d"))))
    assert body["messages"][0]["content"][0]["file"]["filename"] == "document.pdf"
    assert lost == [("/d", INVENTED)]


def test_a_text_document_is_sent_as_text() -> None:
    body, lost = build_body(request(user(Document("words", "/d", title="Notes"))))
    assert body["messages"] == [{"role": "user", "content": "Notes\n\nwords"}]
    assert lost == [("/d", APPROXIMATED)]


def test_linked_images_stay_links() -> None:
    part = messages(user(Image(Link("https://a.example/b.png"), detail="low")))[0]["content"]
    assert part == [{"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}}]


def test_what_chat_cannot_be_given_is_refused_by_name() -> None:
    linked, stored = Document(Link("https://a.example/b.pdf"), "/d"), Document(FileId("file_1"), "/d")
    for part in (linked, stored, Image(FileId("file_1"), "/d")):
        assert expect_refusal_at(request(user(part))) == "/d", part


def test_a_file_of_the_same_vendor_keeps_its_id() -> None:
    expected = request(user(Document(FileId("file-1"), "/d")), protocol="responses")
    for target in (OPENAI, LOCAL):
        content = [{"type": "file", "file": {"file_id": "file-1"}}]
        assert build_body(expected, target)[0]["messages"] == [{"role": "user", "content": content}]


def test_foreign_parts_are_dropped_by_name() -> None:
    expected = request(user(Text("a"), Foreign("search_result", {"x": 1}, "/f")))
    assert build_body(expected) == (
        {"model": "gpt-x", "messages": [{"role": "user", "content": "a"}]},
        [("/f", DROPPED)],
    )


BREAKPOINTS = Target("gpt-5.6", "openai", cache=CachePlan(CacheMode.AUTO, breakpoints=True))
EXPLICIT = {"mode": "explicit"}


def test_one_breakpoint_stands_at_the_end_of_the_instructions() -> None:
    turns = (
        system(Text("a"), Text("b")),
        user(Text("c", cache=Cache("/k", "1h"))),
        assistant(Text("d")),
        user(Text("e")),
    )
    body, lost = build_body(request(*turns), BREAKPOINTS)
    assert body["messages"] == [
        {
            "role": "system",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "text", "text": "b", "prompt_cache_breakpoint": EXPLICIT},
            ],
        },
        {"role": "user", "content": [{"type": "text", "text": "c"}]},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "e"}]},
    ]
    assert lost == []


def test_breakpoints_of_openais_clients_are_kept_without_lifetimes() -> None:
    parts = [Text(str(number), cache=Cache(f"/{number}", "30m")) for number in range(5)]
    body, lost = build_body(request(system(Text("a")), user(*parts), protocol="responses"), BREAKPOINTS)
    content = body["messages"][1]["content"]
    assert [part.get("prompt_cache_breakpoint") for part in content] == [None, None, EXPLICIT, EXPLICIT, EXPLICIT]
    assert "prompt_cache_breakpoint" not in str(body["messages"][0])
    assert lost == []


def test_other_models_get_no_breakpoint() -> None:
    cache = Cache("/k", "5m")
    for expected, target in (
        (request(system(Text("a", cache=cache)), user(Text("b", cache=cache))), OPENAI),
        (request(tools=(Function("f", cache=cache),)), OPENAI),
        (request(assistant(CALLS[0]), user(ToolResult("a", (), cache=cache))), OPENAI),
        (request(user(Text("a", cache=cache)), protocol="responses"), STRICT),
    ):
        body, lost = build_body(expected, target)
        assert "cache" not in str(body)
        assert lost == []
