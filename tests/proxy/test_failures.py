"""An upstream's failure is attributed and redacted, and sent as an HTTP error that says whether to retry."""

import time

import msgspec
import pytest
from msgspec.structs import replace

from dragoman.net.headers import Header, Headers
from dragoman.proxy.failures import (
    AllTargetsFailed,
    add_retry_advice,
    adjust_reset_time,
    attribute_failure,
    clock_skew,
    redirect_failure,
    respond_with_failure,
    should_retry,
)
from dragoman.proxy.step import ErrorReply
from dragoman.translate.hub.failure import UNKNOWN_USE, Failure, Kind, RequestError
from dragoman.translate.protocols import PROTOCOLS
from dragoman.upstreams.provider import Auth, ReplyRules
from narrowing import present
from proxy.in_memory import (
    PLAIN_REPLIES,
    ClientReply,
    MemoryWire,
    authorize_nothing,
    make_call,
    make_pooled,
    make_provider,
    make_sink,
    prepare_for,
    run,
)
from tables import each_row

KEY = b"sk-secret-0123456789"


def blame(failure: Failure, auth: Auth | None = None, replies: ReplyRules = PLAIN_REPLIES) -> Failure:
    prepared = run(prepare_for(make_call(), make_provider(key=KEY, auth=auth, replies=replies)))
    return attribute_failure(prepared, failure)


def test_a_refused_credential_is_the_gateways_own() -> None:
    failure = blame(Failure(Kind.CREDENTIAL, "Incorrect API key provided", status=401, code="invalid_api_key"))
    assert failure == Failure(
        Kind.CREDENTIAL,
        "Provider 'up' rejected the gateway's credential (HTTP 401). "
        "Set providers.up.api_key, then run: dragoman doctor",
        status=401,
        code="invalid_api_key",
    )


def test_the_provider_knows_the_command_that_helps() -> None:
    assert (
        "Run: dragoman login kiro"
        in blame(Failure(Kind.CREDENTIAL, "no"), Auth(authorize_nothing, login_command="dragoman login kiro")).message
    )


def test_of_several_credentials_the_rejected_one_is_named() -> None:
    pooled = make_pooled(make_provider(), 2)
    prepared = run(prepare_for(make_call(), pooled.members[1]))
    assert "credential 2 of 2" in attribute_failure(prepared, Failure(Kind.CREDENTIAL, "no")).message


@pytest.mark.parametrize(
    ("message", "code", "kind"),
    [
        ("The bearer token included in the request is invalid.", None, Kind.CREDENTIAL),
        ("Invalid API key", None, Kind.CREDENTIAL),
        ("Your token has expired", None, Kind.CREDENTIAL),
        ("no", "token_expired", Kind.CREDENTIAL),
        ("Your account is suspended.", None, Kind.FORBIDDEN),
        ("This model is not part of your plan.", "model_not_allowed", Kind.FORBIDDEN),
    ],
)
def test_a_403_is_a_bad_token_or_a_missing_right(message: str, code: str | None, kind: Kind) -> None:
    failure = blame(Failure(Kind.FORBIDDEN, message, status=403, code=code, retry_after=5.0, detail={"a": 1}))
    assert failure.kind is kind
    assert "'up'" in failure.message
    assert (failure.retry_after, failure.detail) == (None, None)


def test_the_meaning_that_a_provider_gives_to_a_failure_holds() -> None:
    def used_up(failure: Failure) -> Failure:
        return Failure(Kind.QUOTA, "used up")

    replies = ReplyRules(interpret_failure=used_up)
    assert blame(Failure(Kind.RATE_LIMITED, "slow"), replies=replies) == Failure(Kind.QUOTA, "used up")


@pytest.mark.parametrize("kind", [Kind.BAD_REQUEST, Kind.UPSTREAM, Kind.FORBIDDEN, Kind.CREDENTIAL])
def test_a_repeated_secret_is_hidden(kind: Kind) -> None:
    secret = KEY.decode()
    failure = blame(Failure(kind, f"no such key: {secret}", code=secret, detail={"key": secret}))
    assert secret not in repr(failure)


def test_any_other_failure_stays_as_it_is() -> None:
    failure = Failure(Kind.CONTEXT_TOO_LONG, "too long", status=400, at="/messages")
    assert blame(failure) is failure


@pytest.mark.parametrize(
    ("location", "where"),
    [
        (b"https://elsewhere.example/v1?key=secret", "to elsewhere.example,"),
        (b"/v2/chat", "to another path of its host,"),
        (b"http://[broken", "to another path of its host,"),
        (None, "to another path of its host,"),
    ],
)
def test_a_redirect_names_where_to_and_the_setting(location: bytes | None, where: str) -> None:
    failure = redirect_failure("up", 307, Headers([] if location is None else [(b"location", location)]))
    assert (failure.kind, failure.status, failure.should_retry) == (Kind.UPSTREAM, 307, False)
    assert where in failure.message
    assert "providers.up.endpoint" in failure.message
    assert "secret" not in failure.message


NOW = 1_794_744_000.0  # 2026-11-15 12:00:00 UTC by our clock
LIMITED = Failure(Kind.RATE_LIMITED, "slow down")


def nothing_spent(headers: Headers, now: float) -> float | None:
    return None


def advise(failure: Failure, *fields: Header) -> Failure:
    return add_retry_advice(failure, Headers(list(fields)), NOW, nothing_spent)


@pytest.mark.parametrize(
    ("value", "should"), [(b"true", True), (b"TRUE", True), (b"false", False), (b"perhaps", None), (None, None)]
)
def test_whether_the_upstream_advises_a_retry(value: bytes | None, should: bool | None) -> None:
    fields: list[Header] = [] if value is None else [(b"x-should-retry", value)]
    assert advise(LIMITED, *fields).should_retry is should


@pytest.mark.parametrize(
    ("retry_after", "wait"),
    [
        (b"Sun, 15 Nov 2026 12:00:30 GMT", 30.0),
        (b"Sun, 15 Nov 2026 11:00:00 GMT", 0.0),  # it has passed
        (b"soon", None),
        (b"\xff\xfe", None),
        (b"Mon, 99999999999999999999 Nov 2026 12:00:00 GMT", None),
    ],
)
def test_a_date_becomes_seconds_unless_the_protocol_has_read_some(retry_after: bytes, wait: float | None) -> None:
    assert advise(LIMITED, (b"retry-after", retry_after)).retry_after == wait
    assert advise(replace(LIMITED, retry_after=3.0), (b"retry-after", retry_after)).retry_after == 3.0


def test_a_date_is_judged_by_the_clock_of_whoever_wrote_it() -> None:
    theirs = (b"date", b"Sun, 15 Nov 2026 11:00:00 GMT")  # an hour behind ours
    assert clock_skew(Headers([theirs]), NOW) == 3600
    assert clock_skew(Headers([]), NOW) == 0
    assert advise(LIMITED, theirs, (b"retry-after", b"Sun, 15 Nov 2026 11:00:30 GMT")).retry_after == 30.0


def test_the_moment_in_an_error_body_is_turned_into_ours() -> None:
    theirs = Headers([(b"date", b"Sun, 15 Nov 2026 11:00:00 GMT")])
    failure = Failure(Kind.QUOTA, "used up", resets_at=NOW - 3000)
    assert adjust_reset_time(failure, theirs, NOW).resets_at == NOW + 600
    assert adjust_reset_time(LIMITED, theirs, NOW) is LIMITED


@each_row("kind", list(Kind))
def test_spent_allowances_are_read_where_the_failure_is_about_them(kind: Kind) -> None:
    times: list[float] = []

    def read_spent(headers: Headers, now: float) -> float | None:
        times.append(now)
        return now + 50

    headers = Headers([(b"date", b"Sun, 15 Nov 2026 11:00:00 GMT")])
    failure = add_retry_advice(Failure(kind, "no"), headers, NOW, read_spent)
    if kind in (Kind.RATE_LIMITED, Kind.QUOTA):
        assert times == [NOW - 3600]
        assert failure.resets_at == NOW + 50
    else:
        assert (times, failure.resets_at) == ([], None)


def test_allowances_are_not_read_where_the_upstream_names_the_wait() -> None:
    def never(headers: Headers, now: float) -> float | None:
        raise AssertionError

    assert add_retry_advice(Failure(Kind.QUOTA, "no", retry_after=2.0), Headers([]), NOW, never).resets_at is None
    assert add_retry_advice(Failure(Kind.QUOTA, "no", resets_at=NOW + 9), Headers([]), NOW, never).resets_at == NOW + 9


def refuse(refused: RequestError, protocol: str = "chat") -> ClientReply:
    wire = MemoryWire()
    respond_with_failure(make_sink(wire), present(PROTOCOLS[protocol].client), refused, "req_1")
    assert wire.ended
    assert len(wire.writes) == 1
    return wire.reply


@pytest.mark.parametrize(("protocol", "id_name"), [("chat", b"x-request-id"), ("messages", b"request-id")])
def test_a_failure_is_rendered_in_the_clients_protocol(protocol: str, id_name: bytes) -> None:
    reply = refuse(RequestError(Failure(Kind.NOT_FOUND, "The model 'x' does not exist here.")), protocol)
    assert reply.status == 404
    assert reply.headers.get(b"content-type") == b"application/json"
    assert reply.headers.get(id_name) == b"req_1"
    assert msgspec.json.decode(reply.body)["error"]["message"] == "The model 'x' does not exist here."


OWN: tuple[Header, ...] = (
    (b"content-type", b"application/json; charset=utf-8"),
    (b"retry-after", b"60"),
    (b"retry-after-ms", b"60000"),
    (b"set-cookie", b"a=b"),
    (b"x-vendor", b"yes"),
)


def test_the_upstreams_own_error_passes_as_it_came() -> None:
    error = ErrorReply(418, Headers(list(OWN)), b'{"error":  {"message": "teapot"}}')
    reply = refuse(AllTargetsFailed(Failure(Kind.UPSTREAM, "teapot"), error))
    assert (reply.status, reply.body) == (418, error.body)
    assert reply.headers.get(b"x-vendor") == b"yes"
    assert reply.headers.get(b"retry-after") == b"60"
    assert reply.headers.get(b"set-cookie") is None
    assert reply.headers.get(b"x-request-id") == b"req_1"


def test_the_gateways_retry_time_replaces_the_upstreams() -> None:
    error = ErrorReply(429, Headers(list(OWN)), b'{"error":{"message":"slow"}}')
    reply = refuse(AllTargetsFailed(Failure(Kind.RATE_LIMITED, "slow", retry_after=30.0), error))
    advice = [value for name, value in reply.headers if name.startswith(b"retry-after")]
    assert advice == [b"30"]


def test_without_an_own_error_the_failure_is_rendered() -> None:
    reply = refuse(AllTargetsFailed(Failure(Kind.TIMEOUT, "no data for 15 s"), None))
    assert reply.status == 504
    assert b"no data for 15 s" in reply.body


def test_a_reply_that_has_begun_is_broken_off() -> None:
    wire = MemoryWire()
    sink = make_sink(wire)
    sink.begin(200, [])
    sink.write(b"data: {}\n\n")
    written = wire.written
    respond_with_failure(sink, present(PROTOCOLS["chat"].client), RequestError(Failure(Kind.BUG, "oh")), "req_1")
    assert wire.dropped
    assert wire.written == written


@pytest.mark.parametrize(
    ("wait", "fields"),
    [
        (None, []),
        (7.0, [(b"retry-after", b"7")]),
        (0.25, [(b"retry-after", b"1"), (b"retry-after-ms", b"250")]),
        (6.4, [(b"retry-after", b"7"), (b"retry-after-ms", b"6400")]),
    ],
)
def test_the_retry_time_is_sent_in_seconds_and_where_needed_in_milliseconds(
    wait: float | None, fields: list[Header]
) -> None:
    reply = refuse(RequestError(Failure(Kind.RATE_LIMITED, "slow", retry_after=wait)))
    assert [field for field in reply.headers if field[0].startswith(b"retry-after")] == fields


@each_row(
    ("wait", "milliseconds", "seconds"),
    [(0.0, b"1", b"1"), (0.2501, b"251", b"1"), (1.0, b"1000", b"1"), (3.0, b"3000", b"3"), (59.0004, b"59001", b"60")],
)
def test_a_limit_of_ours_names_its_wait_to_the_millisecond(wait: float, milliseconds: bytes, seconds: bytes) -> None:
    reply = refuse(RequestError(Failure(Kind.LIMITED, "60 requests a minute", retry_after=wait)))
    advice = [field for field in reply.headers if field[0].startswith((b"retry-after", b"x-should-retry"))]
    assert advice == [(b"retry-after-ms", milliseconds), (b"retry-after", seconds)]
    assert not any(name.startswith(b"anthropic-ratelimit") for name, _ in reply.headers)


def test_a_spent_limit_names_no_wait() -> None:
    reply = refuse(RequestError(Failure(Kind.SPENT, "spent")))
    advice = [field for field in reply.headers if field[0].startswith((b"retry-after", b"x-should-retry"))]
    assert advice == [(b"x-should-retry", b"false")]


def test_counters_that_cannot_be_reached_are_named_in_the_head() -> None:
    reply = refuse(RequestError(Failure(Kind.LIMITED, "no answer", code=UNKNOWN_USE, retry_after=5.0)))
    assert reply.headers.get(b"retry-after") == b"5"
    assert reply.headers.get(b"anthropic-ratelimit-unified-overage-disabled-reason") == b"fetch_error"


def test_a_time_that_the_upstream_named_is_sent_in_seconds() -> None:
    reply = refuse(RequestError(Failure(Kind.QUOTA, "used up", resets_at=time.time() + 1000)))
    advice = [(name, value) for name, value in reply.headers if name.startswith(b"retry-after")]
    assert [name for name, _ in advice] == [b"retry-after"]
    assert 900 < int(advice[0][1]) <= 1000
    passed = refuse(RequestError(Failure(Kind.QUOTA, "used up", resets_at=time.time() - 1000)))
    assert passed.headers.get(b"retry-after") == b"0"


# contract.md, "x-should-retry"
NEVER = {Kind.AUTH, Kind.CREDENTIAL, Kind.SPENT}
NOT_BY_DEFAULT = {Kind.QUOTA, Kind.FORBIDDEN}


@each_row("kind", list(Kind))
@each_row("advice", [None, True, False])
def test_whether_a_client_should_retry(kind: Kind, advice: bool | None) -> None:
    expected = False if kind in NEVER or (advice is None and kind in NOT_BY_DEFAULT) else advice
    failure = Failure(kind, "no", should_retry=advice)
    assert should_retry(failure) is expected
    header = refuse(RequestError(failure)).headers.get(b"x-should-retry")
    assert header == {None: None, True: b"true", False: b"false"}[expected]
