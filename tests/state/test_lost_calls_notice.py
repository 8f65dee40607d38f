"""The next request of a conversation names the lost call of the last reply to the model."""

from msgspec.structs import replace

from dragoman.state.lost_calls import add_notice, digest_conversation, make_lost_call
from dragoman.translate.hub.request import Cache, Request, Role, Text, Thinking, Turn

USER = Turn(Role.USER, (Text("Write the file."),), "/messages/0")
REQUEST = Request(protocol="messages", model="auto", turns=(Turn(Role.SYSTEM, (Text("Be brief."),)), USER))
PARTIAL = Turn(Role.ASSISTANT, (Thinking("hm"), Text("I will ")))
NEXT = replace(REQUEST, turns=(*REQUEST.turns, PARTIAL, Turn(Role.USER, (Text("Go on."),), "/messages/2")))


def test_the_next_request_is_known_as_the_same_conversation() -> None:
    assert digest_conversation(REQUEST)[0] in digest_conversation(NEXT)


def test_cache_marks_and_system_texts_do_not_make_another_conversation() -> None:
    marked = replace(USER, parts=(Text("Write the file.", cache=Cache("/x")),))
    moved = replace(NEXT, turns=(Turn(Role.SYSTEM, (Text("Today is Monday."),)), marked, *NEXT.turns[2:]))
    assert digest_conversation(REQUEST)[0] in digest_conversation(moved)


def test_another_conversation_is_another() -> None:
    other = replace(NEXT, turns=(Turn(Role.USER, (Text("Read the file."),)), *NEXT.turns[2:]))
    assert digest_conversation(REQUEST)[0] not in digest_conversation(other)


def test_the_notice_about_lost_calls_ends_the_last_user_turn() -> None:
    found = add_notice(NEXT, (make_lost_call("write", '{"path": "a' + "b" * 1000),))
    assert found.turns[:-1] == NEXT.turns[:-1]
    *kept, note = found.turns[-1].parts
    assert tuple(kept) == NEXT.turns[-1].parts
    assert isinstance(note, Text)
    assert "'write'" in note.text
    assert '{"path": "a' in note.text
    assert len(note.text) < 1000
