"""Read captures that version 0.1 wrote, whose fields had other names."""

from collections.abc import Mapping

import msgspec

from dragoman.flow.capture.format import utc_text

_CAPTURE = {
    "id": "request_id",
    "program": "dragoman_version",
    "asked_in": "client_protocol",
    "spoken": "upstream_protocol",
    "wanted": "requested_model",
    "result": "outcome",
    "code": "error_code",
    "interrupted": "interrupted_by",
    "trips": "guard_trips",
    "cut": "cut_calls",
    "asked": "request",
    "questions": "upstream_requests",
    "moments": "events",
    "sent": "response",
    "told": "lookups",
    "world": "settings",
    "shortened": "truncated",
}
_MESSAGE = {"fields": "headers"}  # a request or a response, of the client or of an upstream
_UPSTREAM_REQUEST = {**_MESSAGE, "answer": "response", "fault": "error"}
_UPSTREAM_RESPONSE = {**_MESSAGE, "ended": "ended_at"}
_SETTINGS = {"stanzas": "providers", "learnt": "quirks", "known": "known_models"}
_SUMMARY = {"id": "request_id", "way": "protocols", "result": "outcome", "questions": "attempts"}

Tree = dict[str, object]


def upgrade_capture(old: object) -> Tree:
    """Return a version-1 capture under today's names."""
    new = _renamed(old, _CAPTURE)
    _convert_times(new)
    new["version"] = 2
    new["request"] = _renamed(new.get("request"), _MESSAGE)
    new["settings"] = _renamed(new.get("settings") or {}, _SETTINGS)
    if new.get("response") is not None:
        new["response"] = _renamed(new["response"], _MESSAGE)
    requests = msgspec.convert(new.get("upstream_requests", ()), list[object])
    new["upstream_requests"] = [_upgrade_upstream_request(request) for request in requests]
    return new


def upgrade_summary(old: object) -> Tree:
    """Return the summary line of a version-1 capture under today's names."""
    new = _renamed(old, _SUMMARY)
    _convert_times(new)
    return new


def _upgrade_upstream_request(old: object) -> Tree:
    new = _renamed(old, _UPSTREAM_REQUEST)
    if new.get("response") is not None:
        new["response"] = _renamed(new["response"], _UPSTREAM_RESPONSE)
    return new


def _convert_times(tree: Tree) -> None:
    tree["time"] = utc_text(msgspec.convert(tree.pop("began", 0.0), float))
    tree["duration_ms"] = round(msgspec.convert(tree.pop("seconds", 0.0), float) * 1000, 3)


def _renamed(old: object, names: Mapping[str, str]) -> Tree:
    if not isinstance(old, dict):
        raise ValueError(f"expected an object, got {type(old).__name__}")
    return {names.get(name, name): value for name, value in old.items()}
