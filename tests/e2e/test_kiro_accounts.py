"""What becomes of a refused, suspended, exhausted or rotated Kiro account, seen from the client."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import anthropic
import openai
import pytest

from asking import send
from e2e.account_rig import KiroRig, run_kiro
from e2e.cases import request_for
from fakes.eventstream import event
from fakes.kiro import INVALID_BEARER, FakeKiro, json_answer, make_framed, refusal, sign, tail, words
from fakes.upstream import Answer
from narrowing import expect
from rig import PROTOCOLS
from sdk_replies import WHOLE, Reply, SdkReply, StatusError, status_error
from tables import each_row

CHAT = "/generateAssistantResponse"
HELLO = make_framed(words("Hello"), tail())
CAPACITY = refusal(
    429,
    "I am experiencing high traffic, try again shortly.",
    "INSUFFICIENT_MODEL_CAPACITY",
    "ThrottlingException",
)

clients = pytest.mark.parametrize("client", PROTOCOLS)
modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[KiroRig]:
    with run_kiro(tmp_path) as own:
        own.gateway.settle()
        yield own


def expect_refusal(reply: Reply, status: int) -> StatusError:
    """The exception, which must be of the SDK's class for this status."""
    error = status_error(reply)
    assert error.status_code == status, error
    assert "FAKE" not in str(error)
    assert "arn:aws" not in str(error)
    return error


@clients
@modes
def test_a_refused_token_is_renewed_and_the_request_replayed_once(rig: KiroRig, client: str, stream: bool) -> None:
    rig.play(HELLO)
    rig.fake.access.clear()  # revoked, though the file says that it lives
    reply = rig.ask(client, stream)
    assert isinstance(reply, SdkReply)
    assert reply.text == "Hello"
    assert rig.fake.counts["/refreshToken"] == 1
    assert rig.fake.counts[CHAT] == 2


@clients
@modes
def test_a_rejected_renewed_token_is_the_gateways_failure(rig: KiroRig, client: str, stream: bool) -> None:
    """Behaviour 24: one refresh, one replay, then 502 with the command that fixes it."""
    rig.play(HELLO)
    rig.fake.script(CHAT, *[INVALID_BEARER] * 9)
    error = expect_refusal(rig.ask(client, stream), 502)
    assert "dragoman login kiro" in str(error)
    assert "'kiro'" in str(error)
    assert rig.fake.counts["/refreshToken"] == 1
    assert rig.fake.counts[CHAT] == 2


BAD_TOKEN = "The bearer token included in the request is invalid."
DENIED = "User is not authorized to make this call."


@each_row(
    ("rejection", "status"),
    [
        (refusal(403, BAD_TOKEN, kind="AccessDeniedException"), 502),
        (refusal(403, "no", kind="ExpiredTokenException"), 502),
        (Answer(b"", status=403), 502),
        (refusal(403, DENIED, kind="AccessDeniedException"), 403),
        (refusal(403, "x", "SOMETHING_NEW", kind="AccessDeniedException"), 403),
        (Answer(b"<html><h1>Forbidden</h1></html>", status=403, content_type="text/html"), 502),
    ],
)
def test_a_403_that_does_not_say_why_renews_the_token_once(rig: KiroRig, rejection: Answer, status: int) -> None:
    rig.play(rejection, HELLO)
    assert expect(SdkReply, rig.ask("chat")).text == "Hello"
    assert (rig.fake.counts["/refreshToken"], rig.fake.counts[CHAT]) == (1, 2)
    rig.play(rejection)
    error = expect_refusal(rig.ask("chat"), status)
    assert "'kiro'" in str(error)
    assert (rig.fake.counts["/refreshToken"], rig.fake.counts[CHAT]) == (1, 2)


@each_row(
    ("rejection", "status"),
    [
        (refusal(403, "x", "TEMPORARILY_SUSPENDED", kind="AccessDeniedException"), 403),
        (refusal(403, "x", "FEATURE_NOT_SUPPORTED", kind="AccessDeniedException"), 403),
        (refusal(403, "x", "UNAUTHORIZED_CUSTOMIZATION_RESOURCE_ACCESS", kind="AccessDeniedException"), 403),
        (refusal(403, "This subscription is not supported.", kind="AccessDeniedException"), 403),
        (refusal(403, "You have reached the limit.", "MONTHLY_REQUEST_COUNT"), 429),
    ],
)
def test_a_403_with_a_final_reason_renews_no_token(rig: KiroRig, rejection: Answer, status: int) -> None:
    rig.play(rejection)
    expect_refusal(rig.ask("chat"), status)
    assert (rig.fake.counts["/refreshToken"], rig.fake.counts[CHAT]) == (0, 1)


@clients
def test_a_suspended_account_is_not_renewed(rig: KiroRig, client: str) -> None:
    message = "Your User ID (d-fake.123) temporarily is suspended. We've locked it as a security precaution."
    rig.fake.script(CHAT, *[refusal(403, message, kind="AccessDeniedException")] * 9)
    rig.play(HELLO)
    error = expect_refusal(rig.ask(client), 403)
    assert isinstance(error, openai.PermissionDeniedError | anthropic.PermissionDeniedError)
    assert "suspended" in str(error)
    assert rig.fake.counts["/refreshToken"] == 0
    assert rig.fake.counts[CHAT] == 1


@clients
@modes
def test_too_little_capacity_is_waited_for(rig: KiroRig, client: str, stream: bool) -> None:
    rig.play(HELLO)
    rig.fake.script(CHAT, CAPACITY, CAPACITY)
    reply = rig.ask(client, stream)
    assert isinstance(reply, SdkReply), reply
    assert rig.fake.counts[CHAT] == 3
    chats = rig.fake.chats[-3:]
    assert len({chat.headers["amz-sdk-invocation-id"] for chat in chats}) == 1
    assert [chat.headers["amz-sdk-request"] for chat in chats] == [f"attempt={n}; max=3" for n in (1, 2, 3)]


@clients
def test_lasting_overload_is_reported(rig: KiroRig, client: str) -> None:
    rig.fake.script(CHAT, *[CAPACITY] * 9)
    rig.play(HELLO)
    expect_refusal(rig.ask(client), 529 if client == "messages" else 503)
    assert rig.fake.counts[CHAT] == 3


@clients
@pytest.mark.parametrize("status", [402, 429, 400])
def test_a_used_up_month_is_not_tried_again(rig: KiroRig, client: str, status: int) -> None:
    """The reason decides: it has come under three statuses."""
    full = refusal(status, "You have reached the limit.", "MONTHLY_REQUEST_COUNT", "ServiceQuotaExceededException")
    rig.fake.script(CHAT, *[full] * 9)
    rig.play(HELLO)
    error = expect_refusal(rig.ask(client), 402 if client == "messages" else 429)
    if client == "messages":
        assert expect(anthropic.APIStatusError, error).type == "billing_error"
    else:
        assert expect(openai.APIStatusError, error).code == "insufficient_quota"
    assert rig.fake.counts[CHAT] == 1
    assert rig.fake.counts["/refreshToken"] == 0


@clients
def test_a_conversation_that_is_too_long_is_reported_as_such(rig: KiroRig, client: str) -> None:
    rig.fake.script(CHAT, *[refusal(400, "Input is too long.", "CONTENT_LENGTH_EXCEEDS_THRESHOLD")] * 9)
    rig.play(HELLO)
    error = expect_refusal(rig.ask(client), 400)
    if client == "messages":
        assert "prompt is too long" in str(error)
    else:
        assert expect(openai.APIStatusError, error).code == "context_length_exceeded"
    assert rig.fake.counts[CHAT] == 1


@clients
def test_a_request_that_lacked_a_profile_is_repeated_with_one(rig: KiroRig, client: str) -> None:
    rig.fake.script(CHAT, refusal(400, "profileArn is required for this request."))
    rig.play(HELLO)
    reply = rig.ask(client)
    assert isinstance(reply, SdkReply), reply
    assert rig.fake.counts[CHAT] == 2


@clients
def test_a_misread_tool_use_is_replayed_once(rig: KiroRig, client: str) -> None:
    rig.fake.script(CHAT, *[refusal(400, "Invalid tool use format.")] * 9)
    rig.play(HELLO)
    expect_refusal(rig.ask(client), 400)
    assert rig.fake.counts[CHAT] == 2


@pytest.mark.parametrize("words", ["Invalid tool use format.", "profileArn is required for this request."])
def test_an_error_that_only_quotes_such_words_repeats_nothing(rig: KiroRig, words: str) -> None:
    rig.fake.script(CHAT, *[refusal(400, f"The text '{words}' is too short.")] * 9)
    expect_refusal(rig.ask("chat"), 400)
    assert rig.fake.counts[CHAT] == 1


def test_twenty_requests_that_are_refused_at_once_make_one_refresh(rig: KiroRig) -> None:
    rig.play(HELLO)
    rig.fake.access.clear()
    with ThreadPoolExecutor(20) as pool:
        reply = list(pool.map(lambda number: rig.ask(PROTOCOLS[number % 3], number % 2 == 0), range(20)))
    assert all(isinstance(one, SdkReply) and one.text == "Hello" for one in reply), reply
    assert rig.fake.counts["/refreshToken"] == 1


def test_twenty_requests_with_an_expired_token_make_one_refresh(tmp_path: Path) -> None:
    def slow(fake: FakeKiro) -> None:
        fake.refresh_delay_s, fake.replies = 0.3, [HELLO]

    with run_kiro(tmp_path, life_s=-60, prepare=slow) as rig:
        with ThreadPoolExecutor(20) as pool:
            reply = list(pool.map(lambda number: rig.ask(PROTOCOLS[number % 3]), range(20)))
        assert all(isinstance(one, SdkReply) and one.text == "Hello" for one in reply), reply
        # Two providers share the file here: the second finds what the first has renewed.
        assert rig.fake.counts["/refreshToken"] == 1


@clients
def test_an_account_that_the_ide_renews_stays_usable(rig: KiroRig, client: str) -> None:
    """Behaviour 25, from outside."""
    rig.play(HELLO)
    rig.fake.access.clear()
    rig.fake.refresh.clear()
    by_the_ide = rig.fake.issue()
    written: list[bytes] = []

    def renew() -> None:
        sign(rig.file, str(by_the_ide["accessToken"]), str(by_the_ide["refreshToken"]), 3600)
        written.append(rig.file.read_bytes())

    rig.fake.before["/refreshToken"] = renew
    reply = rig.ask(client)
    assert isinstance(reply, SdkReply), reply
    assert rig.fake.counts["/refreshToken"] == 1
    assert rig.file.read_bytes() == written[0]


@clients
@modes
def test_an_account_that_cannot_be_renewed_is_the_gateways_failure(tmp_path: Path, client: str, stream: bool) -> None:
    bad = json_answer({"message": "Bad credentials"}, 401)
    with run_kiro(tmp_path, life_s=-60, prepare=lambda fake: fake.script("/refreshToken", *[bad] * 9)) as rig:
        error = expect_refusal(rig.ask(client, stream), 502)
        assert "dragoman login kiro" in str(error)
        assert rig.fake.counts[CHAT] == 0


@clients
def test_a_token_that_lives_is_served_on_though_it_cannot_be_renewed(tmp_path: Path, client: str) -> None:
    with run_kiro(tmp_path, life_s=300, prepare=lambda fake: fake.refresh.clear()) as rig:
        before = rig.file.read_bytes()
        rig.fake.replies = [HELLO]
        for _ in range(3):
            reply = rig.ask(client)
            assert isinstance(reply, SdkReply), reply
        assert rig.file.read_bytes() == before


@clients
def test_a_request_reaches_kiro_with_user_agent_and_profile(rig: KiroRig, client: str) -> None:
    rig.play(HELLO)
    rig.ask(client)
    (sent,) = rig.fake.chats
    assert sent.headers["user-agent"].startswith("dragoman/")
    assert sent.headers["x-amzn-codewhisperer-optout"] == "true"
    assert "x-amz-target" not in sent.headers
    assert "tokentype" not in sent.headers
    body = sent.json
    assert body["profileArn"] == "arn:aws:codewhisperer:us-east-1:123456789012:profile/FAKEPROFILE"
    assert body["conversationState"]["currentMessage"]["userInputMessage"]["modelId"] == "claude-sonnet-4.5"
    assert rig.sdk.headers["x-dragoman-route"] == "kiro/claude-sonnet-4.5"


def test_an_empty_reply_is_retried(rig: KiroRig) -> None:
    rig.play(Answer(b"", content_type="application/vnd.amazon.eventstream"), HELLO)
    reply = rig.ask("chat", streamed=True)
    assert isinstance(reply, SdkReply), reply
    assert rig.fake.counts[CHAT] == 2


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("claude-3-7-sonnet-20250219", "CLAUDE_3_7_SONNET_20250219_V1_0"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("claude-opus-4-5-20251101", "claude-opus-4.5"),
    ],
)
def test_a_model_that_kiro_does_not_list_is_requested_by_its_bare_name(tmp_path: Path, name: str, id: str) -> None:
    def list_one(fake: FakeKiro) -> None:
        fake.listed = [{"modelId": "claude-haiku-4.5"}]

    with run_kiro(tmp_path, prepare=list_one) as rig:
        rig.play(HELLO)
        assert WHOLE["chat"](rig.sdk, request_for("chat", name)).text == "Hello"
        sent = rig.fake.chats[-1]
        assert sent.json["conversationState"]["currentMessage"]["userInputMessage"]["modelId"] == id


@pytest.mark.parametrize(
    ("level", "expected"),
    [(logging.INFO, ["fake-request-1"]), (logging.DEBUG, ["fake-request-1", "fake-request-2"])],
    ids=["of the refused", "of all, when more is logged"],
)
def test_kiros_request_ids_are_logged(
    rig: KiroRig, caplog: pytest.LogCaptureFixture, level: int, expected: list[str]
) -> None:
    overloaded = refusal(500, "Encountered unexpectedly high load.", kind="InternalServerException")
    with caplog.at_level(level, "dragoman"):
        rig.play(
            replace(overloaded, headers=(("x-amzn-requestid", "fake-request-1"),)),
            replace(HELLO, headers=(("x-amzn-requestid", "fake-request-2"),)),
        )
        rig.ask("chat")
    ids = ("fake-request-1", "fake-request-2")
    assert [id for line in caplog.messages for id in ids if id in line] == expected


def test_a_rejection_is_logged_with_its_message_and_the_figures_of_the_request(
    rig: KiroRig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "dragoman"):
        rig.play(refusal(400, "Improperly formed request."))
        rig.ask("chat")
    size = len(rig.fake.chats[0].body)
    expected = (
        "provider kiro: HTTP 400 ValidationException: Improperly formed request. The request: "
        f"{size} bytes, 0 earlier messages, 6 characters in the last one, 0 tools, 0 calls, 0 tool results, 0 images"
    )
    assert expected in caplog.messages


def test_the_lists_of_models_have_the_credit_rate_of_each(rig: KiroRig) -> None:
    for path in ("/v1/models", "/v1/models?client_version=1.0.0"):
        listed = {model["id"]: model.get("credit_rate") for model in send(rig.gateway, "GET", path).json["data"]}
        assert (listed["kiro/claude-sonnet-4.5"], listed["kiro/auto"]) == (1.3, None)
    offered = send(rig.gateway, "GET", "/api/v1/models").json["models"]
    rates = {model["model"]: model["credit_rate"] for model in offered if model["provider"] == "kiro"}
    assert rates == {"auto": None, "claude-sonnet-4.5": 1.3, "claude-opus-4.6": None}


def test_operations_named_in_a_header_are_all_posted_to_the_root(rig: KiroRig) -> None:
    """AWS's JSON encoding: every operation is posted to `/`, with its name in `x-amz-target`."""
    rig.gateway.adopt(rig.fake.section(str(rig.file), operations_by="target"))
    rig.play(make_framed(event("initial-response", {}), words("Hello"), tail()))
    listed = {model.id for model in rig.sdk.openai.models.list()}
    assert expect(SdkReply, rig.ask("chat")).text == "Hello"
    assert {f"kiro/{model['modelId']}" for model in rig.fake.listed} <= listed
    sent = {(request.method, request.path, request.headers["content-type"]) for request in rig.fake.requests}
    assert sent == {("POST", "/", "application/x-amz-json-1.0")}
    assert {request.headers["x-amz-target"] for request in rig.fake.requests} == {
        "KiroRuntimeService.GenerateAssistantResponse",
        "KiroControlPlaneBearerService.ListAvailableModels",
    }
