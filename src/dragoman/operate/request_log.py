"""The log line of a finished request, as text or JSON."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from dragoman.operate.prices import Pricing
from dragoman.proxy.outcome import CANCELLED, OK, Outcome
from dragoman.translate.framing.redaction import MAX_LINE_BYTES, cut_text, one_line
from dragoman.translate.hub.usage import Usage

LOGGER = "dragoman.requests"
is_own_id = re.compile("req_[0-9a-f]{24}").fullmatch  # made by this gateway; a client's own may contain anything
MAX_ATTEMPTS_IN_LONG_LINE = 8
LONG_TEXTS = frozenset(("provider", "model", "requested_model", "route", "error_code", "failed_attempts"))
EMPTY = (None, "", ())
CACHE_SIZE = 1024  # models and clients, of which there are few

FormatLine = Callable[[Outcome, Pricing | None], str]


def format_text(outcome: Outcome, pricing: Pricing | None = None) -> str:
    """Return the line as text, without its cost; texts that clients or upstreams chose are redacted."""
    usage, seconds, request_id = outcome.usage, outcome.duration_s, outcome.request_id
    ttft = outcome.ttft_s if outcome.stream else None
    upstream_protocol = "" if outcome.passthrough else outcome.upstream_protocol
    protocols = _format_protocols(outcome.client_protocol, upstream_protocol)
    target = _format_target(outcome.provider, outcome.model, outcome.requested_model)
    code = f" code={_clean(outcome.error_code)}" if outcome.error_code else ""
    cached = f" cached={usage.cache_read}" if usage is not None and usage.cache_read else ""
    read = f" bytes={outcome.upstream_bytes} chunks={outcome.upstream_chunks}" if outcome.upstream_chunks else ""
    has_tools = outcome.tool_runs or (usage is not None and (usage.web_searches or usage.web_fetches))
    tools = _format_tools(outcome) if has_tools else ""
    tried = f" tried={','.join(_format_attempts(outcome))}" if outcome.failed_attempts else ""
    line = (
        f"{format_time(outcome.started_at + seconds)} info {LOGGER}:"
        f" {request_id if is_own_id(request_id) else one_line(request_id)}{protocols}{target}"
        f" {outcome.outcome}{code} {int(seconds * 1000 + 0.5)}ms"
        f"{'' if ttft is None else f' ttft={int(ttft * 1000 + 0.5)}ms'}"
        f"{'' if usage is None else f' in={usage.input} out={usage.output}{cached}'}{read}"
        f"{f' losses={outcome.losses}' if outcome.losses else ''}{tools}{tried}"
        f"{_format_client(outcome.key, outcome.client)}"
    )
    return line if len(line) * 4 <= MAX_LINE_BYTES else cut_text(line, MAX_LINE_BYTES)


@lru_cache(maxsize=CACHE_SIZE)
def _format_protocols(client_protocol: str, upstream_protocol: str) -> str:
    return f" {client_protocol}>{upstream_protocol}" if upstream_protocol else f" {client_protocol}"


@lru_cache(maxsize=CACHE_SIZE)
def _format_target(provider: str, model: str, requested_model: str) -> str:
    return f" {one_line((f'{provider}/{model}' if provider else requested_model) or '-')}"


@lru_cache(maxsize=CACHE_SIZE)
def _format_client(key: str, client: str) -> str:
    return f" key={key or '-'} client={one_line(client) or '-'}"


def format_json(outcome: Outcome, pricing: Pricing | None = None) -> str:
    """Return the line as JSON, with the same redaction; empty and unknown fields are omitted."""
    usage = outcome.usage or Usage()
    cost = outcome.charged_nano if pricing is None else pricing.cost_nano(outcome)
    known = outcome.usage is not None
    ttft, origin, cache = outcome.ttft_s, outcome.origin, outcome.cache_use
    fields: dict[str, object] = {
        "time": format_time(outcome.started_at + outcome.duration_s),
        "level": "info",
        "logger": LOGGER,
        "request_id": outcome.request_id if is_own_id(outcome.request_id) else one_line(outcome.request_id),
        "key": outcome.key,
        "user": _clean(outcome.user),
        "team": _clean(outcome.team),
        "session": _clean(origin.session),
        "agent": _clean(origin.agent),
        "parent_agent": _clean(origin.parent_agent),
        "tags": _clean(outcome.tags),
        "lease": outcome.lease,
        "client": _clean(outcome.client),
        "client_protocol": outcome.client_protocol,
        "upstream_protocol": outcome.upstream_protocol,
        "provider": _clean(outcome.provider),
        "model": _clean(outcome.model),
        "requested_model": _clean(outcome.requested_model),
        "route": _clean(outcome.route),
        "stream": outcome.stream,
        "input_tokens": usage.input if known else None,
        "cache_read_tokens": usage.cache_read if known else None,
        "cache_write_tokens": usage.cache_write if known else None,
        "cache_possible_tokens": cache.possible_tokens,
        "cache_miss": cache.miss,
        "cache_miss_path": _clean(cache.miss_path or ""),
        "cache_saved_nano_usd": None if pricing is None else pricing.saved_nano(outcome),
        "output_tokens": usage.output if known else None,
        "reasoning_tokens": usage.reasoning if known else None,
        "credits": usage.credits,
        "usage_source": usage.source.value if known else "",  # reported, derived or estimated
        "cost_usd": None if cost is None else cost / 10**9,
        "cost_nano_usd": cost,
        "ttft_ms": None if ttft is None else round(ttft * 1000, 3),
        "duration_ms": round(outcome.duration_s * 1000, 3),
        "upstream_bytes": outcome.upstream_bytes or None,  # of a stream
        "upstream_chunks": outcome.upstream_chunks or None,
        "outcome": outcome.outcome,
        "error_code": _clean(outcome.error_code or ""),
        "losses": outcome.losses,
        "attempts": outcome.attempts,
        "failed_attempts": _format_attempts(outcome),
        "rounds": outcome.rounds if outcome.tool_runs else None,  # where the gateway ran tools
        "web_searches": outcome.web_searches or None,
        "web_fetches": outcome.web_fetches or None,
        "run": outcome.run,  # of a resumable reply
        "client_request_id": _clean(outcome.client_request_id),
    }
    line = {name: value for name, value in fields.items() if value not in EMPTY}
    data = msgspec.json.encode(line)
    return (data if len(data) <= MAX_LINE_BYTES else _encode_shortened(line)).decode()


def _encode_shortened(line: dict[str, object]) -> bytes:
    """Shorten the longest texts of a line, so that it fits and stays valid JSON."""
    data, max_length = b"", 512
    while not data or (len(data) > MAX_LINE_BYTES and max_length > 16):
        max_length //= 2
        shortened = {name: _shorten(value, max_length) if name in LONG_TEXTS else value for name, value in line.items()}
        data = msgspec.json.encode(shortened)
    return data


def _shorten(value: object, max_length: int) -> object:
    if isinstance(value, tuple):
        return tuple(cut_text(attempt, max_length) for attempt in value[:MAX_ATTEMPTS_IN_LONG_LINE])
    return cut_text(str(value), max_length)


class RequestLog:
    """Writes one line for each request that has ended."""

    def __init__(self, format_line: FormatLine, write: Callable[[str], None]) -> None:
        self.pricing: Pricing | None = None  # of the configuration in use
        self._format_line = format_line
        self._write = write

    def observe(self, outcome: Outcome) -> None:
        self._write(self._format_line(outcome, self.pricing))


def format_time(since_epoch: float) -> str:
    """Return a time in UTC, with milliseconds."""
    milliseconds = int(since_epoch * 1000)
    return f"{_format_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


@lru_cache(maxsize=2)
def _format_second(since_epoch: int) -> str:
    return datetime.fromtimestamp(since_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _format_tools(outcome: Outcome) -> str:
    searches, fetches = outcome.web_searches, outcome.web_fetches
    failed = sum(run.result not in (OK, CANCELLED) for run in outcome.tool_runs)
    return (
        f"{f' searches={searches}' if searches else ''}{f' fetches={fetches}' if fetches else ''}"
        f"{f' failed_tools={failed}' if failed else ''}"
    )


def _format_attempts(outcome: Outcome) -> tuple[str, ...]:
    return tuple(f"{_clean(attempt.route)}:{attempt.why}" for attempt in outcome.failed_attempts)


_clean = lru_cache(maxsize=CACHE_SIZE)(one_line)
