"""Errors of the admin API: one shape for all of them, which names the field at fault."""

from functools import partial

import msgspec
from msgspec.structs import replace

from dragoman.hub.failure import Failure
from dragoman.hub.ports import Client, ErrorResponse

PREFIX = "/api/v1/"
STATUSES = {"unsupported_media_type": 415, "version_mismatch": 412, "version_required": 428}  # of codes of this API


def use_api_errors(client: Client) -> Client:
    """Return a client record whose errors have the admin API's shape, with the same statuses."""
    return replace(client, render_error=partial(_render, client))


def _render(client: Client, failure: Failure, request_id: str) -> ErrorResponse:
    error = {
        "code": failure.code or failure.kind.value,
        "message": failure.message,
        "field": None if failure.at is None else failure.at.removeprefix("/"),
        "request_id": request_id,
    }
    status = STATUSES.get(failure.code or "") or client.render_error(failure, request_id).status
    return ErrorResponse(status, msgspec.json.encode({"error": error}))
