"""Every metric there is: its name, type, labels and what it says; docs/metrics.md is checked against this."""

from enum import Enum

from msgspec import Struct

# The bounds of the OpenTelemetry conventions for generative AI.
TOKEN_BOUNDS = tuple(float(4**power) for power in range(14))
DURATION_BOUNDS = tuple(round(0.01 * 2**power, 2) for power in range(14))
FIRST_TOKEN_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TOKEN_PACE_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

MODEL_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
ENDED_LABELS = (*MODEL_LABELS, "error_type")
WAY_LABELS = ("client_protocol", "upstream_protocol", "provider")


class Type(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Joint(Enum):
    """What several workers' readings of one metric make together."""

    SUM = "sum"
    MOST = "most"
    LEAST = "least"


class Family(Struct, frozen=True):
    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram; +Inf is understood
    joint: Joint = Joint.SUM
    otel: str = ""  # its name where it is exported over OTLP
    unit: str = ""  # in OpenTelemetry's spelling


def _counter(name: str, help: str, *labels: str) -> Family:
    return Family(name, Type.COUNTER, help, labels)


def _gauge(name: str, help: str, *labels: str, joint: Joint = Joint.SUM) -> Family:
    return Family(name, Type.GAUGE, help, labels, joint=joint)


def _histogram(otel: str, unit: str, help: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> Family:
    name = otel.replace(".", "_") + ("_seconds" if unit == "s" else "")
    return Family(name, Type.HISTOGRAM, help, labels, bounds, otel=otel, unit=unit)


TOKEN_USAGE = _histogram(
    "gen_ai.client.token.usage",
    "{token}",
    "Tokens of a request, by type; requests whose upstream told no counts are estimated.",
    (*MODEL_LABELS, "gen_ai_token_type"),
    TOKEN_BOUNDS,
)
OPERATION_DURATION = _histogram(
    "gen_ai.client.operation.duration",
    "s",
    "From a client's request to the end of the reply, where an upstream was asked.",
    ENDED_LABELS,
    DURATION_BOUNDS,
)
REQUEST_DURATION = _histogram(
    "gen_ai.server.request.duration",
    "s",
    "From a client's request to the end of the reply, whoever gave it.",
    ENDED_LABELS,
    DURATION_BOUNDS,
)
FIRST_TOKEN = _histogram(
    "gen_ai.server.time_to_first_token",
    "s",
    "From a client's request to the first token of a streamed reply.",
    MODEL_LABELS,
    FIRST_TOKEN_BOUNDS,
)
TOKEN_PACE = _histogram(
    "gen_ai.server.time_per_output_token",
    "s",
    "Between tokens after the first, in streamed replies that ended well.",
    MODEL_LABELS,
    TOKEN_PACE_BOUNDS,
)

REQUESTS = _counter("dragoman_requests_total", "Inference requests that have ended.", *WAY_LABELS, "outcome")
ANSWERED = _counter("dragoman_requests_answered_total", "Inference requests whose reply was sent to its end.")
REFUSED = _counter("dragoman_requests_refused_total", "Requests of any kind answered with an error.")
TOKENS = _counter(
    "dragoman_tokens_total",
    "Tokens by provider and model; cache_read and cache_write are parts of input, reasoning of output.",
    *("provider", "model", "type", "source"),
)
TRIPS = _counter("dragoman_guard_trips_total", "Times that the grammar guard made an illegal order of events legal.")
LOSSES = _counter("dragoman_losses_total", "Entries in the ledgers of translated requests.", *WAY_LABELS, "how")
RETRIES = _counter(
    "dragoman_retries_total", "Failed attempts after which the same target was asked again.", "provider", "why"
)
FALLBACKS = _counter(
    "dragoman_fallbacks_total", "Failed attempts after which another target was asked.", "provider", "why"
)
UNDER_WAY = _gauge("dragoman_requests_under_way", "Inference requests being answered.")
STREAMS = _gauge("dragoman_streams_live", "Streamed replies on their way to a client.")
CONNECTIONS = _gauge("dragoman_connections", "Open client connections.")
LAG = Family(
    "dragoman_loop_lag_seconds",
    Type.HISTOGRAM,
    "How much later than asked for the event loop woke a sleeper, probed twice a second.",
    bounds=LAG_BOUNDS,
)
POOL = _gauge(
    "dragoman_pool_credentials",
    "Credentials of a provider that are available, and those that are cooling_down.",
    *("provider", "state"),
    joint=Joint.MOST,
)
LIMITS = _gauge(
    "dragoman_provider_limit_used_ratio",
    "How much of a provider's limit is used, where it tells: 1 is all of it.",
    *("provider", "window"),
    joint=Joint.MOST,
)
USAGE_WAITING = _gauge("dragoman_usage_rows_waiting", "Usage rows not yet in the store.")
USAGE_WRITTEN = _counter("dragoman_usage_rows_written_total", "Usage rows put into the store.")
USAGE_DROPPED = _counter(
    "dragoman_usage_rows_dropped_total", "Usage rows given up because the store could not take them."
)
CAPTURES_WRITTEN = _counter("dragoman_capture_files_written_total", "Captures written.")
CAPTURES_DROPPED = _counter(
    "dragoman_capture_files_dropped_total", "Captures given up: the disk or the queue was full."
)
SPANS_SENT = _counter("dragoman_otlp_spans_sent_total", "Spans that the OTLP collector took.")
SPANS_DROPPED = _counter("dragoman_otlp_spans_dropped_total", "Spans given up: the collector was away or too slow.")
RELOADS = _counter(
    "dragoman_config_reloads_total", "Edited configurations, taken over (good) or not (bad), per worker.", "result"
)
UNOBSERVED = _counter("dragoman_observer_failures_total", "Times that an observer failed on a request's outcome.")
WORKERS = _gauge("dragoman_workers", "Processes that this answer speaks for.")
BUILD = _gauge("dragoman_build_info", "Always 1; the labels say what runs.", "version", "python", joint=Joint.MOST)
STARTED = _gauge("process_start_time_seconds", "When the oldest worker started, since the epoch.", joint=Joint.LEAST)
MEMORY = _gauge("process_resident_memory_bytes", "Resident memory of all workers.")
FILES = _gauge("process_open_fds", "Open file descriptors of all workers.")

CATALOGUE: dict[str, Family] = {
    family.name: family
    for family in (
        *(REQUESTS, ANSWERED, REFUSED, UNDER_WAY, STREAMS, CONNECTIONS),
        *(REQUEST_DURATION, OPERATION_DURATION, FIRST_TOKEN, TOKEN_PACE, TOKEN_USAGE, TOKENS),
        *(LOSSES, TRIPS, RETRIES, FALLBACKS, POOL, LIMITS),
        *(LAG, USAGE_WAITING, USAGE_WRITTEN, USAGE_DROPPED, CAPTURES_WRITTEN, CAPTURES_DROPPED),
        *(SPANS_SENT, SPANS_DROPPED, UNOBSERVED, RELOADS, WORKERS, BUILD, STARTED, MEMORY, FILES),
    )
}
