"""Kiro caches by conversation and at cache points, of models that are listed with prompt caching."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from asking import EXPLAIN, PATHS, send
from fakes.kiro import MODELS, FakeKiro, make_framed, tail, tool, words
from fakes.upstream import Answer
from gateway import Running, running
from rig import ONCE
from wire_json import Json, JsonObject

CACHING = {**MODELS[1], "modelId": "claude-caching", "promptCaching": {"supportsPromptCaching": True}}
REPLY = make_framed(words("Yes."), tail())
REFUSALS = [
    "Unexpected member cachePoint in userInputMessage",
    "Malformed input request: #/conversationState/history/0/userInputMessage: extraneous key [cachePoint] is not "
    "permitted, please reformat your input and try again.",
]


@contextmanager
def run_kiro(directory: Path, setting: str = "auto") -> Iterator[tuple[FakeKiro, Running]]:
    with FakeKiro() as fake:
        fake.listed = [*MODELS, CACHING]
        fake.replies = [REPLY]
        section = fake.section(fake.sign_in(directory / "kiro-auth-token.json"), "kiro")
        with running(f'{ONCE}{section}cache = "{setting}"\n', directory) as gateway:
            yield fake, gateway


@pytest.fixture
def kiro(tmp_path: Path) -> Iterator[tuple[FakeKiro, Running]]:
    with run_kiro(tmp_path) as both:
        yield both


def ask(
    gateway: Running,
    *texts: str,
    model: str = "claude-caching",
    session: str = "s",
    headers: dict[str, str] | None = None,
) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    body = {"model": f"kiro/{model}", "messages": [{"role": "system", "content": "Be brief."}, *messages]}
    reply = send(gateway, "POST", PATHS["chat"], body, headers={"session-id": session, **(headers or {})})
    assert reply.status == 200, reply.body


def list_states(fake: FakeKiro) -> list[JsonObject]:
    bodies = [request.json for request in fake.requests if b"conversationState" in request.body]
    return [body["conversationState"] for body in bodies]


def test_a_session_has_one_conversation_id(kiro: tuple[FakeKiro, Running]) -> None:
    fake, gateway = kiro
    for session in ("a", "a", "b"):
        ask(gateway, "hi", session=session)
    ids = [state["conversationId"] for state in list_states(fake)]
    assert ids[0] == ids[1] != ids[2]
    assert {len(id) for id in ids} == {36}


def test_the_first_message_and_the_newest_of_the_assistant_are_marked(kiro: tuple[FakeKiro, Running]) -> None:
    fake, gateway = kiro
    ask(gateway, "one", "a", "two", "b", "three")
    [state] = list_states(fake)
    entries = [*state["history"], state["currentMessage"]]
    marked = [place for place, entry in enumerate(entries) if "cachePoint" in next(iter(entry.values()))]
    assert marked == [0, 3]
    assert str(state).count("cachePoint") == 2


def test_other_models_are_not_marked(kiro: tuple[FakeKiro, Running]) -> None:
    fake, gateway = kiro
    ask(gateway, "one", "a", "two", model="claude-sonnet-4.5")
    assert "cachePoint" not in str(list_states(fake))


@pytest.mark.parametrize("headers", [{}, {"x-dragoman-strict": "1"}], ids=["any", "strict"])
@pytest.mark.parametrize("message", REFUSALS, ids=["short", "long"])
def test_a_refused_cache_point_is_left_out_from_then_on(
    kiro: tuple[FakeKiro, Running], message: str, headers: dict[str, str]
) -> None:
    fake, gateway = kiro
    refusal = msgspec.json.encode({"__type": "ValidationException", "message": message})
    fake.replies = [Answer(refusal, status=400, content_type="application/json"), REPLY]
    ask(gateway, "one", headers=headers)
    ask(gateway, "one", headers=headers)
    assert ["cachePoint" in str(state) for state in list_states(fake)] == [True, False, False]


@pytest.mark.parametrize("refuses", [False, True])
def test_the_rest_of_a_cut_call_is_requested_in_the_same_conversation(
    kiro: tuple[FakeKiro, Running], refuses: bool
) -> None:
    fake, gateway = kiro
    refusal = msgspec.json.encode({"__type": "ValidationException", "message": REFUSALS[0]})
    refused = [Answer(refusal, status=400, content_type="application/json")] if refuses else []
    cut, rest = make_framed(tool("t", "f", input='{"city":"Zu')), make_framed(words('rich"}'), tail())
    fake.replies = [*refused, cut, rest]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"model": "kiro/claude-caching", "messages": [{"role": "user", "content": "hi"}], "tools": tools}
    reply = send(gateway, "POST", PATHS["chat"], body, headers={"session-id": "s"})
    assert b"Zurich" in reply.body
    *_, first, repair = list_states(fake)
    assert first["conversationId"] == repair["conversationId"]
    assert ["cachePoint" in str(state) for state in (first, repair)] == [not refuses] * 2


MARK = {"cache_control": {"type": "ephemeral"}}
TURNS = ("one", "a", "two")


def make_turns(marked: int | None) -> list[Json]:
    """Return the turns of a Messages conversation with a mark on one of them."""
    blocks = [[{"type": "text", "text": text, **(MARK if at == marked else {})}] for at, text in enumerate(TURNS)]
    return [{"role": ("user", "assistant")[at % 2], "content": block} for at, block in enumerate(blocks)]


@pytest.mark.parametrize(
    ("setting", "system", "marked", "fields", "places"),
    [
        ("client", MARK, None, {}, [0]),
        ("client", {}, 2, {}, [1]),
        ("client", MARK, 2, {}, [0, 1]),
        ("client", {}, None, MARK, [1]),
        ("client", {}, None, {}, []),
        ("off", MARK, 2, {}, []),
        ("auto", {}, None, {}, [0, 1]),
    ],
    ids=["system", "last", "both", "top level", "none", "off", "auto"],
)
def test_the_clients_marks_become_cache_points(
    tmp_path: Path, setting: str, system: JsonObject, marked: int | None, fields: JsonObject, places: list[int]
) -> None:
    with run_kiro(tmp_path, setting) as (fake, gateway):
        instructions = [{"type": "text", "text": "Be brief.", **system}]
        body = {"model": "kiro/claude-caching", "max_tokens": 9, "system": instructions, "messages": make_turns(marked)}
        reply = send(gateway, "POST", PATHS["messages"], {**body, **fields}, headers=EXPLAIN)
        assert reply.status == 200, reply.body
        [state] = list_states(fake)
        entries = [*state["history"], state["currentMessage"]]
        assert [at for at, entry in enumerate(entries) if "cachePoint" in next(iter(entry.values()))] == places
        lost = sorted(path for path, how in reply.losses if path.endswith("cache_control"))
        assert lost == (["/messages/2/content/0/cache_control", "/system/0/cache_control"] if setting == "off" else [])


def test_breakpoints_of_other_clients_mean_nothing_to_kiro(tmp_path: Path) -> None:
    with run_kiro(tmp_path, "client") as (fake, gateway):
        part = {"type": "text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
        body = {"model": "kiro/claude-caching", "messages": [{"role": "user", "content": [part]}]}
        assert send(gateway, "POST", PATHS["chat"], body, headers={"x-dragoman-strict": "1"}).status == 200
        assert "cachePoint" not in str(list_states(fake))
