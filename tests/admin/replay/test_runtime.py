"""The surroundings of a captured request return what it looked up then."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.admin.replay.recorded_services import RecordedUpstream
from dragoman.admin.replay.runtime import Lookups, UnsupportedCapture, make_runtime
from dragoman.config.problems import ConfigError
from dragoman.flow.capture.files import read_capture as read
from dragoman.flow.capture.format import Capture, Lookup, LookupName
from dragoman.hub.failure import RequestError

FIXTURE = Path(__file__).parents[2] / "fixtures" / "captures" / "kiro-cut-call.json"


def fixture(**changes: object) -> Capture:
    return replace(read(FIXTURE.read_bytes()), **changes)


def lookups(*values: dict[str, object]) -> Lookups:
    found = tuple(Lookup("up", LookupName.RENEW.value, value) for value in values)
    return Lookups(fixture(lookups=found))


def test_values_are_returned_in_order_and_the_last_one_again() -> None:
    replayed = lookups({"value": 1}, {"value": 2})
    assert [replayed.next("up", LookupName.RENEW) for _ in range(3)] == [1, 2, 2]
    assert replayed.has("up", LookupName.RENEW)
    assert not replayed.has("other", LookupName.RENEW)


def test_errors_are_raised_again_and_an_unknown_lookup_is_one() -> None:
    with pytest.raises(ConfigError, match="no key"):
        lookups({"misconfigured": ["no key"]}).next("up", LookupName.RENEW)
    with pytest.raises(RequestError, match="does not contain"):
        lookups().next("up", LookupName.RENEW)


def test_the_runtime_has_the_providers_of_the_capture() -> None:
    capture = fixture()
    runtime = make_runtime(capture, RecordedUpstream(capture.upstream_requests, 0.0), Lookups(capture))
    assert set(capture.settings.providers) <= set(runtime.providers)


def test_a_provider_of_an_unknown_kind_is_named() -> None:
    settings = replace(fixture().settings, providers={"up": {"stanza": {"kind": "gone"}}})
    capture = fixture(settings=settings)
    with pytest.raises(UnsupportedCapture, match="gone"):
        make_runtime(capture, RecordedUpstream((), 0.0), Lookups(capture))
