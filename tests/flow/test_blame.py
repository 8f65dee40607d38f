"""A refusal says whose fault it is and what to do about it, without the secret."""

import pytest
from msgspec.structs import replace

from dragoman.flow.blame import named, redirected
from dragoman.hub.failure import Failure, Kind
from dragoman.net.headers import Headers
from flow.in_memory import make_call, make_pooled, make_provider, prepare_for, run

KEY = b"sk-secret-0123456789"


def blame(failure: Failure, **fields: object) -> Failure:
    prepared = run(prepare_for(make_call(), replace(make_provider(key=KEY), **fields)))
    return named(prepared, failure)


def test_a_refused_credential_is_the_gateways_own() -> None:
    failure = blame(Failure(Kind.CREDENTIAL, "Incorrect API key provided", status=401, code="invalid_api_key"))
    assert failure == Failure(
        Kind.CREDENTIAL,
        "Provider 'up' refused the gateway's credential (HTTP 401). "
        "To mend it: set providers.up.api_key, then run `dragoman doctor`.",
        status=401,
        code="invalid_api_key",
    )


def test_the_provider_knows_the_command_that_helps() -> None:
    assert (
        "To mend it: run `dragoman login kiro`."
        in blame(Failure(Kind.CREDENTIAL, "no"), remedy="run `dragoman login kiro`").message
    )


def test_of_several_credentials_it_is_said_which() -> None:
    pooled = make_pooled(make_provider(), 2)
    prepared = run(prepare_for(make_call(), pooled.members[1]))
    assert "credential 2 of 2" in named(prepared, Failure(Kind.CREDENTIAL, "no")).message


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

    assert blame(Failure(Kind.RATE_LIMITED, "slow"), heed=used_up) == Failure(Kind.QUOTA, "used up")


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
    failure = redirected("up", 307, Headers([] if location is None else [(b"location", location)]))
    assert (failure.kind, failure.status, failure.should_retry) == (Kind.UPSTREAM, 307, False)
    assert where in failure.message
    assert "providers.up.endpoint" in failure.message
    assert "secret" not in failure.message
