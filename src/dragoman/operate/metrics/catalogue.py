"""The definition of every metric; a test compares docs/metrics.md with it."""

from enum import Enum

from msgspec import Struct

# The bounds of the OpenTelemetry conventions for generative AI.
TOKEN_BOUNDS = tuple(float(4**power) for power in range(14))
DURATION_BOUNDS = tuple(round(0.01 * 2**power, 2) for power in range(14))
FIRST_TOKEN_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TIME_PER_TOKEN_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

MODEL_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
OUTCOME_LABELS = (*MODEL_LABELS, "error_type")
PROTOCOL_LABELS = ("client_protocol", "upstream_protocol", "provider")


class Type(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Aggregation(Enum):
    """How the readings of several workers are combined."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Buckets(Struct, frozen=True):
    """What a histogram counts in which buckets."""

    unit: str  # as OpenTelemetry spells it
    bounds: tuple[float, ...]


class Family(Struct, frozen=True):
    """A metric with all its series."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of a histogram, without +Inf
    aggregation: Aggregation = Aggregation.SUM
    otel: str = ""  # its name in OTLP
    unit: str = ""  # as OpenTelemetry spells it


def _counter(name: str, help: str, *labels: str) -> Family:
    return Family(name, Type.COUNTER, help, labels)


def _gauge(name: str, help: str, *labels: str, aggregation: Aggregation = Aggregation.SUM) -> Family:
    return Family(name, Type.GAUGE, help, labels, aggregation=aggregation)


def _histogram(otel: str, buckets: Buckets, help: str, labels: tuple[str, ...]) -> Family:
    name = otel.replace(".", "_") + ("_seconds" if buckets.unit == "s" else "")
    return Family(name, Type.HISTOGRAM, help, labels, buckets.bounds, otel=otel, unit=buckets.unit)


TOKEN_USAGE = _histogram(
    "gen_ai.client.token.usage",
    Buckets("{token}", TOKEN_BOUNDS),
    "Tokens of a request, by type; estimated if the upstream reported no counts.",
    (*MODEL_LABELS, "gen_ai_token_type"),
)
OPERATION_DURATION = _histogram(
    "gen_ai.client.operation.duration",
    Buckets("s", DURATION_BOUNDS),
    "Time from a client's request to the end of its reply, if it reached an upstream.",
    OUTCOME_LABELS,
)
REQUEST_DURATION = _histogram(
    "gen_ai.server.request.duration",
    Buckets("s", DURATION_BOUNDS),
    "Time from a client's request to the end of its reply, with or without an upstream.",
    OUTCOME_LABELS,
)
FIRST_TOKEN = _histogram(
    "gen_ai.server.time_to_first_token",
    Buckets("s", FIRST_TOKEN_BOUNDS),
    "Time from a client's request to the first token of its streamed reply.",
    MODEL_LABELS,
)
TIME_PER_TOKEN = _histogram(
    "gen_ai.server.time_per_output_token",
    Buckets("s", TIME_PER_TOKEN_BOUNDS),
    "Time between output tokens after the first, in streamed replies that succeeded.",
    MODEL_LABELS,
)

REQUESTS = _counter("dragoman_requests_total", "Inference requests that have ended.", *PROTOCOL_LABELS, "outcome")
ANSWERED = _counter("dragoman_requests_answered_total", "Inference requests whose reply was sent completely.")
REFUSED = _counter("dragoman_requests_refused_total", "Requests of any kind answered with an error.")
TOKENS = _counter(
    "dragoman_tokens_total",
    "Tokens by provider and model; cache_read and cache_write are included in input, reasoning in output.",
    *("provider", "model", "type", "source"),
)
CACHE_POSSIBLE = _counter(
    "dragoman_cache_possible_tokens_total",
    "Input tokens that prompt caches could have had, of translated requests.",
    *("provider", "model"),
)
CACHE_MISSES = _counter(
    "dragoman_cache_misses_total",
    "Requests of which the prompt cache had less than nine tenths of what it could, by the first cause that fits.",
    *("provider", "model", "cause"),
)
GUARD_TRIPS = _counter(
    "dragoman_guard_trips_total", "Times that the grammar guard corrected an illegal order of events."
)
LEARNED = _counter(
    "dragoman_learned_total", "Rules that each worker has learned from the rejections of upstreams.", "rule"
)
LOSSES = _counter("dragoman_losses_total", "Losses recorded while translating requests.", *PROTOCOL_LABELS, "how")
RETRIES = _counter(
    "dragoman_retries_total", "Failed attempts after which the same target was tried again.", "provider", "why"
)
FALLBACKS = _counter(
    "dragoman_fallbacks_total", "Failed attempts after which another target was tried.", "provider", "why"
)
TOOL_RUNS = _counter(
    "dragoman_tool_runs_total",
    "Web searches and fetches that the gateway ran, by backend; result is ok, cancelled or an error code.",
    *("tool", "backend", "result"),
)
TOOL_DURATION = Family(
    "dragoman_tool_duration_seconds",
    Type.HISTOGRAM,
    "Time that a web search or fetch of the gateway took.",
    ("tool", "backend"),
    bounds=DURATION_BOUNDS,
)
IN_PROGRESS = _gauge("dragoman_requests_under_way", "Inference requests in progress.")
STREAMS = _gauge("dragoman_streams_live", "Streamed replies in progress.")
CONNECTIONS = _gauge("dragoman_connections", "Open client connections.")
LOOP_LAG = Family(
    "dragoman_loop_lag_seconds",
    Type.HISTOGRAM,
    "Delay with which the event loop woke a sleeping task, measured twice a second.",
    bounds=LAG_BOUNDS,
)
COOLING_DOWN = "cooling_down"  # a state of POOL_CREDENTIALS
POOL_CREDENTIALS = _gauge(
    "dragoman_pool_credentials",
    "Credentials of a provider by state: available or cooling_down.",
    *("provider", "state"),
    aggregation=Aggregation.MAX,
)
LIMIT_USED = _gauge(
    "dragoman_provider_limit_used_ratio",
    "Used share of a provider's limit, if it reports one; 1 is all of it.",
    *("provider", "window"),
    aggregation=Aggregation.MAX,
)
USAGE_WAITING = _gauge("dragoman_usage_rows_waiting", "Usage rows not stored yet.")
USAGE_WRITTEN = _counter("dragoman_usage_rows_written_total", "Usage rows stored.")
USAGE_DROPPED = _counter(
    "dragoman_usage_rows_dropped_total", "Usage rows dropped because the store did not accept them."
)
RESPONSES_STORED = _counter(
    "dragoman_responses_stored_total", "Responses whose storing succeeded (kept) or failed (not_kept).", "result"
)
BACKGROUND = _counter(
    "dragoman_background_responses_total", "Background responses that have come to this status.", "status"
)
BACKGROUND_RUNNING = _gauge("dragoman_background_responses_running", "Background responses that run now.")
RUNS_PARKED = _gauge("dragoman_runs_parked", "Resumable replies in memory, in progress or ended.")
RUNS_BYTES = _gauge("dragoman_runs_parked_bytes", "Memory that resumable replies occupy.")
RUNS_JOINED = _counter("dragoman_runs_joined_total", "Requests that got the reply of an earlier one.", "by")
CAPTURES_WRITTEN = _counter("dragoman_capture_files_written_total", "Captures written.")
CAPTURES_DROPPED = _counter(
    "dragoman_capture_files_dropped_total", "Captures dropped because the disk or the queue was full."
)
LIMITS_WAITING = _gauge("dragoman_limits_waiting", "Requests that wait in line for what others have reserved.")
LIMIT_WARNINGS = _counter(
    "dragoman_limit_warnings_total",
    "Limits that reached this percentage of what they allow, once in a window.",
    "percent",
)
BUDGET_DRIFT = _gauge(
    "dragoman_budget_drift",
    "Largest difference between a limit's counter and its usage rows at the last comparison, as a share.",
    aggregation=Aggregation.MAX,
)
SHARED_STATE = _gauge(
    "dragoman_shared_state",
    "Whether a part of what gateways share answers (1): shared is the server of store.shared, store is PostgreSQL.",
    "part",
    aggregation=Aggregation.MIN,
)
SPANS_SENT = _counter("dragoman_otlp_spans_sent_total", "Spans accepted by the OTLP collector.")
SPANS_DROPPED = _counter(
    "dragoman_otlp_spans_dropped_total", "Spans dropped because the OTLP collector was unavailable or too slow."
)
RELOADS = _counter(
    "dragoman_config_reloads_total",
    "Edited configurations that each worker applied (good) or rejected (bad).",
    "result",
)
OBSERVER_FAILURES = _counter("dragoman_observer_failures_total", "Exceptions raised by observers of finished requests.")
WORKERS = _gauge("dragoman_workers", "Worker processes included in this response.")
BUILD_INFO = _gauge(
    "dragoman_build_info",
    "Always 1; the labels name the running versions.",
    "version",
    "python",
    aggregation=Aggregation.MAX,
)
START_TIME = _gauge(
    "process_start_time_seconds",
    "Start time of the oldest worker, in seconds since the epoch.",
    aggregation=Aggregation.MIN,
)
MEMORY = _gauge("process_resident_memory_bytes", "Resident memory of all workers.")
OPEN_FILES = _gauge("process_open_fds", "Open file descriptors of all workers.")

CATALOGUE: dict[str, Family] = {
    family.name: family
    for family in (
        *(REQUESTS, ANSWERED, REFUSED, IN_PROGRESS, STREAMS, CONNECTIONS),
        *(REQUEST_DURATION, OPERATION_DURATION, FIRST_TOKEN, TIME_PER_TOKEN, TOKEN_USAGE, TOKENS),
        *(CACHE_POSSIBLE, CACHE_MISSES, LOSSES, LEARNED, GUARD_TRIPS, RETRIES, FALLBACKS, POOL_CREDENTIALS, LIMIT_USED),
        *(TOOL_RUNS, TOOL_DURATION),
        *(LOOP_LAG, USAGE_WAITING, USAGE_WRITTEN, USAGE_DROPPED, RESPONSES_STORED, RUNS_PARKED),
        *(RUNS_BYTES, RUNS_JOINED, BACKGROUND, BACKGROUND_RUNNING),
        *(LIMITS_WAITING, LIMIT_WARNINGS, BUDGET_DRIFT, SHARED_STATE),
        *(CAPTURES_WRITTEN, CAPTURES_DROPPED),
        *(SPANS_SENT, SPANS_DROPPED, OBSERVER_FAILURES, RELOADS, WORKERS, BUILD_INFO, START_TIME, MEMORY, OPEN_FILES),
    )
}
