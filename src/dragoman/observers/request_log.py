"""The log line of a finished request, as text or JSON."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.framing.redaction import MAX_LINE_BYTES, cut_text, one_line
from dragoman.hub.outcome import CANCELLED, OK, Outcome, OutcomeObserver
from dragoman.hub.usage import Usage

LOGGER = "dragoman.requests"
OWN_ID = re.compile("req_[0-9a-f]{24}")  # an id made by this gateway; a client's own may contain anything
MAX_ATTEMPTS_IN_LONG_LINE = 8
CACHE_SIZE = 1024  # models and clients, of which there are few


class LogLine(Struct, frozen=True, omit_defaults=True):
    """A request's line as JSON; empty and unknown fields are omitted."""

    time: str
    level: str
    logger: str
    request_id: str
    key: str = ""
    client: str = ""
    client_protocol: str = ""
    upstream_protocol: str = ""
    provider: str = ""
    model: str = ""
    requested_model: str = ""
    route: str = ""
    stream: bool | None = None
    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    credits: float | None = None
    usage_source: str = ""  # reported, derived or estimated
    ttft_ms: float | None = None
    duration_ms: float | None = None
    outcome: str = ""
    error_code: str = ""
    losses: int | None = None
    attempts: int | None = None
    failed_attempts: tuple[str, ...] = ()
    rounds: int | None = None  # where the gateway ran tools
    web_searches: int = 0
    web_fetches: int = 0
    run: str = ""  # of a resumable reply


def format_text(outcome: Outcome) -> str:
    """Return the line as text; texts that clients or upstreams chose are redacted."""
    protocols, usage, seconds = outcome.client_protocol, outcome.usage, outcome.duration_s
    if outcome.upstream_protocol and not outcome.passthrough:
        protocols = f"{protocols}>{outcome.upstream_protocol}"
    ttft = outcome.ttft_s if outcome.stream else None
    route = _clean(outcome.route or outcome.requested_model or "-")
    cached = f" cached={usage.cache_read}" if usage is not None and usage.cache_read else ""
    tried = f" tried={','.join(_format_attempts(outcome))}" if outcome.failed_attempts else ""
    code = f" code={_clean(outcome.error_code)}" if outcome.error_code else ""
    line = (
        f"{format_time(outcome.started_at + seconds)} info {LOGGER}: {_clean_id(outcome)} {protocols} {route}"
        f" {outcome.outcome}{code} {_round_ms(seconds)}ms"
        f"{'' if ttft is None else f' ttft={_round_ms(ttft)}ms'}"
        f"{'' if usage is None else f' in={usage.input} out={usage.output}{cached}'}"
        f"{f' losses={outcome.losses}' if outcome.losses else ''}{_format_tools(outcome)}{tried}"
        f" key={outcome.key or '-'} client={_clean(outcome.client) or '-'}"
    )
    return cut_text(line, MAX_LINE_BYTES)


def format_json(outcome: Outcome) -> str:
    """Return the line as JSON, with the same redaction."""
    usage = outcome.usage or Usage()
    known = outcome.usage is not None
    ttft = outcome.ttft_s
    line = LogLine(
        time=format_time(outcome.started_at + outcome.duration_s),
        level="info",
        logger=LOGGER,
        request_id=_clean_id(outcome),
        key=outcome.key,
        client=_clean(outcome.client),
        client_protocol=outcome.client_protocol,
        upstream_protocol=outcome.upstream_protocol,
        provider=_clean(outcome.provider),
        model=_clean(outcome.model),
        requested_model=_clean(outcome.requested_model),
        route=_clean(outcome.route),
        stream=outcome.stream,
        input_tokens=usage.input if known else None,
        cache_read_tokens=usage.cache_read if known else None,
        cache_write_tokens=usage.cache_write if known else None,
        output_tokens=usage.output if known else None,
        reasoning_tokens=usage.reasoning if known else None,
        credits=usage.credits,
        usage_source=usage.source.value if known else "",
        ttft_ms=None if ttft is None else round(ttft * 1000, 3),
        duration_ms=round(outcome.duration_s * 1000, 3),
        outcome=outcome.outcome,
        error_code=_clean(outcome.error_code or ""),
        losses=outcome.losses,
        attempts=outcome.attempts,
        failed_attempts=_format_attempts(outcome),
        rounds=outcome.rounds if outcome.tool_runs else None,
        web_searches=outcome.web_searches,
        web_fetches=outcome.web_fetches,
        run=outcome.run,
    )
    data = msgspec.json.encode(line)
    return (data if len(data) <= MAX_LINE_BYTES else _encode_shortened(line)).decode()


def _encode_shortened(line: LogLine) -> bytes:
    """Shorten the longest texts of a line, so that it fits and stays valid JSON."""
    data, max_length = b"", 512
    while not data or (len(data) > MAX_LINE_BYTES and max_length > 16):
        max_length //= 2
        attempts = tuple(cut_text(attempt, max_length) for attempt in line.failed_attempts[:MAX_ATTEMPTS_IN_LONG_LINE])
        shortened = replace(
            line,
            provider=cut_text(line.provider, max_length),
            model=cut_text(line.model, max_length),
            requested_model=cut_text(line.requested_model, max_length),
            route=cut_text(line.route, max_length),
            error_code=cut_text(line.error_code, max_length),
            failed_attempts=attempts,
        )
        data = msgspec.json.encode(shortened)
    return data


def make_request_log(format_line: Callable[[Outcome], str], write: Callable[[str], None]) -> OutcomeObserver:
    """Return an observer that writes one line for each request."""

    def observe(outcome: Outcome) -> None:
        write(format_line(outcome))

    return observe


def format_time(since_epoch: float) -> str:
    """Return a time in UTC, with milliseconds."""
    milliseconds = int(since_epoch * 1000)
    return f"{_format_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


@lru_cache(maxsize=2)
def _format_second(since_epoch: int) -> str:
    return datetime.fromtimestamp(since_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _format_tools(outcome: Outcome) -> str:
    usage = outcome.usage
    if not outcome.tool_runs and (usage is None or not (usage.web_searches or usage.web_fetches)):
        return ""
    searches, fetches = outcome.web_searches, outcome.web_fetches
    failed = sum(run.result not in (OK, CANCELLED) for run in outcome.tool_runs)
    return (
        f"{f' searches={searches}' if searches else ''}{f' fetches={fetches}' if fetches else ''}"
        f"{f' failed_tools={failed}' if failed else ''}"
    )


def _format_attempts(outcome: Outcome) -> tuple[str, ...]:
    return tuple(f"{_clean(attempt.route)}:{attempt.why}" for attempt in outcome.failed_attempts)


def _round_ms(seconds: float) -> int:
    return int(seconds * 1000 + 0.5)


def _clean_id(outcome: Outcome) -> str:
    return outcome.request_id if OWN_ID.fullmatch(outcome.request_id) else one_line(outcome.request_id)


_clean = lru_cache(maxsize=CACHE_SIZE)(one_line)
