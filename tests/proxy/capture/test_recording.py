"""A recording notes what happens to a request, within bounds, and never harms the request."""

import pytest

from dragoman.net.client import OutgoingRequest
from dragoman.proxy.capture import memory_bounds
from dragoman.proxy.capture.format import CLIENT_LEFT, GAP, STOPPED, Capture, LookupName
from dragoman.proxy.capture.memory_bounds import TAIL_BYTES
from dragoman.proxy.capture.recording import AFTER_ERROR, BODY_NOT_READ, Recording
from dragoman.proxy.capture.upstream_exchange import UpstreamExchange
from dragoman.proxy.outcome import CLIENT_GONE, OK, Outcome
from dragoman.translate.hub.events import Delta, Ended, Started, Stop, TruncatedCall
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Json
from narrowing import present
from proxy.capture.recordings import make_recording
from proxy.in_memory import make_provider, make_world

OUT = OutgoingRequest("POST", "http://127.0.0.1:9/v1/chat/completions", ((b"x-team", b"blue"),), b"{}")


def make_outcome(outcome: str = OK) -> Outcome:
    return Outcome(request_id="req_1", started_at=0.0, client_protocol="chat", outcome=outcome)


def list_sent(capture: Capture) -> tuple[bytes, ...]:
    return tuple(chunk.data for chunk in present(capture.response).chunks)


def test_the_clients_request_and_response_are_noted() -> None:
    recording = make_recording()
    assert recording.make_capture().truncated == (BODY_NOT_READ,)
    recording.record_body(b'{"model":"m"}')
    recording.on_head(200, [(b"content-type", b"text/plain")])
    recording.on_body(b"one")
    recording.on_body(b"")
    recording.on_body(b"two")
    capture = recording.make_capture()
    assert (capture.request.method, capture.request.path) == ("POST", "/v1/chat/completions")
    assert capture.request.body == b'{"model":"m"}'
    assert list_sent(capture) == (b"one", b"two")
    assert capture.truncated == ()


def test_the_owner_is_called_when_the_response_has_ended() -> None:
    ended: list[Recording] = []
    recording = make_recording(on_finished=ended.append)
    recording.on_end()
    assert ended == [recording]


def test_of_a_response_beyond_the_bounds_the_beginning_and_the_end_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_bounds, "MAX_BYTES", 10)
    recording = make_recording()
    recording.on_head(200, [])
    for piece in (b"first", b"much longer", b"last"):
        recording.on_body(piece)
    capture = recording.make_capture()
    assert list_sent(capture) == (b"first", GAP.data, b"much longer", b"last")
    assert "sent" in capture.truncated


def test_a_recording_takes_no_more_than_the_budget_of_all() -> None:
    recording = make_recording(room=3)
    recording.record_body(b"four")
    recording.on_head(200, [])
    recording.on_body(b"four")
    capture = recording.make_capture()
    assert (capture.request.body, list_sent(capture)) == (b"", ())
    assert capture.truncated == ("request", "sent")
    assert recording.memory.size == 0


def test_the_memory_of_a_tail_is_reserved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_bounds, "MAX_BYTES", 0)
    recording = make_recording()
    recording.on_head(200, [])
    recording.on_body(b"one")
    recording.on_body(b"two")
    assert recording.memory.size == TAIL_BYTES


def test_upstream_requests_and_events_are_noted_in_order() -> None:
    recording, provider = make_recording(), make_provider()
    first, second = (UpstreamExchange("up/m", provider, "chat", OUT) for _ in range(2))
    recording.record_upstream_request(first)
    recording.record_upstream_end(first, "Lost: reset")
    recording.record_upstream_request(second)
    watch = recording.make_monitor()
    for event in (Started("id", "m"), Delta(0, "Hi")):
        watch.observe(event)
    capture = recording.make_capture()
    assert [(one.route, one.error) for one in capture.upstream_requests] == [("up/m", "Lost: reset"), ("up/m", "")]
    assert [timed.request for timed in capture.events] == [1, 1]
    assert (capture.route, capture.upstream_protocol) == ("up/m", "chat")


def test_settings_are_noted_with_the_providers_that_were_used() -> None:
    runtime, recording = make_world(make_provider("one"), make_provider("two")), make_recording()
    recording.record_settings(runtime.config, {"one": ("quirk",), "two": ()}, lambda: {"one": ("m",)})
    recording.record_provider(runtime.providers["one"])
    recording.record_outcome(make_outcome("not_found"), None)
    settings = recording.make_capture().settings
    assert list(settings.providers) == ["one"]
    assert settings.quirks == {"one": ("quirk",)}
    assert settings.known_models == {"one": ("m",)}


def test_a_note_that_fails_is_logged_once_and_spoils_only_the_capture(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Json:
        raise RuntimeError("a bug")

    recording = make_recording()
    recording.record_lookup("up", LookupName.OPTIONS, fail)
    recording.record_lookup("up", LookupName.OPTIONS, fail)
    assert len(caplog.records) == 1
    assert AFTER_ERROR in recording.make_capture().truncated


@pytest.mark.parametrize(("client_left", "expected"), [(True, CLIENT_LEFT), (False, STOPPED)])
def test_an_interruption_is_noted(client_left: bool, expected: str) -> None:
    recording = make_recording()
    recording.record_interruption(client_left)
    assert recording.make_capture().interrupted_by == expected


def test_what_the_grammar_guard_corrects_is_noted_and_reported() -> None:
    recording, reported = make_recording(), list[str]()
    recording.record_guard_trips(reported.append)("two starts")
    assert recording.make_capture().guard_trips == ("two starts",)
    assert reported == ["two starts"]


def test_failures_are_distinguished_from_successes() -> None:
    def has_failed(outcome: str, status: int = 200) -> bool:
        recording = make_recording()
        recording.on_head(status, [])
        recording.record_outcome(make_outcome(outcome), Ledger())
        return recording.failed

    assert not has_failed(OK)
    assert not has_failed(CLIENT_GONE)
    assert has_failed("timeout")
    assert has_failed(OK, 400)
    assert make_recording().failed
    cut = make_recording()
    cut.record_outcome(make_outcome(), None)
    cut.record_event(0, Ended(Stop.LENGTH, cut=(TruncatedCall("c", "search", "{"),)))
    assert cut.failed
