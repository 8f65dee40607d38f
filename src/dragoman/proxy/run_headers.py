"""What the head of a request says about runs: the one that it resumes or repeats, and what becomes of its own."""

import re
from functools import partial
from hashlib import blake2b
from zlib import crc32

from msgspec import Struct

from dragoman.config.settings import ResponsesSettings
from dragoman.net.body_threads import run_off_loop
from dragoman.net.headers import Headers
from dragoman.net.http_request import HttpRequest
from dragoman.state.parked_run import OnDisconnect
from dragoman.translate.framing.numbers import parse_number
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.protocols import REPLY_CHOICES

PARK, RESUME, LAST_EVENT = b"x-dragoman-park", b"x-dragoman-resume", b"last-event-id"
KEY, RETRY_COUNT = b"idempotency-key", b"x-stainless-retry-count"
POLICIES: dict[bytes, OnDisconnect] = {b"0": "cancel", b"1": "park", b"drain": "drain"}  # by the value of PARK
OWN_CHOICES = (b"x-dragoman-explain", b"x-dragoman-strict", b"x-dragoman-fallback-model")
ANSWER_HEADERS = (*REPLY_CHOICES, *OWN_CHOICES, b"accept", b"content-encoding")
_CURSOR = re.compile(rb"(run_[0-9a-f]{48}):(-1|[0-9]{1,9})")


class Cursor(Struct, frozen=True):
    """Where a request resumes a run."""

    run: str
    after: int  # the index of the last event that the client has; -1: none
    with_ids: bool  # it reads the ids of events


def read_cursor(headers: Headers) -> Cursor:
    """Return where a request resumes a run. Raises RequestError if it cannot be read."""
    given = headers.get(RESUME)
    with_ids = given is None
    if given is None:
        given = headers.get(LAST_EVENT) or b""
    found = _CURSOR.fullmatch(given)
    if found is None:
        raise make_unknown_run(given[:80].decode("latin-1"))
    return Cursor(found[1].decode(), int(found[2]), with_ids)


def find_worker(request: HttpRequest, tenant: str, count: int) -> int | None:
    """Return which of `count` workers has the run that a request resumes, or runs what has its idempotency key.

    None if the request names neither, or a run that no worker has.
    """
    resumed = request.headers.get(RESUME) or request.headers.get(LAST_EVENT)
    if resumed is not None:
        found = _CURSOR.fullmatch(resumed)
        worker = count if found is None else int(found[1][4:6], 16)
        return worker if worker < count else None
    key = request.headers.get(KEY)
    if key is None:
        return None
    return crc32(b"%b\0%b\0%b" % (tenant.encode(), request.path.encode(errors="surrogatepass"), key)) % count


def names_run(headers: Headers) -> bool:
    """Return whether a request asks for the reply of a run that it names."""
    return headers.get(RESUME) is not None or headers.get(LAST_EVENT) is not None


def choose_policy(headers: Headers, settings: ResponsesSettings) -> OnDisconnect | None:
    """Return what happens to a reply whose client leaves: as the request says, else as the configuration does.

    None: the reply is cancelled, and needs no run.
    """
    key, requested, policy = headers.get(KEY), headers.get(PARK), settings.on_disconnect
    if key is None:
        policy = policy if requested is None else POLICIES.get(requested, policy)
        return None if policy == "cancel" else policy
    return POLICIES.get(requested or b"", "park" if policy == "cancel" else policy)


def is_retry(headers: Headers, settings: ResponsesSettings) -> bool:
    """Whether a request may be the retry of one whose client left. Clients of most SDKs count their retries."""
    count = headers.get(RETRY_COUNT)
    return settings.join_unmarked_retries if count is None else bool(parse_number(count.decode("latin-1")))


async def digest_request(request: HttpRequest) -> bytes:
    """Return a digest of everything that decides the answer to a request.

    Its body counts as it was sent: other workers have not unpacked it.
    """
    body = await request.body()
    return await run_off_loop(len(body), partial(_digest_parts, request, body))


def _digest_parts(request: HttpRequest, body: bytes) -> bytes:
    fields = [request.headers.get(name) or b"" for name in ANSWER_HEADERS]
    parts = (request.method.encode(), request.path.encode(), request.query.encode(), *fields, body)
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def make_unknown_run(id: str, *, may_be_elsewhere: bool = False) -> RequestError:
    """Return what a request gets that names no run; `may_be_elsewhere`: on a replica that is not asked."""
    message = f"Run {id!r} not found. It may have expired; send the request again."
    if may_be_elsewhere:
        message = (
            f"Run {id!r} not found. It may have expired, or be on another replica: without store.shared, a run is "
            "found on the replica that makes it only. Send the request again."
        )
    return RequestError(Failure(Kind.NOT_FOUND, message, code="run_not_found"))
