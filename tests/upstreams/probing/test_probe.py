"""`doctor NAME`: each oddity of a server yields exactly its quirk."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from dragoman.config.settings import ProviderConfig
from dragoman.upstreams import Surroundings
from dragoman.upstreams.api_key import make_compatible
from dragoman.upstreams.probing.probe import ProbeResult, probe
from dragoman.upstreams.probing.probe_client import ProbeClient
from dragoman.upstreams.probing.probe_trials import CAP, LONG_ID, MAX_REQUESTS
from fakes.compatible import Body, MoodyServer, Server, refusal, reply
from fakes.upstream import Answer, End, FakeUpstream, ReceivedRequest
from outgoing import open_http

Objection = Callable[[Body], str | None]


def run_probe(choose: Callable[[ReceivedRequest], Answer]) -> ProbeResult:
    async def run(url: str) -> ProbeResult:
        async with open_http() as http:
            config = ProviderConfig(name="p", kind="openai-compatible", endpoint=url, protocols=("chat",))
            return await probe(ProbeClient(make_compatible(config, Surroundings(http.send, {})), "m"), "m")

    with FakeUpstream(choose=choose) as fake:
        profile = asyncio.run(run(fake.url))
        assert profile.requests == len(fake.calls) <= MAX_REQUESTS
    return profile


def read_trait(profile: ProbeResult, what: str) -> str:
    return next(trait.found for trait in profile.traits if trait.what == what)


def has(word: str) -> Objection:
    return lambda body: f"{word} is not known" if word in msgspec.json.encode(body).decode() else None


def no_parameters(body: Body) -> str | None:
    text = msgspec.json.encode(body.get("tools", [])).decode()
    return "parameters: field required" if '"function"' in text and "parameters" not in text else None


def later_system(body: Body) -> str | None:
    text = msgspec.json.encode(body.get("messages", [])).decode()
    is_later = text.find('"system"') > text.find('"user"') >= 0
    return "System message must be at the beginning." if is_later else None


def no_null(body: Body) -> str | None:
    return "content must be a string" if '"content":null' in msgspec.json.encode(body).decode() else None


def thoughts_missing(body: Body) -> str | None:
    called = '"tool_calls"' in msgspec.json.encode(body).decode()
    return "the reasoning_content of the turn must be passed back" if called else None


def test_a_server_like_openai_needs_no_quirk() -> None:
    profile = run_probe(Server())
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
        ("no_stream_options", has('"stream_options"')),
        ("short_call_ids", has(f'"{LONG_ID}"')),
        ("leading_system", later_system),
    ],
)
@pytest.mark.parametrize("manner", ["says 400", "says 500"])
def test_a_rejected_field_yields_exactly_its_quirk(quirk: str, objection: Objection, manner: str) -> None:
    assert run_probe(Server(manner, objection=objection)).quirks == (quirk,)


@pytest.mark.parametrize(
    ("quirk", "odd"),
    [("max_tokens", "ignores cap"), ("no_required", "ignores required"), ("cut_then_done", "cuts streams")],
)
def test_a_silently_ignored_field_yields_exactly_its_quirk(quirk: str, odd: str) -> None:
    assert run_probe(Server(odd)).quirks == (quirk,)


def test_text_where_a_call_must_be_made_shows_that_required_is_ignored() -> None:
    assert run_probe(Server("ignores required", "rambles")).quirks == ("no_required",)


def test_a_reply_that_is_all_thinking_does_not_decide_required() -> None:
    profile = run_probe(Server("ignores required", "thinks"))
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
def test_oddities_of_replies_are_reported_and_need_no_quirk(odd: str, what: str, word: str) -> None:
    assert read_trait(run_probe(Server()), what) != word
    profile = run_probe(Server(odd))
    assert (read_trait(profile, what), profile.quirks) == (word, ())


@pytest.mark.parametrize("field", ["reasoning_effort", "parallel_tool_calls"])
def test_a_rejection_without_a_quirk_is_reported(field: str) -> None:
    profile = run_probe(Server(objection=has(f'"{field}"')))
    assert (read_trait(profile, field), profile.quirks) == ("rejected", ())


def test_a_quirk_whose_remedy_is_rejected_too_is_not_advised() -> None:
    profile = run_probe(Server(objection=has('"response_format"')))
    assert (read_trait(profile, "response_format json_schema"), profile.quirks) == ("rejected", ())


def test_a_server_without_tools_gets_no_further_tool_trials() -> None:
    profile = run_probe(Server(objection=has('"tools"')))
    assert (read_trait(profile, "tools"), profile.quirks) == ("rejected", ())
    assert {"no_required", "needs_parameters", "no_custom_tools"} <= profile.undecided


def test_each_protocol_is_tried() -> None:
    assert run_probe(Server("responses", "messages")).protocols == ("chat", "responses", "messages")
    chatless = run_probe(Server("messages", objection=lambda body: "no chat here"))
    assert (chatless.protocols, chatless.requests) == (("messages",), 4)


def test_a_server_with_only_the_newer_cap_gets_that_one() -> None:
    profile = run_probe(Server(objection=has('"max_tokens"')))
    assert (profile.protocols, profile.quirks) == (("chat",), ())


@pytest.mark.parametrize("answer", [refusal("slow down", 429), Answer(b"{", end=End.CUT)])
def test_a_busy_or_unreachable_server_decides_nothing(answer: Answer) -> None:
    server = Server()

    def choose(request: ReceivedRequest) -> Answer:
        return answer if b'"developer"' in request.body else server(request)

    profile = run_probe(choose)
    assert (read_trait(profile, "developer messages"), profile.quirks) == ("unclear", ())
    assert "no_developer" in profile.undecided


def test_every_request_is_small() -> None:
    bodies: list[Body] = []
    server = Server("responses", "messages")

    def choose(request: ReceivedRequest) -> Answer:
        bodies.append(request.json)
        return server(request)

    run_probe(choose)
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
def test_the_verdict_does_not_depend_on_the_models_words(odd: tuple[str, ...], quirks: tuple[str, ...]) -> None:
    for seed in range(12):
        profile = run_probe(MoodyServer(seed, *odd))
        assert (profile.protocols, profile.quirks) == (("chat",), quirks), seed
        assert profile.undecided == {"replay_reasoning"}, seed


def test_requests_are_deterministic() -> None:
    settings: list[tuple[object, object]] = []

    def server(request: ReceivedRequest) -> Answer:
        if request.path.endswith("/chat/completions"):
            settings.append((request.json.get("temperature"), request.json.get("seed")))
        return Server()(request)

    run_probe(server)
    assert set(settings) == {(0, 1)}


@pytest.mark.parametrize("word", ['"temperature"', '"seed"'])
def test_a_server_without_temperature_or_seed_is_probed_without_them(word: str) -> None:
    profile = run_probe(Server(objection=has(word)))
    assert (profile.protocols, profile.quirks) == (("chat",), ())


def test_an_empty_reply_identifies_its_protocol() -> None:
    def server(request: ReceivedRequest) -> Answer:
        answers: dict[str, Body] = {
            "/v1/messages": {"type": "message", "content": []},
            "/v1/responses": {"object": "response", "output": [], "error": None},
        }
        return reply(answers[request.path]) if request.path in answers else Server()(request)

    assert run_probe(server).protocols == ("chat", "responses", "messages")
