"""The refusals of limits as clients get them, and what the limits have counted afterwards."""

from collections.abc import Iterator
from pathlib import Path

import anthropic
import msgspec
import openai
import pytest

from asking import CLIENTS, PATHS, Reply, send
from e2e.cases import request_for
from e2e.limit_rig import LimitedRig, run_limited
from fakes.upstream import Answer
from rig import PROTOCOLS, walk
from sdk_replies import STREAMS, WHOLE, Broke, Sdk
from tables import each_row
from wire_json import JsonObject

NOTHING = "[limits]\nusd_per_month = 0\n"
ONE_A_MINUTE = "[limits.key]\nrequests_per_min = 1\nconcurrent = 5\n"
BUDGET = "[limits]\nusd_per_month = 10\ntokens_per_day = 1000000\nconcurrent = 10\nrequests_per_min = 600\n"
MODES = (False, True)
each_client = pytest.mark.parametrize(("client", "stream"), walk([CLIENTS, MODES], []))
STATUS_OF_SPENT = {"messages": 402, "chat": 402, "responses": 429, "gemini": 429}
CODE_OF_SPENT = {"messages": "billing_error", "chat": "insufficient_quota", "responses": "insufficient_quota"}
CODE_OF_RATE = {"messages": "rate_limit_error", "chat": "rate_limit_exceeded", "responses": "rate_limit_exceeded"}


@pytest.fixture(scope="module")
def spent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedRig]:
    options = {"chat": 'paths = ["embeddings", "completions"]\n'}
    with run_limited(tmp_path_factory.mktemp("spent"), NOTHING, options=options) as rig:
        yield rig


def error_of(reply: Reply) -> JsonObject:
    error: JsonObject = msgspec.json.decode(reply.body)["error"]
    return error


def word_of(client: str, error: JsonObject) -> object:
    """The word by which a client's SDK tells errors apart."""
    return {"messages": error.get("type"), "gemini": error.get("status")}.get(client, error.get("code"))


@each_client
def test_a_spent_limit_is_refused_so_that_no_client_repeats_it(spent: LimitedRig, client: str, stream: bool) -> None:
    fake = spent.play(client, stream=stream)
    reply = spent.ask_limited(client, stream=stream)
    error = error_of(reply)
    assert reply.status == STATUS_OF_SPENT[client]
    assert word_of(client, error) == CODE_OF_SPENT.get(client, "RESOURCE_EXHAUSTED")
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    assert "usd_per_month = 0 of all keys together" in error["message"]
    if client == "gemini":
        [failure] = error["details"]
        assert failure["@type"].endswith("QuotaFailure")
        assert "PerDay" in failure["violations"][0]["quotaId"]
    assert fake.calls == []


@each_client
def test_a_limit_that_has_room_again_says_when(client: str, stream: bool, tmp_path: Path) -> None:
    with run_limited(tmp_path, ONE_A_MINUTE, upstreams=(client,)) as rig:
        fake = rig.play(client, "Hello", stream=stream)
        assert rig.ask_limited(client, stream=stream).status == 200
        reply = rig.ask_limited(client, stream=stream)
        error = error_of(reply)
        assert reply.status == 429
        assert word_of(client, error) == CODE_OF_RATE.get(client, "RESOURCE_EXHAUSTED")
        wait_ms, wait_s = int(reply.headers["retry-after-ms"]), int(reply.headers["retry-after"])
        assert 1 <= wait_s <= 60
        assert wait_s - 1 < wait_ms / 1000 <= wait_s
        assert "x-should-retry" not in reply.headers
        assert 'requests_per_min = 1 of the key "laptop"' in error["message"]
        if client == "gemini":
            assert [detail["@type"].rpartition(".")[2] for detail in error["details"]] == ["RetryInfo"]
        assert len(fake.calls) == 1
        rows = rig.rows(2)
        assert [row.outcome for row in rows] == ["ok", "limited"]
        assert rows[0].lease
        assert not rows[1].lease


SDK_OF_SPENT: dict[str, type[Exception]] = {
    "messages": anthropic.APIStatusError,
    "chat": openai.APIStatusError,
    "responses": openai.RateLimitError,
}


@pytest.mark.parametrize(("client", "stream"), walk([PROTOCOLS], [MODES]))
def test_the_official_sdk_raises_it_as_its_own_error(spent: LimitedRig, client: str, stream: bool) -> None:
    sdk = Sdk(spent.gateway.url, spent.key)
    try:
        request = request_for(client, spent.model(client))
        if stream:
            reply = STREAMS[client][0](sdk, request)
            assert isinstance(reply, Broke)
            error = reply.error
        else:
            with pytest.raises(SDK_OF_SPENT[client]) as raised:
                WHOLE[client](sdk, request)
            error = raised.value
        assert isinstance(error, SDK_OF_SPENT[client])
        assert isinstance(error, openai.APIStatusError | anthropic.APIStatusError)
        assert error.status_code == STATUS_OF_SPENT[client]
        assert "usd_per_month" in str(error)
    finally:
        sdk.close()


def test_the_environments_key_counts_for_everybody_together_too(spent: LimitedRig) -> None:
    assert spent.ask("chat", "chat").status == 402


def test_counting_tokens_is_free(spent: LimitedRig) -> None:
    body = {"model": "chat/m", "messages": [{"role": "user", "content": "Hello"}]}
    assert send(spent, "POST", "/v1/messages/count_tokens", body, key=spent.key).status == 200
    assert send(spent, "POST", "/v1/conversations", {}, key=spent.key).status == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/responses/compact"])
def test_other_paths_of_openai_are_refused_alike(spent: LimitedRig, path: str) -> None:
    body = {"model": "chat/m", "input": "Hello", "prompt": "Hello"}
    reply = send(spent, "POST", path, body, key=spent.key)
    if path.endswith("compact"):
        assert (reply.status, error_of(reply)["code"]) == (429, "insufficient_quota")
    else:
        assert (reply.status, error_of(reply)["code"]) == (402, "insufficient_quota")


@pytest.mark.parametrize(("client", "upstream", "stream"), walk([CLIENTS, CLIENTS], [MODES]))
def test_what_is_counted_is_the_cost_of_the_row(client: str, upstream: str, stream: bool, tmp_path: Path) -> None:
    with run_limited(tmp_path, BUDGET, upstreams=(upstream,)) as rig:
        rig.play(upstream, "Forty-two", stream=stream)
        for _ in range(3):
            assert rig.ask_limited(client, upstream, stream=stream).status == 200
        rig.wait_until_settled()
        rows = rig.rows(3)
        cost = sum(row.cost_nano_usd or 0 for row in rows)
        assert cost > 0
        assert rig.level("all:usd:").spent == cost
        tokens = [(row.input_tokens or 0) - (row.cache_read_tokens or 0) + (row.output_tokens or 0) for row in rows]
        assert rig.level("all:tokens:").spent == sum(tokens)
        assert len({row.lease for row in rows}) == 3


FIELDS = ("limit", "remaining", "reset")


@pytest.mark.parametrize("stream", MODES)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_reply_says_what_is_left_of_requests_and_tokens(client: str, stream: bool, tmp_path: Path) -> None:
    limits = "[limits]\nrequests_per_min = 600\n[limits.key]\nrequests_per_min = 60\ntokens_per_min = 100000\n"
    with run_limited(tmp_path, limits, upstreams=(client,)) as rig:
        rig.play(client, "Hello", stream=stream)
        found = {
            name: value for name, value in rig.ask_limited(client, stream=stream).headers.items() if "ratelimit" in name
        }
        if client == "gemini":
            assert found == {}
        elif client == "messages":
            names = {f"anthropic-ratelimit-{unit}-{field}" for unit in ("requests", "tokens") for field in FIELDS}
            assert set(found) == names
            assert found["anthropic-ratelimit-requests-limit"] == "60"
            assert found["anthropic-ratelimit-requests-remaining"] == "59"
            assert found["anthropic-ratelimit-requests-reset"].endswith("Z")
        else:
            assert set(found) == {f"x-ratelimit-{field}-{unit}" for unit in ("requests", "tokens") for field in FIELDS}
            assert (found["x-ratelimit-limit-requests"], found["x-ratelimit-remaining-requests"]) == ("60", "59")
            assert found["x-ratelimit-reset-requests"] == "1s"
            assert 0 < int(found["x-ratelimit-remaining-tokens"]) < 100_000


@pytest.mark.parametrize("client", ["chat", "messages"])
def test_a_limit_that_never_starts_anew_names_no_time(client: str, tmp_path: Path) -> None:
    with run_limited(tmp_path, "[limits]\ntokens_per_total = 100000\n", upstreams=(client,)) as rig:
        rig.play(client, "Hello", stream=False)
        reply = rig.ask_limited(client)
        found = sorted(name for name in reply.headers if "ratelimit" in name)
        assert len(found) == 2
        assert not any("reset" in name for name in found)


def test_without_limits_no_request_has_a_lease(tmp_path: Path) -> None:
    with run_limited(tmp_path, "", upstreams=("chat",)) as rig:
        rig.play("chat", "Hello", stream=False)
        reply = rig.ask_limited("chat")
        assert reply.status == 200
        assert not any("ratelimit" in name for name in reply.headers)
        assert rig.rows(1)[0].lease == ""


def test_tags_are_kept_on_the_row_and_not_sent_on(tmp_path: Path) -> None:
    with run_limited(tmp_path, BUDGET, upstreams=("chat",)) as rig:
        fake = rig.play("chat", "Hello", stream=False)
        rig.ask_limited("chat", headers={"x-dragoman-tags": "job=7, branch=main"})
        assert rig.rows(1)[0].tags == "job=7,branch=main"
        assert not any("tags" in name for name in fake.calls[0].headers)


def set_key(rig: LimitedRig, **fields: object) -> None:
    assert send(rig, "PATCH", "/api/v1/keys/laptop", fields).status == 200


def test_a_key_default_model_and_output_limit_hold_for_the_other_paths_of_openai_too(tmp_path: Path) -> None:
    options = {"chat": 'paths = ["embeddings", "completions"]\n'}
    with run_limited(tmp_path, "", upstreams=("chat",), options=options) as rig:
        set_key(rig, default_model="chat/vendor-model", max_output_tokens=7)
        fake = rig.play("chat", Answer(body=b'{"object": "list"}'))
        for path, body in (
            ("completions", {"prompt": "Hello"}),
            ("completions", {"model": "chat/other", "prompt": "Hello", "max_tokens": 50}),
            ("completions", {"model": "chat/other", "prompt": "Hello", "max_tokens": 5}),
            ("embeddings", {"input": "Hello"}),
        ):
            assert send(rig, "POST", f"/v1/{path}", body, key=rig.key).status == 200
        assert [call.json for call in fake.calls] == [
            {"prompt": "Hello", "model": "vendor-model", "max_tokens": 7},
            {"model": "other", "prompt": "Hello", "max_tokens": 7},
            {"model": "other", "prompt": "Hello", "max_tokens": 5},
            {"input": "Hello", "model": "vendor-model"},
        ]


PART = b'--edge\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
END, PREAMBLE = b"--edge--\r\n", b"This is a form.\r\n"
FILE = PART % (b"file", bytes(range(256)) * 400)


@each_row(
    ("sent", "expected"),
    [
        (FILE + END, PART % (b"model", b"vendor-model") + FILE + END),
        (PREAMBLE + FILE + END, PREAMBLE + PART % (b"model", b"vendor-model") + FILE + END),
        (END, PART % (b"model", b"vendor-model") + END),
        (FILE + PART % (b"model", b"chat/other") + END, FILE + PART % (b"model", b"other") + END),
    ],
)
def test_a_key_default_model_is_put_into_forms_that_name_none(forms: LimitedRig, sent: bytes, expected: bytes) -> None:
    for path in ("audio/transcriptions", "images/edits"):  # without a model, the second has one of OpenAI's
        headers = {"content-type": "multipart/form-data; boundary=edge"}
        assert send(forms, "POST", f"/v1/{path}", sent, key=forms.key, headers=headers).status == 200
        assert forms.fakes["chat"].calls[-1].body == expected, path
    assert {row.model for row in forms.rows(len(forms.fakes["chat"].calls))} <= {"vendor-model", "other"}


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LimitedRig]:
    options = {"chat": 'paths = ["audio", "images/edits"]\n'}
    directory = tmp_path_factory.mktemp("forms")
    with run_limited(directory, "", upstreams=("chat",), options=options) as rig:
        set_key(rig, default_model="chat/vendor-model")
        rig.play("chat", Answer(b'{"text": "Hello."}', content_type="application/json"))
        yield rig


@pytest.mark.parametrize("upstream", ["chat", "responses"])
@pytest.mark.parametrize("client", ["chat", "responses"])
def test_a_prompt_cache_key_names_the_session_of_the_row_also_where_bytes_pass(
    client: str, upstream: str, tmp_path: Path
) -> None:
    with run_limited(tmp_path, "", upstreams=(upstream,)) as rig:
        rig.play(upstream, "Hello", stream=False)
        body = request_for(client, rig.model(upstream)) | {"prompt_cache_key": "a session"}
        for headers in ({}, {"session-id": "another"}):
            assert send(rig, "POST", PATHS[client], body, key=rig.key, headers=headers).status == 200
        assert [row.session for row in rig.rows(2)] == ["a session", "another"]
