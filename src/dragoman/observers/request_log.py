"""The outcome of a request comes in; the one line that the log holds of it goes out, readable or as JSON."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec
from msgspec import Struct

from dragoman.framing.redaction import MAX_LINE_BYTES, cut_text, one_line
from dragoman.hub.outcome import Outcome, OutcomeObserver
from dragoman.hub.usage import Usage

LOGGER = "dragoman.requests"
OWN_ID = re.compile("req_[0-9a-f]{24}")  # one that we have made; a client's may hold anything
CUT_FIELDS = ("provider", "model", "requested_model", "route", "error_code")  # where a line is too long
MOST_ATTEMPTS = 8  # that a line which is too long tells
REMEMBERED = 1024  # models and clients, which are few and come again and again


class LogLine(Struct, frozen=True, omit_defaults=True):
    """A request's line as JSON; what is empty or not known is left out."""

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


def readable(outcome: Outcome) -> str:
    """Only what was not said by us can hold a secret."""
    asked, usage, seconds = outcome.client_protocol, outcome.usage, outcome.duration_s
    way = asked if outcome.passthrough or not outcome.upstream_protocol else f"{asked}>{outcome.upstream_protocol}"
    first = outcome.ttft_s if outcome.stream else None
    route = _clean(outcome.route or outcome.requested_model or "-")
    cached = f" cached={usage.cache_read}" if usage is not None and usage.cache_read else ""
    tried = f" tried={','.join(_steps(outcome))}" if outcome.failed_attempts else ""
    code = f" code={_clean(outcome.error_code)}" if outcome.error_code else ""
    line = (
        f"{moment(outcome.started_at + seconds)} info {LOGGER}: {_id(outcome)} {way} {route} {outcome.outcome}"
        f"{code} {_ms(seconds)}ms"
        f"{'' if first is None else f' ttft={_ms(first)}ms'}"
        f"{'' if usage is None else f' in={usage.input} out={usage.output}{cached}'}"
        f"{f' losses={outcome.losses}' if outcome.losses else ''}{tried}"
        f" key={outcome.key or '-'} client={_clean(outcome.client) or '-'}"
    )
    return cut_text(line, MAX_LINE_BYTES)


def as_json(outcome: Outcome) -> str:
    usage = outcome.usage or Usage()
    known = outcome.usage is not None
    first = outcome.ttft_s
    line = LogLine(
        time=moment(outcome.started_at + outcome.duration_s),
        level="info",
        logger=LOGGER,
        request_id=_id(outcome),
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
        ttft_ms=None if first is None else round(first * 1000, 3),
        duration_ms=round(outcome.duration_s * 1000, 3),
        outcome=outcome.outcome,
        error_code=_clean(outcome.error_code or ""),
        losses=outcome.losses,
        attempts=len(outcome.failed_attempts) + bool(outcome.provider),
        failed_attempts=_steps(outcome),
    )
    data = msgspec.json.encode(line)
    return (data if len(data) <= MAX_LINE_BYTES else _shortened(line)).decode()


def _shortened(line: LogLine) -> bytes:
    """The line with its longest texts cut, so that it fits and stays JSON."""
    data, most = b"", 512
    while not data or (len(data) > MAX_LINE_BYTES and most > 16):
        most //= 2
        texts = {name: cut_text(str(getattr(line, name)), most) for name in CUT_FIELDS}
        attempts = tuple(cut_text(step, most) for step in line.failed_attempts[:MOST_ATTEMPTS])
        data = msgspec.json.encode(msgspec.structs.replace(line, **texts, failed_attempts=attempts))
    return data


def request_log(form: Callable[[Outcome], str], write: Callable[[str], None]) -> OutcomeObserver:
    """An observer that writes one line for each request."""

    def observe(outcome: Outcome) -> None:
        write(form(outcome))

    return observe


def moment(since_epoch: float) -> str:
    milliseconds = int(since_epoch * 1000)
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


@lru_cache(maxsize=2)
def _second(since_epoch: int) -> str:
    return datetime.fromtimestamp(since_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _steps(outcome: Outcome) -> tuple[str, ...]:
    return tuple(f"{_clean(step.route)}:{step.why}" for step in outcome.failed_attempts)


def _ms(seconds: float) -> int:
    return int(seconds * 1000 + 0.5)


def _id(outcome: Outcome) -> str:
    return outcome.request_id if OWN_ID.fullmatch(outcome.request_id) else one_line(outcome.request_id)


_clean = lru_cache(maxsize=REMEMBERED)(one_line)
