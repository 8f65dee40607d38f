"""Conversations of other protocols' clients, written in the shape that Anthropic demands."""

from dragoman.translate.hub.loss import LossKind
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.profile import Profile
from dragoman.translate.hub.request import (
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
from tables import each_row
from translate.protocols.messages.messages_dialogue import APPROXIMATED, DROPPED, INVENTED, build_body, chat, refusal_at
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


def call(id: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(id, "f", arguments, "/messages/1/tool_calls/0")


def result(id: str, text: str = "ok", at: str = "/messages/2") -> ToolResult:
    return ToolResult(id, (Text(text, at),), at)


def build_turns(*turns: Turn, profile: Profile | None = None) -> tuple[Json, dict[str, LossKind]]:
    """The messages and the losses."""
    body, lost = build_body(chat(turns), profile)
    return body["messages"], lost


def use_of(id: str, input: object = None) -> JsonObject:
    return {"type": "tool_use", "id": id, "name": "f", "input": input or {}}


def words(*texts: str) -> list[object]:
    return [{"type": "text", "text": text} for text in texts]


def blocks(content: str | list[object]) -> list[object]:
    return words(content) if isinstance(content, str) else content


def result_of(id: str, content: str | list[object] = "ok", **more: object) -> JsonObject:
    return {"type": "tool_result", "tool_use_id": id, "content": blocks(content), **more}


def by_user(content: str | list[object]) -> JsonObject:
    return {"role": "user", "content": blocks(content)}


def by_model(content: str | list[object]) -> JsonObject:
    return {"role": "assistant", "content": blocks(content)}


PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1n"}}
GO = by_user("go")
CALLED = by_model([use_of("a")])


def test_leading_instructions_become_the_system_prompt() -> None:
    developer = turn(Role.DEVELOPER, "Be kind.", at="/messages/1")
    built, lost = build_body(chat((system("Be brief."), developer, user("hi"))))
    assert built["system"] == words("Be brief.", "Be kind.")
    assert built["messages"] == [by_user("hi")]
    assert "/messages/1" not in lost


def test_a_breakpoint_becomes_a_mark_without_a_loss() -> None:
    marked = Text("Be kind.", "/messages/0", cache=Cache("/messages/0/cache", "30m"))
    built, lost = build_body(chat((system("Be brief.", marked), user("hi"))))
    kind = {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}
    assert built["system"] == [*words("Be brief."), kind]
    assert lost == {}


def test_a_breakpoint_within_a_result_marks_the_whole_result() -> None:
    marked = Text("ok", "/messages/2", cache=Cache("/messages/2/cache", "30m"))
    built, lost = build_turns(user("go"), assistant(call("a")), user(ToolResult("a", (marked,), "/messages/2")))
    assert built[2] == by_user([{**result_of("a"), "cache_control": {"type": "ephemeral"}}])
    assert lost == {}


@each_row(
    ("turns", "sent", "lost"),
    [
        (  # parallel calls: one turn, before the text
            (user("go"), assistant("yes", call("a"), call("b")), user(result("a")), user(result("b")), user("?")),
            [
                GO,
                by_model([*words("yes"), use_of("a"), use_of("b")]),
                by_user([result_of("a"), result_of("b"), *words("?")]),
            ],
            {},
        ),
        (  # after text
            (user("go"), assistant(call("a")), user("wait", result("a"))),
            [GO, CALLED, by_user([result_of("a"), *words("wait")])],
            {},
        ),
        (  # late
            (user("go"), assistant(call("a"), call("b")), user(result("b")), assistant("hm"), user(result("a"))),
            [GO, by_model([use_of("a"), use_of("b")]), by_user([result_of("a"), result_of("b")]), by_model("hm")],
            {},
        ),
        (  # missing
            (user("go"), assistant(call("a")), user("never mind")),
            [GO, CALLED, by_user([result_of("a", "[no result]", is_error=True), *words("never mind")])],
            {"/messages/1/tool_calls/0": INVENTED},
        ),
        (  # missing at the end
            (user("go"), assistant(call("a"))),
            [GO, CALLED, by_user([result_of("a", "[no result]", is_error=True)])],
            {"/messages/1/tool_calls/0": INVENTED},
        ),
        (  # twice
            (user("go"), assistant(call("a")), user(result("a", "old"), result("a", "new", "/messages/3"))),
            [GO, CALLED, by_user([result_of("a", "new")])],
            {"/messages/2": DROPPED},
        ),
        (  # without a call
            (user("go", result("ghost", "boo")),),
            [by_user(words("go", "[result of ghost]", "boo"))],
            {"/messages/2": APPROXIMATED},
        ),
        (  # ids of any alphabet
            (
                user("go"),
                assistant(call("a.b"), call("a/b"), call("")),
                user(result("a/b", "2"), result("a.b", "1"), result("", "3")),
            ),
            [
                GO,
                by_model([use_of("a_b"), use_of("a_b-2"), use_of("call")]),
                by_user([result_of("a_b", "1"), result_of("a_b-2", "2"), result_of("call", "3")]),
            ],
            {},
        ),
        (  # an id that is used again
            (user("go"), assistant(call("a")), user(result("a", "1")), assistant(call("a")), user(result("a", "2"))),
            [GO, CALLED, by_user([result_of("a", "1")]), by_model([use_of("a-2")]), by_user([result_of("a-2", "2")])],
            {},
        ),
        (  # nothing
            (user("go"), assistant(call("a")), user(result("a", ""))),
            [GO, CALLED, by_user([{"type": "tool_result", "tool_use_id": "a"}])],
            {},
        ),
        (  # an image
            (
                user("go"),
                assistant(call("a")),
                user(ToolResult("a", (Text("seen"), Image(Inline("image/png", "aW1n"))), "/messages/2", is_error=True)),
            ),
            [GO, CALLED, by_user([result_of("a", [*words("seen"), PICTURE], is_error=True)])],
            {},
        ),
    ],
)
def test_every_call_is_followed_by_its_result(turns: tuple[Turn, ...], sent: object, lost: dict[str, LossKind]) -> None:
    assert build_turns(*turns) == (sent, lost)


@each_row(
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
    built, recorded = build_turns(user("go"), assistant(call("a", arguments)), user(result("a")))
    assert built[1]["content"] == [use_of("a", input)]
    assert recorded == ({"/messages/1/tool_calls/0": APPROXIMATED} if lost else {})


FRENCH = {"/messages/2": APPROXIMATED}
TAGGED = words("a", "<system>\nFrench.\n</system>", "c")
CITED = Text("so", "/messages/1/content", (Citation("https://example.com"),))


@each_row(
    ("turns", "sent", "lost"),
    [
        (  # runs of one role
            (user("a"), user("b"), assistant("c"), assistant("d"), user("e")),
            [by_user(words("a", "b")), by_model(words("c", "d")), by_user("e")],
            {},
        ),
        ((user("a"), assistant(""), user("", "b")), [by_user(words("a", "b"))], {}),
        ((user("a"), user(" \n", at="/messages/1")), [by_user("a")], {"/messages/1": DROPPED}),
        (
            (user("a"), assistant(Refusal("No.", "/messages/1/refusal")), user("b")),
            [by_user("a"), by_model("No."), by_user("b")],
            {"/messages/1/refusal": APPROXIMATED},
        ),
        (
            (assistant("hello", at="/messages/0"), user("hi")),
            [by_user("(continue)"), by_model("hello"), by_user("hi")],
            {"/messages/0": INVENTED},
        ),
        (  # a prefill
            (user("a"), assistant("The answer is ")),
            [by_user("a"), by_model("The answer is")],
            {"/messages/1": APPROXIMATED},
        ),
        (
            (user("a"), assistant(CITED), user("b")),
            [by_user("a"), by_model("so"), by_user("b")],
            {"/messages/1/content/annotations": DROPPED},
        ),
        (
            (user("a"), system("French."), assistant("b"), user("c")),
            [by_user(TAGGED[:2]), by_model("b"), by_user("c")],
            FRENCH,
        ),
    ],
)
def test_turns_alternate_and_have_content(turns: tuple[Turn, ...], sent: object, lost: dict[str, LossKind]) -> None:
    assert build_turns(*turns) == (sent, lost)


def test_instructions_alone_are_still_a_request() -> None:
    assert build_turns(system("Be brief."))[0] == [by_user("(continue)")]


def test_a_prefill_is_refused_where_the_model_refuses_it() -> None:
    assert refusal_at(chat((user("a"), assistant("The"))), Profile(prefill=False)) == "/messages/1"


def test_later_instructions_keep_their_role_where_the_model_allows_it() -> None:
    turns = user("a"), system("French."), assistant("b"), user("c"), system("Now.")
    french, now = ({"role": "system", "content": words(text)} for text in ("French.", "Now."))
    assert build_turns(*turns, profile=LATER) == ([by_user("a"), french, by_model("b"), by_user("c"), now], {})
    between_users = build_turns(user("a"), system("French."), user("c"), profile=LATER)
    assert between_users == ([by_user(TAGGED)], FRENCH)
    built, _ = build_turns(user("a"), assistant("b"), system("French."), user("c"), profile=LATER)
    assert [message["role"] for message in built] == ["user", "assistant", "user"]


def test_thinking_returns_to_its_issuer_exactly_and_first() -> None:
    signed = Thinking("summary", "/r", Opaque("anthropic", OpaqueForm.SIGNATURE, "c2ln", "claude-up", "exact text"))
    redacted = Thinking("", "/s", Opaque("anthropic", OpaqueForm.REDACTED, "cmVk"))
    built, _ = build_turns(user("a"), assistant("b", signed, redacted), user("c"))
    assert built[1]["content"] == [
        {"type": "thinking", "thinking": "exact text", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "cmVk"},
        *words("b"),
    ]


@each_row(
    "opaque",
    [
        None,
        Opaque("openai", OpaqueForm.ENCRYPTED, "gAAA"),
        Opaque("another-provider", OpaqueForm.SIGNATURE, "c2ln"),
        Opaque("anthropic", OpaqueForm.ENCRYPTED, "gAAA"),
    ],
)
def test_thinking_of_others_is_dropped_with_a_loss(opaque: Opaque | None) -> None:
    built, lost = build_turns(user("a"), assistant(Thinking("hm", "/r", opaque), "b"), user("c"))
    assert built[1] == by_model("b")
    assert lost == {"/r": DROPPED}


def test_images_and_documents_keep_their_sources() -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "cGRm"}
    text = {"type": "text", "media_type": "text/plain"}
    built, _ = build_turns(
        user(
            "look",
            Image(Inline("image/png", "aW1n")),
            Image(Link("https://example.com/cat.jpg")),
            Document(Inline("application/pdf", "cGRm"), title="a.pdf"),
            Document(Link("https://example.com/a.pdf")),
            Document("plain"),
            Document(Inline("text/plain", "d29yZHM=")),
        )
    )
    assert built[0]["content"] == [
        *words("look"),
        PICTURE,
        {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.jpg"}},
        {"type": "document", "source": pdf, "title": "a.pdf"},
        {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
        {"type": "document", "source": {**text, "data": "plain"}},
        {"type": "document", "source": {**text, "data": "words"}},
    ]


@each_row(
    "part",
    [
        Audio(Inline("audio/wav", "d2F2"), "/p"),
        Image(FileId("file-1"), "/p"),
        Document(FileId("file-1"), "/p"),
        Document(Inline("application/zip", "emlw"), "/p"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(part: Part) -> None:
    assert refusal_at(chat((user("look", part),))) == "/p"


def test_a_level_of_detail_is_dropped_with_a_loss() -> None:
    png = Inline("image/png", "aW1n")
    lost = build_turns(user("look", Image(png, "/x", "high", "/x/detail"), Image(png, "/y", "auto")))[1]
    assert lost == {"/x/detail": DROPPED}


def test_the_last_four_breakpoints_are_kept() -> None:
    parts = [Text(str(n), f"/messages/0/content/{n}", cache=Cache(f"/messages/0/content/{n}/c")) for n in range(6)]
    built, lost = build_turns(user(*parts))
    assert ["cache_control" in block for block in built[0]["content"]] == [False, False, True, True, True, True]
    assert lost == {}
