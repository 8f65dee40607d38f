"""`doctor NAME`: each oddity of a server yields exactly the quirk that is meant for it, and none that is not."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from dragoman.config import ProviderConfig
from dragoman.net.client import HttpClient
from dragoman.providers.compatible.probe import ProbeResult, probe
from dragoman.providers.compatible.probe_client import ProbeClient
from dragoman.providers.compatible.probe_trials import CAP, MAX_REQUESTS
from dragoman.providers.compatible.provider import make_compatible
from fakes.compatible import Body, MoodyServer, Server, refusal, reply
from fakes.upstream import Answer, Asked, End, FakeUpstream

Objection = Callable[[Body], str | None]


def probed(choose: Callable[[Asked], Answer]) -> ProbeResult:
    async def run(url: str) -> ProbeResult:
        http = HttpClient()
        config = ProviderConfig(name="p", kind="openai-compatible", endpoint=url, protocols=("chat",))
        try:
            return await probe(ProbeClient(make_compatible(config, http.send, {}), "m"), "m")
        finally:
            await http.close()

    with FakeUpstream(choose=choose) as fake:
        profile = asyncio.run(run(fake.url))
        assert profile.requests == len(fake.calls) <= MAX_REQUESTS
    return profile


def found(profile: ProbeResult, what: str) -> str:
    return next(trait.found for trait in profile.traits if trait.what == what)


def has(word: str) -> Objection:
    return lambda body: f"{word} is not known" if word in msgspec.json.encode(body).decode() else None


def no_parameters(body: Body) -> str | None:
    text = msgspec.json.encode(body.get("tools", [])).decode()
    return "parameters: field required" if '"function"' in text and "parameters" not in text else None


def no_null(body: Body) -> str | None:
    return "content must be a string" if '"content":null' in msgspec.json.encode(body).decode() else None


def thoughts_missing(body: Body) -> str | None:
    called = '"tool_calls"' in msgspec.json.encode(body).decode()
    return "the reasoning_content of the turn must be passed back" if called else None


def test_a_server_like_openais_needs_nothing() -> None:
    profile = probed(Server())
    assert (profile.protocols, profile.quirks) == (("chat",), ())
    assert {trait.found for trait in profile.traits} <= {"supported", "rejected", "present", "correct", "complete"}
    assert profile.undecided == {"replay_reasoning"}


@pytest.mark.parametrize(
    ("quirk", "objection"),
    [
        ("max_tokens", has('"max_completion_tokens"')),
        ("no_developer", has('"developer"')),
        ("no_custom_tools", has('"custom"')),
        ("plain", has('"prompt_cache_key"')),
        ("json_object_schema", has('"json_schema"')),
        ("no_required", has('"tool_choice":"required"')),
        ("text_content", has('"content":[')),
        ("text_content", no_null),
        ("needs_parameters", no_parameters),
        ("replay_reasoning", thoughts_missing),
    ],
)
@pytest.mark.parametrize("manner", ["says 400", "says 500"])
def test_what_a_server_refuses_yields_exactly_its_quirk(quirk: str, objection: Objection, manner: str) -> None:
    assert probed(Server(manner, objection=objection)).quirks == (quirk,)


@pytest.mark.parametrize(
    ("quirk", "odd"),
    [("max_tokens", "ignores cap"), ("no_required", "ignores required"), ("cut_then_done", "cuts streams")],
)
def test_what_a_server_does_silently_yields_exactly_its_quirk(quirk: str, odd: str) -> None:
    assert probed(Server(odd)).quirks == (quirk,)


def test_text_where_a_call_must_be_made_shows_that_required_is_ignored() -> None:
    assert probed(Server("ignores required", "rambles")).quirks == ("no_required",)


def test_a_thought_that_takes_all_the_room_tells_nothing_of_required() -> None:
    profile = probed(Server("ignores required", "thinks"))
    assert profile.quirks == ()
    assert "no_required" in profile.undecided


@pytest.mark.parametrize(
    ("odd", "what", "word"),
    [
        ("no usage", "usage in streams", "missing"),
        ("no ids", "ids of chunks", "missing"),
        ("no DONE", "[DONE]", "missing"),
        ("no call ids", "ids of calls", "missing"),
        ("arguments at once", "arguments in a stream", "unusual"),
        ("lies", "finish_reason after a call", "wrong"),
    ],
)
def test_oddities_of_replies_are_told_and_need_no_quirk(odd: str, what: str, word: str) -> None:
    assert found(probed(Server()), what) != word
    profile = probed(Server(odd))
    assert (found(profile, what), profile.quirks) == (word, ())


@pytest.mark.parametrize("field", ["reasoning_effort", "parallel_tool_calls", "stream_options"])
def test_a_refusal_that_no_quirk_answers_is_told(field: str) -> None:
    profile = probed(Server(objection=has(f'"{field}"')))
    assert (found(profile, field), profile.quirks) == ("rejected", ())


def test_a_quirk_whose_remedy_is_refused_too_is_not_advised() -> None:
    profile = probed(Server(objection=has('"response_format"')))
    assert (found(profile, "response_format json_schema"), profile.quirks) == ("rejected", ())


def test_a_server_without_tools_is_not_asked_for_more_of_them() -> None:
    profile = probed(Server(objection=has('"tools"')))
    assert (found(profile, "tools"), profile.quirks) == ("rejected", ())
    assert {"no_required", "needs_parameters", "no_custom_tools"} <= profile.undecided


def test_each_protocol_is_tried() -> None:
    assert probed(Server("responses", "messages")).protocols == ("chat", "responses", "messages")
    chatless = probed(Server("messages", objection=lambda body: "no chat here"))
    assert (chatless.protocols, chatless.requests) == (("messages",), 4)


def test_a_server_that_knows_only_the_newer_cap_is_asked_with_it() -> None:
    profile = probed(Server(objection=has('"max_tokens"')))
    assert (profile.protocols, profile.quirks) == (("chat",), ())


@pytest.mark.parametrize("answer", [refusal("slow down", 429), Answer(b"{", end=End.CUT)])
def test_a_server_that_is_busy_or_gone_has_told_nothing(answer: Answer) -> None:
    server = Server()

    def choose(asked: Asked) -> Answer:
        return answer if b'"developer"' in asked.body else server(asked)

    profile = probed(choose)
    assert (found(profile, "developer messages"), profile.quirks) == ("unclear", ())
    assert "no_developer" in profile.undecided


def test_every_request_is_small() -> None:
    bodies: list[Body] = []
    server = Server("responses", "messages")

    def choose(asked: Asked) -> Answer:
        bodies.append(asked.json)
        return server(asked)

    probed(choose)
    caps = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    assert all(any(0 < int(str(body.get(name, 0))) <= CAP for name in caps) for body in bodies)


@pytest.mark.parametrize(
    ("odd", "quirks"),
    [
        ((), ()),
        (("ignores cap",), ("max_tokens",)),
        (("ignores required",), ("no_required",)),
        (("ignores format",), ("json_object_schema",)),
        (("cuts streams", "ignores cap", "ignores required"), ("max_tokens", "no_required", "cut_then_done")),
    ],
    ids=["none", "cap", "required", "format", "several"],
)
def test_the_verdict_does_not_hang_on_what_the_model_says(odd: tuple[str, ...], quirks: tuple[str, ...]) -> None:
    for seed in range(12):
        profile = probed(MoodyServer(seed, *odd))
        assert (profile.protocols, profile.quirks) == (("chat",), quirks), seed
        assert profile.undecided == {"replay_reasoning"}, seed


def test_requests_ask_for_the_same_answer_each_time() -> None:
    settings: list[tuple[object, object]] = []

    def server(asked: Asked) -> Answer:
        if asked.path.endswith("/chat/completions"):
            settings.append((asked.json.get("temperature"), asked.json.get("seed")))
        return Server()(asked)

    probed(server)
    assert set(settings) == {(0, 1)}


@pytest.mark.parametrize("word", ['"temperature"', '"seed"'])
def test_a_server_that_takes_no_temperature_or_seed_is_asked_without(word: str) -> None:
    profile = probed(Server(objection=has(word)))
    assert (profile.protocols, profile.quirks) == (("chat",), ())


def test_an_empty_answer_shows_its_protocol_as_well() -> None:
    def server(asked: Asked) -> Answer:
        answers: dict[str, Body] = {
            "/v1/messages": {"type": "message", "content": []},
            "/v1/responses": {"object": "response", "output": [], "error": None},
        }
        return reply(answers[asked.path]) if asked.path in answers else Server()(asked)

    assert probed(server).protocols == ("chat", "responses", "messages")
