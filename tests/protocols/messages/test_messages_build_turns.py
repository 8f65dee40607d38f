"""Conversations of other protocols' clients, written in the shape that Anthropic demands."""

import pytest

from dragoman.hub.failure import RequestError
from dragoman.hub.loss import Ledger, LossKind
from dragoman.hub.opaque import Form, Opaque
from dragoman.hub.profile import Profile
from dragoman.hub.request import (
    Audio,
    Cache,
    Citation,
    Document,
    FileId,
    Image,
    Inline,
    Link,
    Part,
    Refusal,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from protocols.messages.messages_dialogue import build, chat, losses
from wire_json import Json, JsonObject

LATER = Profile(later_system=True)


def turn(role: Role, *parts: Part | str, at: str = "/messages/0") -> Turn:
    return Turn(role, tuple(Text(part, at) if isinstance(part, str) else part for part in parts), at)


def user(*parts: Part | str, at: str = "/messages/0") -> Turn:
    return turn(Role.USER, *parts, at=at)


def assistant(*parts: Part | str, at: str = "/messages/1") -> Turn:
    return turn(Role.ASSISTANT, *parts, at=at)


def system(*parts: Part | str, at: str = "/messages/2") -> Turn:
    return turn(Role.SYSTEM, *parts, at=at)


def call(id: str, arguments: str = "{}", name: str = "f", at: str = "/messages/1/tool_calls/0") -> ToolCall:
    return ToolCall(id, name, arguments, at)


def result(id: str, text: str = "ok", at: str = "/messages/2") -> ToolResult:
    return ToolResult(id, (Text(text, at),), at)


def messages(*turns: Turn, profile: Profile | None = None, ledger: Ledger | None = None) -> Json:
    return build(chat(turns), profile, ledger)["messages"]


def use_of(id: str, input: object = None, name: str = "f") -> JsonObject:
    return {"type": "tool_use", "id": id, "name": name, "input": input or {}}


def result_of(id: str, content: object = "ok") -> JsonObject:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def test_leading_instructions_become_the_system_prompt() -> None:
    ledger = Ledger()
    developer = turn(Role.DEVELOPER, "Be kind.", at="/messages/1")
    built = build(chat((system("Be brief."), developer, user("hi"))), ledger=ledger)
    assert built["system"] == "Be brief.\n\nBe kind."
    assert built["messages"] == [{"role": "user", "content": "hi"}]
    assert "/messages/1" not in losses(ledger)


def test_instructions_with_a_breakpoint_are_blocks() -> None:
    marked = Text("Be kind.", "/messages/0", cache=Cache("/messages/0/cache", "30m"))
    ledger = Ledger()
    built = build(chat((system("Be brief.", marked), user("hi"))), ledger=ledger)
    assert built["system"] == [
        {"type": "text", "text": "Be brief."},
        {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ]
    assert losses(ledger)["/messages/0/cache"] is LossKind.APPROXIMATED


def test_runs_of_one_role_are_one_message() -> None:
    assert messages(user("a"), user("b"), assistant("c"), assistant("d"), user("e")) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        {"role": "user", "content": "e"},
    ]


def test_results_of_parallel_calls_are_one_turn_and_stand_before_text() -> None:
    built = messages(
        user("go"),
        assistant("sure", call("a"), call("b")),
        user(result("a", "1"), at="/messages/2"),
        user(result("b", "2"), at="/messages/3"),
        user("and?"),
    )
    assert built == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "text", "text": "sure"}, use_of("a"), use_of("b")]},
        {"role": "user", "content": [result_of("a", "1"), result_of("b", "2"), {"type": "text", "text": "and?"}]},
    ]


def test_text_that_came_before_a_result_follows_it() -> None:
    built = messages(user("go"), assistant(call("a")), user("wait", result("a")))
    assert built[2]["content"] == [result_of("a"), {"type": "text", "text": "wait"}]


def test_a_late_result_is_moved_to_its_call() -> None:
    built = messages(user("go"), assistant(call("a"), call("b")), user(result("b")), assistant("hm"), user(result("a")))
    assert built == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [use_of("a"), use_of("b")]},
        {"role": "user", "content": [result_of("a"), result_of("b")]},
        {"role": "assistant", "content": "hm"},
    ]


def test_a_call_without_a_result_is_given_one() -> None:
    ledger = Ledger()
    built = messages(user("go"), assistant(call("a")), user("never mind"), ledger=ledger)
    invented = {"type": "tool_result", "tool_use_id": "a", "content": "[no result]", "is_error": True}
    assert built[2]["content"] == [invented, {"type": "text", "text": "never mind"}]
    assert losses(ledger)["/messages/1/tool_calls/0"] is LossKind.INVENTED


def test_a_last_call_without_a_result_is_given_a_turn() -> None:
    built = messages(user("go"), assistant(call("a")))
    assert [message["role"] for message in built] == ["user", "assistant", "user"]


def test_the_last_of_two_results_counts() -> None:
    ledger = Ledger()
    built = messages(
        user("go"),
        assistant(call("a")),
        user(result("a", "old", "/messages/2"), result("a", "new", "/messages/3")),
        ledger=ledger,
    )
    assert built[2]["content"] == [result_of("a", "new")]
    assert losses(ledger)["/messages/2"] is LossKind.DROPPED


def test_a_result_without_a_call_is_sent_as_text() -> None:
    ledger = Ledger()
    built = messages(user("go", result("ghost", "boo")), ledger=ledger)
    texts = [block["text"] for block in built[0]["content"]]
    assert texts == ["go", "[result of ghost]", "boo"]
    assert losses(ledger)["/messages/2"] is LossKind.APPROXIMATED


def test_ids_of_any_alphabet_are_distinguished() -> None:
    built = messages(
        user("go"),
        assistant(call("a.b"), call("a/b"), call("")),
        user(result("a/b", "2"), result("a.b", "1"), result("", "3")),
    )
    assert built[1]["content"] == [use_of("a_b"), use_of("a_b-2"), use_of("call")]
    assert built[2]["content"] == [result_of("a_b", "1"), result_of("a_b-2", "2"), result_of("call", "3")]


def test_an_id_used_again_in_a_later_turn_is_another_call() -> None:
    built = messages(
        user("go"),
        assistant(call("call_0")),
        user(result("call_0", "1")),
        assistant(call("call_0")),
        user(result("call_0", "2")),
    )
    assert built[2]["content"] == [result_of("call_0", "1")]
    assert built[3]["content"] == [use_of("call_0-2")]
    assert built[4]["content"] == [result_of("call_0-2", "2")]


@pytest.mark.parametrize(
    ("arguments", "input", "lost"),
    [
        ("", {}, False),
        ("  ", {}, False),
        ('{"a":[1,null]}', {"a": [1, None]}, False),
        ('{"a":', {"arguments": '{"a":'}, True),
        ("[1]", {"arguments": "[1]"}, True),
    ],
)
def test_arguments_are_objects(arguments: str, input: object, lost: bool) -> None:
    ledger = Ledger()
    built = messages(user("go"), assistant(call("a", arguments)), user(result("a")), ledger=ledger)
    assert built[1]["content"] == [use_of("a", input)]
    assert (losses(ledger).get("/messages/1/tool_calls/0") is LossKind.APPROXIMATED) == lost


def test_empty_texts_and_turns_are_left_out() -> None:
    ledger = Ledger()
    assert messages(user("a"), assistant(""), user("", "b"), ledger=ledger) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    assert set(losses(ledger)) == {"/max_tokens"}


def test_white_space_alone_is_dropped_with_a_loss() -> None:
    ledger = Ledger()
    assert messages(user("a"), user(" \n", at="/messages/1"), ledger=ledger) == [{"role": "user", "content": "a"}]
    assert losses(ledger)["/messages/1"] is LossKind.DROPPED


def test_a_refusal_is_sent_as_text() -> None:
    assert messages(user("a"), assistant(Refusal("No.", "/messages/1/refusal")), user("b"))[1] == {
        "role": "assistant",
        "content": "No.",
    }


def test_a_conversation_opens_with_the_user() -> None:
    ledger = Ledger()
    built = messages(assistant("hello", at="/messages/0"), user("hi"), ledger=ledger)
    assert built[0] == {"role": "user", "content": "(continue)"}
    assert losses(ledger)["/messages/0"] is LossKind.INVENTED


def test_instructions_alone_are_still_a_request() -> None:
    assert build(chat((system("Be brief."),)))["messages"] == [{"role": "user", "content": "(continue)"}]


def test_later_instructions_keep_their_role_where_the_model_allows_it() -> None:
    ledger = Ledger()
    built = messages(
        user("a"), system("French."), assistant("b"), user("c"), system("Now."), profile=LATER, ledger=ledger
    )
    assert built == [
        {"role": "user", "content": "a"},
        {"role": "system", "content": "French."},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "Now."},
    ]
    assert set(losses(ledger)) == {"/max_tokens"}


@pytest.mark.parametrize(
    ("turns", "profile"),
    [
        ((user("a"), system("French."), assistant("b"), user("c")), Profile()),
        ((user("a"), system("French."), user("c")), LATER),
    ],
)
def test_later_instructions_are_tagged_in_place_elsewhere(turns: tuple[Turn, ...], profile: Profile) -> None:
    ledger = Ledger()
    built = messages(*turns, profile=profile, ledger=ledger)
    tagged = {"type": "text", "text": "<system>\nFrench.\n</system>"}
    assert built[0]["content"][:2] == [{"type": "text", "text": "a"}, tagged]
    assert losses(ledger)["/messages/2"] is LossKind.APPROXIMATED


def test_instructions_after_an_assistants_turn_open_a_users_turn() -> None:
    built = messages(user("a"), assistant("b"), system("French."), user("c"), profile=LATER)
    assert [message["role"] for message in built] == ["user", "assistant", "user"]


def test_a_prefill_loses_its_trailing_white_space() -> None:
    ledger = Ledger()
    built = messages(user("a"), assistant("The answer is ", at="/messages/1"), ledger=ledger)
    assert built[1]["content"] == "The answer is"
    assert losses(ledger)["/messages/1"] is LossKind.APPROXIMATED


def test_a_prefill_is_refused_where_the_model_refuses_it() -> None:
    with pytest.raises(RequestError) as refused:
        messages(user("a"), assistant("The", at="/messages/1"), profile=Profile(prefill=False))
    assert refused.value.failure.at == "/messages/1"


SIGNED = Opaque("anthropic", Form.SIGNATURE, "c2ln", "claude-up", "exact text")


def test_thinking_returns_to_its_issuer_exactly_and_first() -> None:
    redacted = Opaque("anthropic", Form.REDACTED, "cmVk")
    built = messages(
        user("a"),
        assistant("b", Thinking("summary", "/messages/1/r", SIGNED), Thinking("", "/messages/1/s", redacted)),
        user("c"),
    )
    assert built[1]["content"] == [
        {"type": "thinking", "thinking": "exact text", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "cmVk"},
        {"type": "text", "text": "b"},
    ]


@pytest.mark.parametrize(
    "thinking",
    [
        Thinking("unsigned", "/messages/1/r"),
        Thinking("foreign", "/messages/1/r", Opaque("openai", Form.ENCRYPTED, "gAAA")),
        Thinking("other claude", "/messages/1/r", Opaque("another-provider", Form.SIGNATURE, "c2ln")),
        Thinking("odd", "/messages/1/r", Opaque("anthropic", Form.ENCRYPTED, "gAAA")),
    ],
)
def test_thinking_of_others_is_dropped_with_a_loss(thinking: Thinking) -> None:
    ledger = Ledger()
    built = messages(user("a"), assistant(thinking, "b"), user("c"), ledger=ledger)
    assert built[1] == {"role": "assistant", "content": "b"}
    assert losses(ledger)["/messages/1/r"] is LossKind.DROPPED


def content(*parts: Part, ledger: Ledger | None = None) -> Json:
    built = messages(user("look", *parts), ledger=ledger)
    return built[0]["content"][1:]


def test_images_and_documents_keep_their_sources() -> None:
    assert content(
        Image(Inline("image/png", "aW1n")),
        Image(Link("https://example.com/cat.jpg")),
        Document(Inline("application/pdf", "cGRm"), title="a.pdf"),
        Document(Link("https://example.com/a.pdf")),
        Document("plain"),
        Document(Inline("text/plain", "d29yZHM=")),
    ) == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1n"}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.jpg"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "cGRm"},
            "title": "a.pdf",
        },
        {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
    ]


@pytest.mark.parametrize(
    "part",
    [
        Audio(Inline("audio/wav", "d2F2"), "/messages/0/content/1"),
        Image(FileId("file-1"), "/messages/0/content/1"),
        Document(FileId("file-1"), "/messages/0/content/1"),
        Document(Inline("application/zip", "emlw"), "/messages/0/content/1"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(part: Part) -> None:
    with pytest.raises(RequestError) as refused:
        content(part)
    assert refused.value.failure.at == "/messages/0/content/1"


def test_a_level_of_detail_is_dropped_with_a_loss() -> None:
    ledger = Ledger()
    content(
        Image(Inline("image/png", "aW1n"), "/x", "high", "/x/detail"),
        Image(Inline("image/png", "a"), "/y", "auto"),
        ledger=ledger,
    )
    assert set(losses(ledger)) == {"/max_tokens", "/x/detail"}


def test_an_image_inside_a_tool_result_stays_an_image() -> None:
    seen = ToolResult("a", (Text("seen"), Image(Inline("image/png", "aW1n"))), "/messages/2", is_error=True)
    built = messages(user("go"), assistant(call("a")), user(seen))
    assert built[2]["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "content": [
                {"type": "text", "text": "seen"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1n"}},
            ],
            "is_error": True,
        }
    ]


def test_an_empty_result_has_no_content() -> None:
    built = messages(user("go"), assistant(call("a")), user(result("a", "")))
    assert built[2]["content"] == [{"type": "tool_result", "tool_use_id": "a"}]


def test_citations_of_another_vendor_are_dropped_with_a_loss() -> None:
    ledger = Ledger()
    cited = Text("so", "/messages/1/content", (Citation("https://example.com"),))
    assert messages(user("a"), assistant(cited), user("b"), ledger=ledger)[1]["content"] == "so"
    assert losses(ledger)["/messages/1/content/annotations"] is LossKind.DROPPED


def test_the_last_four_breakpoints_are_kept() -> None:
    ledger = Ledger()
    parts = [Text(str(n), f"/messages/0/content/{n}", cache=Cache(f"/messages/0/content/{n}/c")) for n in range(6)]
    built = messages(user(*parts), ledger=ledger)
    marked = ["cache_control" in block for block in built[0]["content"]]
    assert marked == [False, False, True, True, True, True]
    dropped = [path for path, how in losses(ledger).items() if how is LossKind.DROPPED]
    assert dropped == ["/messages/0/content/0/c", "/messages/0/content/1/c"]
