"""The recorded sessions of real clients are complete, as they were sent, and without secrets or names of a machine."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from clients.sessions.anonymise import anonymise
from clients.sessions.drivers import DRIVERS, Place
from clients.sessions.record import record
from clients.sessions.recorded import (
    FOLDER,
    RecordedReply,
    RecordedRequest,
    ScriptedCall,
    Session,
    list_sessions,
    read_conversation,
    read_description,
    read_requests,
    write_session,
)
from clients.sessions.script import TURNS
from dragoman.net import zstd
from wire_json import Json, JsonObject

WHOLE = [name for name in DRIVERS if name not in ("claude-code-second", "aider")]
APPENDING = [name for name in DRIVERS if name not in ("gemini-cli", "aider")]
HISTORY = {"messages": "messages", "chat": "messages", "responses": "input", "gemini": "contents"}
PATHS = {
    "messages": "/v1/messages",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-2.5-pro:streamGenerateContent",
}
MASKED, PLACEHOLDER = b"<tool_output_masked>", b"skip_thought_signature_validator"
# "/root" alone is the name of Codex's first agent.
MACHINE = re.compile(
    r"(?<![\w.*<])/(?:(?:tmp|work|var|usr|etc|opt|mnt|private|Users)\b|root/|home/(?!dev\b))[\w./-]*"
    r"|127\.0\.0\.1|localhost|\b(?:10|172|192)\.\d+\.\d+\.\d+\b"
)
SECRET = re.compile(
    r"\bsk-(?!notification)[\w-]{6,}|\bBearer |\bAIza[\w-]{20,}|\beyJ[\w-]{10,}\.|-----BEGIN|\bgh[pousr]_\w+"
)
# Where marks stand: these places, and the last blocks of so many messages.
MARKED = {
    "claude-code": (frozenset(("/system/1", "/system/2")), 1),
    "claude-code-second": (frozenset(("/system/1", "/system/2")), 1),
    "opencode-anthropic": (frozenset(("/system/0",)), 2),
}
# Where a request names its session.
CLAUDE_CODE = frozenset(("x-claude-code-session-id", "user_id"))
CODEX = frozenset(("session-id", "thread-id", "prompt_cache_key"))
OPENCODE = frozenset(("x-session-id", "x-session-affinity"))
NAMED_IN = {
    "aider": frozenset[str](),
    "claude-code": CLAUDE_CODE,
    "claude-code-second": CLAUDE_CODE,
    "codex-gpt-5.5": CODEX,
    "codex-gpt-5.6-sol": CODEX,
    "gemini-cli": frozenset[str](),
    "opencode-anthropic": OPENCODE,
    "opencode-openai": OPENCODE | {"prompt_cache_key"},
    "opencode-openai-compatible": OPENCODE,
}
SESSION_HEADERS = CLAUDE_CODE | CODEX | OPENCODE
SECRET_HEADERS = {"authorization", "x-api-key", "x-goog-api-key", "cookie", "host", "proxy-authorization"}

conversation = cache(read_conversation)


@pytest.mark.parametrize("name", DRIVERS)
def test_a_session_is_read_in_order(name: str) -> None:
    requests = list(read_requests(name))
    session = read_description(name)
    assert (session.name, session.client, session.protocol) == (name, DRIVERS[name].client, DRIVERS[name].protocol)
    assert [request.number for request in requests] == list(range(1, len(requests) + 1))
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(requests))
    assert {request.client for request in requests} == {session.client}
    assert {request.path.partition("?")[0] for request in requests} == {PATHS[session.protocol]}
    assert all(msgspec.json.encode(request.json) == bytes(request.body) for request in requests)


def test_all_sessions_are_recorded_in_a_megabyte() -> None:
    assert list_sessions() == sorted(DRIVERS)
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 1_000_000


@pytest.mark.parametrize("name", DRIVERS)
def test_a_session_follows_the_script(name: str) -> None:
    """Ten turns in 25 requests, with 15 rounds of 1 to 12 calls; opencode has eight turns in 21, aider five of one."""
    driver = DRIVERS[name]
    counts = [(request.turn, len(request.reply.calls)) for request in conversation(name)]
    rounds = [(turn, count) for turn, counts in enumerate(driver.turns, 1) for count in (*counts, 0)]
    is_freeform = driver.tool is not None and driver.tool.is_freeform
    assert counts == [(turn, min(count, 1) if is_freeform else count) for turn, count in rounds]


@pytest.mark.parametrize("name", WHOLE)
def test_the_context_grows_as_that_of_an_agent(name: str) -> None:
    sizes = [len(bytes(request.body)) // 4 for request in conversation(name)]
    assert 7_000 < sizes[0] < 13_000
    assert 40_000 < sizes[-1] < 100_000


@pytest.mark.parametrize("name", APPENDING)
def test_every_call_is_answered_in_the_next_request(name: str) -> None:
    for request, following in pairwise(conversation(name)):
        body = bytes(following.body)
        assert all(body.count(call.id.encode()) >= 2 for call in request.reply.calls), following.number


@pytest.mark.parametrize("name", APPENDING)
def test_requests_only_append(name: str) -> None:
    """Marks aside, the next request has all of the last one, and the same tools, instructions and settings."""
    protocol = DRIVERS[name].protocol
    for before, after in pairwise(conversation(name)):
        old, new = split_body(before.json, protocol), split_body(after.json, protocol)
        assert new[0][: len(old[0])] == old[0], after.number
        assert new[1] == old[1], after.number


def test_gemini_cli_rewrites_its_history_when_it_is_resumed() -> None:
    """Within a turn it appends, except where it masks old results; then signatures of calls become a placeholder."""
    resumed = set()
    for before, after in pairwise(conversation("gemini-cli")):
        old, new = split_body(before.json, "gemini"), split_body(after.json, "gemini")
        assert new[1] == old[1]
        is_rewritten = new[0][: len(old[0])] != old[0]
        if before.turn == after.turn:
            assert is_rewritten == (count(after, MASKED) > count(before, MASKED)), after.number
        elif is_rewritten:
            resumed.add(after.turn)
    assert resumed == {turn for turn, rounds in enumerate(TURNS[:-1], 2) if rounds}
    assert [count(request, PLACEHOLDER) > 0 for request in conversation("gemini-cli")] == [
        request.turn > 1 for request in conversation("gemini-cli")
    ]
    assert count(conversation("gemini-cli")[-1], MASKED) > 0


def test_the_map_of_aider_changes_with_every_turn_and_little_before_it_stays() -> None:
    bodies = [bytes(request.body) for request in conversation("aider")]
    maps = [request.json["messages"][1]["content"] for request in conversation("aider")]
    assert len(set(maps)) == len(maps) == 5
    for before, after in pairwise(bodies):
        assert before[: len(after) // 4] != after[: len(after) // 4]


@pytest.mark.parametrize("name", DRIVERS)
def test_marks_stand_where_the_client_puts_them(name: str) -> None:
    for request in conversation(name):
        fixed, ends = MARKED.get(name, (frozenset[str](), 0))
        expected = {*fixed, *(find_ends(request.json["messages"], ends) if ends else ())}
        assert dict(find_marks(request.json)) == {place: {"type": "ephemeral"} for place in expected}, request.number


@pytest.mark.parametrize("name", DRIVERS)
def test_each_session_has_the_names_that_its_client_gives_it(name: str) -> None:
    """One name in all requests, at every place where the client writes it; Gemini CLI writes none."""
    found = [find_names(request) for request in conversation(name)]
    assert {frozenset(names) for names in found} == {NAMED_IN[name]}
    assert len({value for names in found for value in names.values()}) == min(len(NAMED_IN[name]), 1)


def test_the_billing_line_of_claude_code_differs_between_sessions_and_little_else_does() -> None:
    first, second = (conversation(name)[0].json for name in ("claude-code", "claude-code-second"))
    lines = [body["system"][0]["text"] for body in (first, second)]
    assert all(line.startswith("x-anthropic-billing-header: cc_version=2.1.") for line in lines)
    assert lines[0] != lines[1]
    assert first["tools"] == second["tools"]
    assert first["system"][1:] == second["system"][1:]
    assert first["messages"][0]["content"][:-1] == second["messages"][0]["content"][:-1]


@pytest.mark.parametrize("name", DRIVERS)
@pytest.mark.rest
def test_no_machine_and_no_secret_is_in_a_recording(name: str) -> None:
    text = zstd.decompress((FOLDER / f"{name}.jsonl.zst").read_bytes(), 64 * 1024 * 1024).decode()
    assert set(MACHINE.findall(text)) == set()
    assert set(SECRET.findall(text)) == set()
    assert not SECRET_HEADERS & {header for request in read_requests(name) for header, _ in request.headers}


@pytest.mark.parametrize(
    "leak", ["/tmp/session1/project", "/home/joe/.codex/auth.json", "/home/jane/x", "127.0.0.1:4000"]
)
def test_a_name_of_a_machine_would_be_found(leak: str) -> None:
    assert MACHINE.search(f'{{"cwd":"{leak}"}}')


@pytest.mark.parametrize("leak", ["sk-ant-api03-abcdef", "Bearer abc", "AIza" + "x" * 35, "ghp_0123456789"])
def test_a_secret_would_be_found(leak: str) -> None:
    assert SECRET.search(f'"{leak}"')


def test_words_are_replaced_and_the_beginning_in_common_stays() -> None:
    texts = ("Read /tmp/session7/project/a.py\nthen stop.", "Read /tmp/session7/project/a.py\nthen go on.")
    requests = [make_request({"text": text}) for text in texts]
    place = Place(Path("/tmp/session7"), Path("/tmp/session7/project"), "http://127.0.0.1:4000")
    first, second = (request.json["text"].split("\n") for request in anonymise(requests, place))
    assert first[0] == second[0]
    assert re.fullmatch(r"(?!Read)[A-Z][a-z]{3} /home/dev/project/a\.py", first[0])
    assert [len(first[1]), len(second[1])] == [len("then stop."), len("then go on.")]
    assert first[1] != second[1]


def test_what_a_reply_called_is_anonymised_as_in_the_requests() -> None:
    arguments = '{"file_path":"/tmp/session7/project/a.py"}'
    request = make_request({"input": {"file_path": "/tmp/session7/project/a.py"}}, arguments)
    place = Place(Path("/tmp/session7"), Path("/tmp/session7/project"), "http://127.0.0.1:4000")
    (made,) = anonymise([request], place)
    assert msgspec.json.decode(made.reply.calls[0].arguments) == made.json["input"]
    assert made.headers == (("session-id", "/home/dev"),)


def test_a_body_in_another_form_is_refused() -> None:
    request = msgspec.structs.replace(make_request({}), body=msgspec.Raw(b'{"text": "with a space"}'))
    with pytest.raises(ValueError, match="another form"):
        anonymise([request], Place(Path("/tmp/s7"), Path("/tmp/s7/p"), "http://127.0.0.1:4000"))


def test_a_session_is_read_as_it_was_written(tmp_path: Path) -> None:
    session = Session("one", "codex", "1.0", "responses", "gpt-5.5")
    requests = [make_request({"text": "Grüße"}), msgspec.structs.replace(make_request({"title": 1}), is_side=True)]
    write_session(session, requests, tmp_path)
    assert list_sessions(tmp_path) == ["one"]
    assert read_description("one", tmp_path) == session
    assert [request.json for request in read_requests("one", tmp_path)] == [{"text": "Grüße"}, {"title": 1}]
    assert [request.json for request in read_conversation("one", tmp_path)] == [{"text": "Grüße"}]


@pytest.mark.rest
@pytest.mark.parametrize("name", DRIVERS)
def test_a_session_can_be_recorded_again(name: str) -> None:
    driver = replace(DRIVERS[name], turns=DRIVERS[name].turns[:2])
    requests = [request for request in record(driver) if not request.is_side]
    of_two_turns = [1, 1, 1, 2, 2] if driver.tool else [1, 2]
    assert [request.turn for request in requests] == [turn for turn in of_two_turns if turn <= len(driver.turns)]


def make_request(body: JsonObject, arguments: str = "{}") -> RecordedRequest:
    return RecordedRequest(
        client="codex",
        number=1,
        at_s=0.0,
        turn=1,
        is_side=False,
        path="/v1/responses",
        headers=(("authorization", "Bearer x"), ("session-id", "/tmp/session7")),
        body=msgspec.Raw(msgspec.json.encode(body)),
        reply=RecordedReply("I will read it.", calls=(ScriptedCall("call_0001", "read", arguments),)),
    )


def count(request: RecordedRequest, text: bytes) -> int:
    return bytes(request.body).count(text)


def split_body(body: JsonObject, protocol: str) -> tuple[list[Json], JsonObject]:
    """Return the history and the rest, without marks, and with every text of a message as a list of one."""
    field = HISTORY[protocol]
    history = [
        {**item, "content": [{"type": "text", "text": item["content"]}]}
        if isinstance(item.get("content"), str)
        else item
        for item in remove_marks(body[field])
    ]
    # Codex describes each of the user's turns there; none of it is part of the prompt.
    rest = {name: value for name, value in body.items() if name not in (field, "client_metadata")}
    return history, remove_marks(rest)


def remove_marks(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: remove_marks(inner) for name, inner in value.items() if name != "cache_control"}
    return [remove_marks(inner) for inner in value] if isinstance(value, list) else value


def find_marks(value: Json, place: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "cache_control":
                yield place, inner
            else:
                yield from find_marks(inner, f"{place}/{name}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from find_marks(inner, f"{place}/{at}")


def find_ends(messages: list[JsonObject], count: int) -> list[str]:
    """Return the places of the last blocks of the last messages."""
    places = [f"/messages/{at}/content/{len(message['content']) - 1}" for at, message in enumerate(messages)]
    return places[-count:]


def find_names(request: RecordedRequest) -> dict[str, str]:
    """Return what names the session in a request, by its place."""
    found = {name: value for name, value in request.headers if name in SESSION_HEADERS}
    body = request.json
    if "metadata" in body:
        found["user_id"] = msgspec.json.decode(body["metadata"]["user_id"], type=dict)["session_id"]
    if "prompt_cache_key" in body:
        found["prompt_cache_key"] = body["prompt_cache_key"]
    return found
