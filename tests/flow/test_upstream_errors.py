"""A refusal says whose fault it is and what to do about it, without the secret."""

import pytest

from dragoman.flow.upstream_errors import (
    add_retry_advice,
    attribute_failure,
    clock_skew,
    redirect_failure,
    resets_by_our_clock,
)
from dragoman.hub.failure import Failure, Kind
from dragoman.net.headers import Header, Headers
from dragoman.providers.provider import Auth, ReplyRules
from flow.in_memory import PLAIN_REPLIES, authorize_nothing, make_call, make_pooled, make_provider, prepare_for, run

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
    ("value", "should"),
    [(b"true", True), (b"TRUE", True), (b"false", False), (b"perhaps", None), (None, None)],
)
def test_whether_the_upstream_advises_a_retry(value: bytes | None, should: bool | None) -> None:
    fields: list[Header] = [] if value is None else [(b"x-should-retry", value)]
    assert advise(LIMITED, *fields).should_retry is should


def test_seconds_that_the_protocol_read_win_over_a_date() -> None:
    failure = Failure(Kind.OVERLOADED, "busy", retry_after=3.0)
    assert advise(failure, (b"retry-after", b"Sun, 15 Nov 2026 12:10:00 GMT")).retry_after == 3.0


@pytest.mark.parametrize(
    ("retry_after", "wait"),
    [
        (b"Sun, 15 Nov 2026 12:00:30 GMT", 30.0),
        (b"Sun, 15 Nov 2026 11:00:00 GMT", 0.0),  # it has passed
        (b"soon", None),
        (b"\xff\xfe", None),
    ],
)
def test_a_date_becomes_seconds(retry_after: bytes, wait: float | None) -> None:
    assert advise(LIMITED, (b"retry-after", retry_after)).retry_after == wait


def test_a_date_is_judged_by_the_clock_of_whoever_wrote_it() -> None:
    theirs = (b"date", b"Sun, 15 Nov 2026 11:00:00 GMT")  # an hour behind ours
    assert clock_skew(Headers([theirs]), NOW) == 3600
    assert clock_skew(Headers([]), NOW) == 0
    assert advise(LIMITED, theirs, (b"retry-after", b"Sun, 15 Nov 2026 11:00:30 GMT")).retry_after == 30.0


def test_the_moment_in_an_error_body_is_turned_into_ours() -> None:
    theirs = Headers([(b"date", b"Sun, 15 Nov 2026 11:00:00 GMT")])
    failure = Failure(Kind.QUOTA, "used up", resets_at=NOW - 3000)
    assert resets_by_our_clock(failure, theirs, NOW).resets_at == NOW + 600
    assert resets_by_our_clock(LIMITED, theirs, NOW) is LIMITED


@pytest.mark.parametrize("kind", list(Kind))
def test_spent_allowances_are_read_where_the_failure_is_about_them(kind: Kind) -> None:
    times: list[float] = []

    def spent(headers: Headers, now: float) -> float | None:
        times.append(now)
        return now + 50

    headers = Headers([(b"date", b"Sun, 15 Nov 2026 11:00:00 GMT")])
    failure = add_retry_advice(Failure(kind, "no"), headers, NOW, spent)
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
