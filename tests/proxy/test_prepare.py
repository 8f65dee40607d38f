"""The request for one target: the client's own bytes where they may pass, else built for its upstream."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.config.problems import ConfigError, Problem
from dragoman.net.headers import Header, Headers
from dragoman.proxy.call import Call
from dragoman.proxy.prepare import prepare, strict_refusal
from dragoman.proxy.prepared import Change, Passthrough, Prepared, Translated
from dragoman.proxy.step import Ask
from dragoman.tenancy.keys import ENVIRONMENT_KEY
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.hub.loss import LISTED, Ledger
from dragoman.translate.hub.profile import Profile
from dragoman.translate.hub.request import Request, Sampling
from dragoman.upstreams.provider import (
    Attempt,
    Auth,
    Catalogue,
    Endpoint,
    Provider,
    ReplyRules,
    RequestRules,
    UnsignedRequest,
)
from dragoman.upstreams.routing import Route
from narrowing import expect
from proxy.in_memory import (
    CHAT,
    MESSAGES,
    MESSAGES_STREAM,
    PLAIN_REPLIES,
    PLAIN_REQUESTS,
    URL,
    make_call,
    make_fitting,
    make_provider,
    run,
    send_nothing,
)

KEY = b"sk-secret-0123456789"
# White space, key order and unknown fields must survive.
ODD_CHAT = b'{ "messages":[{"role":"user","content":"Hi"}],  "zzz":1, "model" : "up/m","seed": 7 }'


def prepare_call(
    call: Call, provider: Provider, model: str = "m", changes: tuple[Change, ...] = (), number: int = 1
) -> Prepared:
    return run(prepare(call, Ask(Route(provider.name, model), provider, number, changes), make_fitting()))


def passes(prepared: Prepared) -> Passthrough:
    return expect(Passthrough, prepared)


def is_built(prepared: Prepared) -> Translated:
    return expect(Translated, prepared)


def fields_of(prepared: Prepared) -> dict[bytes, bytes]:
    names = [name for name, _ in prepared.out.headers]
    assert len(names) == len(set(names))
    return dict(prepared.out.headers)


def test_the_same_protocol_passes_with_nothing_but_the_model_changed() -> None:
    ready = passes(prepare_call(make_call("chat", ODD_CHAT), make_provider(), "the-model"))
    assert ready.out.body == ODD_CHAT.replace(b'"up/m"', b'"the-model"')
    assert ready.out.url == "http://127.0.0.1:9/v1/chat/completions"
    same = make_call("chat", CHAT)
    assert passes(prepare_call(same, make_provider())).out.body is CHAT


def test_another_protocol_is_built_anew_and_losses_are_counted() -> None:
    call = make_call("chat", b'{"model":"x","messages":[{"role":"user","content":"Hi"}],"seed":7}')
    ready = is_built(prepare_call(call, make_provider(protocols=("messages",)), "claude"))
    body = msgspec.json.decode(ready.out.body)
    assert (body["model"], body["messages"][0]["role"]) == ("claude", "user")
    assert ready.out.url == "http://127.0.0.1:9/v1/messages"
    assert "/seed" in [loss.path for loss in ready.ledger]
    assert ready.losses == len(ready.ledger)
    assert fields_of(ready)[b"anthropic-version"]


def keep(request: Request, ledger: Ledger) -> Request:
    return request


@pytest.mark.parametrize(
    ("requests", "replies", "changes", "continues"),
    [
        (PLAIN_REQUESTS, ReplyRules(stages=lambda request: []), (), False),
        (RequestRules(passthrough_body=lambda protocol, body: None), PLAIN_REPLIES, (), False),
        (PLAIN_REQUESTS, PLAIN_REPLIES, (keep,), False),
        (PLAIN_REQUESTS, PLAIN_REPLIES, (), True),
    ],
    ids=["its replies go through stages", "it refuses these bytes", "the request is changed", "others may continue"],
)
def test_the_same_protocol_is_built_anew_where_it_must_be(
    requests: RequestRules, replies: ReplyRules, changes: tuple[Change, ...], continues: bool
) -> None:
    call = make_call("chat", ODD_CHAT)
    call.continues = continues
    ready = is_built(prepare_call(call, make_provider(requests=requests, replies=replies), changes=changes))
    assert msgspec.json.decode(ready.out.body)["seed"] == 7


def test_a_provider_may_change_the_bytes_that_pass() -> None:
    provider = make_provider(requests=RequestRules(passthrough_body=lambda protocol, body: body.replace(b"Hi", b"Ho")))
    assert b"Ho" in passes(prepare_call(make_call("chat", ODD_CHAT), provider, "up/m")).out.body


def set_seed(seed: int) -> Change:
    return lambda request, ledger: replace(request, sampling=Sampling(seed=seed))


def test_changes_come_before_the_passes_of_the_provider() -> None:
    provider = make_provider(requests=RequestRules(passes=(set_seed(2),)))
    ready = is_built(prepare_call(make_call("chat", ODD_CHAT), provider, changes=(set_seed(1),)))
    assert ready.request.sampling.seed == 2
    assert msgspec.json.decode(ready.out.body)["seed"] == 2


def test_a_call_may_be_prepared_again_without_what_was_lost_before() -> None:
    call = make_call("chat", b'{"model":"x","messages":[{"role":"user","content":"Hi"}],"seed":7}')
    provider = make_provider(protocols=("messages",))
    first, second = is_built(prepare_call(call, provider)), is_built(prepare_call(call, provider))
    assert len(first.ledger) == len(second.ledger)
    assert first.ledger is not second.ledger


# Strict mode


def test_strict_mode_refuses_what_would_be_lost() -> None:
    body = b'{"model":"x","messages":[{"role":"user","content":"Hi"}],"seed":7}'
    call = make_call("chat", body, [(b"x-dragoman-strict", b"1")])
    with pytest.raises(RequestError) as refused:
        prepare_call(call, make_provider(protocols=("messages",)))
    failure = refused.value.failure
    assert (failure.kind, failure.code) == (Kind.BAD_REQUEST, "translation_loss")
    assert "/seed dropped" in failure.message
    passes(prepare_call(call, make_provider()))


def test_a_refusal_lists_what_it_can_and_counts_the_rest() -> None:
    ledger = Ledger()
    for number in range(LISTED + 5):
        ledger.record_dropped(f"/messages/{number}", "too many")
    failure = strict_refusal(ledger)
    assert "and 5 more" in failure.message
    assert failure.detail is not None
    assert failure.detail["count"] == LISTED + 5
    assert failure.at == "/messages/0"


# Headers

CLIENT_HEADERS: tuple[Header, ...] = (
    (b"authorization", b"Bearer the-clients-own"),
    (b"x-api-key", b"the-clients-own"),
    (b"cookie", b"a=b"),
    (b"host", b"gateway"),
    (b"user-agent", b"SDK"),
    (b"x-dragoman-explain", b"1"),
    (b"x-forwarded-for", b"10.0.0.1"),
    (b"connection", b"x-hop"),
    (b"x-hop", b"1"),
    (b"openai-organization", b"org_1"),
    (b"x-stainless-lang", b"python"),
    (b"x-stainless-lang", b"python"),
)


@pytest.mark.parametrize(("key", "choices"), [("key_1", set()), (ENVIRONMENT_KEY, {b"openai-organization"})])
def test_headers_for_the_gateway_are_not_forwarded(key: str, choices: set[bytes]) -> None:
    call = make_call("chat", CHAT, CLIENT_HEADERS, key=key)
    ready = passes(prepare_call(call, make_provider(key=KEY)))
    fields = fields_of(ready)
    assert set(fields) == {b"content-type", b"accept-encoding", b"authorization", b"x-stainless-lang", *choices}
    assert fields[b"authorization"] == b"Bearer " + KEY
    assert ready.owner is (key == ENVIRONMENT_KEY)
    assert KEY in ready.secrets


def test_a_provider_decides_which_of_the_clients_headers_pass() -> None:
    call = make_call("chat", CHAT, CLIENT_HEADERS)
    ready = prepare_call(
        call, make_provider(requests=RequestRules(forwards_header=lambda name: not name.startswith(b"x-stainless")))
    )
    assert b"x-stainless-lang" not in fields_of(ready)


def test_the_headers_of_a_provider_win_over_a_clients() -> None:
    call = make_call("chat", CHAT, [(b"x-team", b"client")])
    ready = prepare_call(
        call, make_provider(endpoint=Endpoint(URL, ("chat",), send_nothing, headers=((b"x-team", b"ours"),)))
    )
    assert fields_of(ready)[b"x-team"] == b"ours"


def test_a_client_that_names_no_version_of_messages_gets_one() -> None:
    provider = make_provider(protocols=("messages",))
    assert fields_of(prepare_call(make_call("messages", MESSAGES), provider))[b"anthropic-version"] == b"2023-06-01"
    named = make_call("messages", MESSAGES, [(b"anthropic-version", b"2099-01-01")])
    assert fields_of(prepare_call(named, provider))[b"anthropic-version"] == b"2099-01-01"


def test_the_query_passes_without_the_clients_key() -> None:
    def query_of(query: str) -> str:
        return prepare_call(make_call("chat", CHAT, query=query), make_provider()).out.url.partition("/completions")[2]

    assert query_of("api-version=1&key=secret") == "?api-version=1"
    assert query_of("key=secret") == query_of("") == ""


def test_the_accept_header_of_a_translated_request_names_the_requested_mode() -> None:
    for body, accept in ((MESSAGES, b"application/json"), (MESSAGES_STREAM, b"text/event-stream")):
        ready = is_built(prepare_call(make_call("messages", body), make_provider()))
        assert fields_of(ready)[b"accept"] == accept
        assert ready.streams is (accept == b"text/event-stream")


def test_a_provider_describes_each_request_by_its_number_and_an_id_that_stays() -> None:
    seen: list[Attempt] = []

    def describe(request: Callable[[], Request], headers: Headers, trial: Attempt) -> tuple[Header, ...]:
        seen.append(trial)
        assert request().turns
        return ((b"x-attempt", str(trial.number).encode()),)

    call, provider = make_call("chat", CHAT, tenant="them"), make_provider(requests=RequestRules(headers=describe))
    for number in (1, 2):
        assert fields_of(prepare_call(call, provider, number=number))[b"x-attempt"] == str(number).encode()
    assert [trial.number for trial in seen] == [1, 2]
    assert {(trial.id, trial.tenant) for trial in seen} == {(call.uuid, "them")}


def test_a_credential_that_cannot_be_had_is_the_gateways_fault() -> None:
    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        raise ConfigError([Problem("environment", None, "LOCAL_KEY", "LOCAL_KEY is not set")])

    with pytest.raises(RequestError) as refused:
        prepare_call(make_call(), make_provider(auth=Auth(authorize)))
    assert refused.value.failure.kind is Kind.CREDENTIAL
    assert "'up'" in refused.value.failure.message
    assert "LOCAL_KEY is not set" in refused.value.failure.message


def test_a_path_may_be_the_providers_own() -> None:
    provider = make_provider(endpoint=Endpoint(URL, ("chat",), send_nothing, paths={"chat": "/openai/chat"}))
    assert prepare_call(make_call(), provider).out.url == "http://127.0.0.1:9/v1/openai/chat"


def test_a_model_may_use_other_protocols_than_its_provider() -> None:
    async def list_protocols(model: str) -> tuple[str, ...]:
        return ("messages",) if model.startswith("claude") else ("chat",)

    provider = make_provider(endpoint=Endpoint(URL, ("chat",), send_nothing, find_protocols=list_protocols))
    assert prepare_call(make_call(), provider, "claude-x").protocol.name == "messages"
    assert prepare_call(make_call(), provider, "gpt").protocol.name == "chat"


def test_the_decoder_knows_which_provider_answers() -> None:
    async def make_options(model: str) -> object:
        return f"options for {model}"

    catalogue = Catalogue(context_window=lambda model: 1000)
    requests = RequestRules(options=make_options, quirks=frozenset({"plain"}))
    provider = replace(make_provider(catalogue=catalogue, requests=requests), issuer="vendor")
    issuer = prepare_call(make_call(), provider).issuer
    assert (issuer.name, issuer.model, issuer.window) == ("vendor", "m", 1000)
    assert issuer.options == "options for m"
    assert issuer.quirks == {"plain"}


def test_tools_that_a_model_refuses_on_its_chat_endpoint_go_to_the_other() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}],"tools":[]}'
    provider = make_provider(protocols=("responses", "chat"))
    fitting = make_fitting(Profile(no_tools_in=("chat",)))
    ready = run(prepare(make_call("chat", body), Ask(Route("up", "m"), provider, 1), fitting))
    assert is_built(ready).protocol.name == "responses"
