"""The settings: frozen structs for all sections of the configuration, with their defaults and limits."""

import ipaddress
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct, field

from dragoman.config.limits import LimitValues
from dragoman.config.problems import quote_choices, suggest
from dragoman.config.secret import Secret, SecretSource

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Lease = Annotated[float, Meta(ge=2.0)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Wait = Annotated[float, Meta(ge=0, le=86_400)]
Megabytes = Annotated[float, Meta(gt=0, le=4096)]
Days = Annotated[float, Meta(gt=0, le=3650)]
Dollars = Annotated[float, Meta(ge=0, le=1_000_000)]
Name = Annotated[str, Meta(min_length=1)]


class HttpRule(Enum):
    """Why a setting cannot be changed over HTTP; `operate/configuration/change.py` enforces it."""

    FILE_ONLY = "it names a program, a file, a database or a webhook"
    ACCOUNT = "it names a stored account, which is used even where it is not set"
    ADDRESS = "credentials are sent there"  # only with credentials that are rewritten


FileOnlyPath = Annotated[Path, HttpRule.FILE_ONLY]
FileOnlyName = Annotated[Name, HttpRule.FILE_ONLY]
Command = Annotated[tuple[Name, ...], HttpRule.FILE_ONLY]
AccountSource = Annotated[SecretSource | None, HttpRule.ACCOUNT]
Address = Annotated[str | None, HttpRule.ADDRESS]
AddressPart = Annotated[Name, HttpRule.ADDRESS]

ProviderKind = Literal["anthropic", "openai", "openai-compatible", "codex", "copilot", "gemini", "kiro", "echo"]
ProtocolName = Literal["chat", "responses", "messages", "gemini"]
Quirk = Literal[
    "max_tokens",
    "no_developer",
    "no_custom_tools",
    "plain",
    "replay_reasoning",
    "json_object_schema",
    "no_required",
    "text_content",
    "needs_parameters",
    "cut_then_done",
    "no_stream_options",
    "short_call_ids",
    "leading_system",
]
# The paths of OpenAI's API, below /v1, that pass unchanged: translate/protocols/relayed_paths.py.
PathName = Literal[
    "embeddings",
    "completions",
    "moderations",
    "rerank",
    "images/generations",
    "images/edits",
    "images/variations",
    "audio/speech",
    "audio/transcriptions",
    "audio/translations",
]
ThinkingEffort = Literal["low", "medium", "high"]
MAX_BUDGET = 1_000_000
DefaultThinking = ThinkingEffort | Annotated[int, Meta(ge=1, le=MAX_BUDGET)]  # an effort, or a budget in tokens
CacheSetting = Literal["auto", "client", "off"]
CacheTtl = Literal["auto", "5m", "1h"]
# Known to upstreams/api_key.py.
ServerName = Literal["llama-cpp-python", "llama.cpp", "ollama", "vllm", "deepseek", "mistral"]


THINKING_EFFORTS: tuple[ThinkingEffort, ...] = get_args(ThinkingEffort)


def parse_thinking(value: str | int) -> DefaultThinking:
    """Return an effort or a budget that is not from the file; raises ValueError with what is right."""
    text = str(value)[:80]
    if text in THINKING_EFFORTS:
        return THINKING_EFFORTS[THINKING_EFFORTS.index(text)]
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_BUDGET:
        return int(text)
    right = f"one of {quote_choices(THINKING_EFFORTS)}, or a budget of 1 to {MAX_BUDGET} tokens"
    raise ValueError(f"expected {right}, got {text!r}{suggest(text, THINKING_EFFORTS)}")


class ServerSettings(Struct, frozen=True, kw_only=True):
    """The listening address, timeouts and limits."""

    host: Name = "127.0.0.1"
    port: Port = 8484
    first_token_timeout_s: Seconds = 300.0  # before the first token: longest time without any data
    token_timeout_s: Seconds = 900.0  # longest time without a token, even if other data arrives
    idle_timeout_s: Seconds = 300.0  # after the first token: longest time without any data
    drain_s: Wait = 120.0
    max_body_mb: Megabytes = 32.0
    max_body_values: Count = 100_000  # JSON values in a request: numbers, strings, objects, arrays and so on
    max_buffered_mb: Megabytes = 512.0  # of all requests and whole replies in memory at the same time
    max_requests: Count = 4096  # concurrent requests
    keep_alive_s: Seconds = 15.0
    allowed_hosts: tuple[Name, ...] = ()
    responses_done: bool = True

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 1024 * 1024)

    @property
    def max_buffered_bytes(self) -> int:
        return int(self.max_buffered_mb * 1024 * 1024)


class Retry(Struct, frozen=True):
    """Retries of a request before the first byte of the reply."""

    attempts: Annotated[int, Meta(ge=1, le=20)] = 3
    base_s: Wait = 1.0
    max_wait_s: Wait = 5.0
    continue_streams: bool = False  # continue an interrupted stream at the next target


class Debug(Struct, frozen=True):
    """Captures of requests for later inspection."""

    capture: Literal["off", "errors", "all"] = "off"
    directory: FileOnlyPath = Path("~/.local/share/dragoman/captures")
    keep: Count = 200  # captures; the oldest are removed first
    max_mb: Megabytes = 200.0  # of all captures
    max_days: Days = 14.0  # older captures are removed

    @property
    def max_bytes(self) -> int:
        return int(self.max_mb * 1024 * 1024)

    @property
    def max_age_s(self) -> float:
        return self.max_days * 86_400


class ConsoleSettings(Struct, frozen=True):
    """The web console."""

    enabled: bool | None = None  # None: only if no other machine can reach the gateway
    trusted_proxies: tuple[Name, ...] = ()  # addresses or networks of reverse proxies whose x-forwarded-proto counts


class StoreSettings(Struct, frozen=True):
    """The database of keys and usage."""

    url: FileOnlyName = "sqlite:///~/.local/share/dragoman/dragoman.db"
    shared: Annotated[SecretSource | None, HttpRule.FILE_ONLY] = None
    usage_days: Days | None = None  # older rows of usage are removed; None: never


class ResponsesSettings(Struct, frozen=True, kw_only=True):
    """Stored responses and conversations."""

    store: bool = True  # False: nothing is kept, as if every request said store: false
    retention_days: Days = 30.0
    on_disconnect: Literal["cancel", "park", "drain"] = "cancel"  # what happens to a stream whose client leaves
    park_s: Wait = 60.0  # how long a parked reply waits for its client
    join_unmarked_retries: bool = False  # the same request again, from a client that does not count its retries
    max_per_key: Count = 10_000  # responses; the oldest are removed first
    max_mb_per_key: Megabytes = 512.0
    max_mb: Megabytes = 4096.0  # of all keys
    socket_ping_s: Seconds = 20.0  # between two pings over a WebSocket
    socket_silence_s: Seconds = 60.0  # a WebSocket is closed after this time without data from its client
    socket_max_s: Seconds = 3600.0  # a WebSocket takes no more requests after this time
    max_background: Count = 200  # background responses that one process runs at the same time; others wait
    max_background_per_key: Count = 100  # that all processes together run for one client key
    max_unfinished_per_key: Count = 1000  # background responses of one client key, running and waiting
    background_lease_s: Lease = 15.0  # after which a background response counts as interrupted if its process is gone


class Fetch(Struct, frozen=True):
    """Fetching of remote images and documents, to send them inline."""

    enabled: bool = False
    max_mb: Megabytes = 10.0
    timeout_s: Seconds = 10.0

    @property
    def max_bytes(self) -> int:
        return int(self.max_mb * 1024 * 1024)


NATIVE = "native"  # the upstream's own search
ACCOUNT_BACKEND = "kiro"  # a search that comes with a provider's account
SearchBackendName = Literal["native", "kiro", "searxng", "brave", "tavily", "exa", "mcp", "off"]


class WebSearch(Struct, frozen=True):
    """Which service runs web searches that the gateway runs itself. The first backend that fits is used."""

    backend: Annotated[tuple[SearchBackendName, ...], HttpRule.ADDRESS] = ("native", "kiro")
    endpoint: Address = None  # of searxng, or of an MCP server; else in place of a service's public one
    api_key: SecretSource | None = None
    tool: FileOnlyName = "search"  # the name of the MCP server's tool
    command: Command = ()  # starts an MCP server that has no endpoint
    results: Annotated[int, Meta(ge=1, le=20)] = 8
    timeout_s: Seconds = 15.0
    max_calls: Count = 10  # per reply
    usd_per_1000: Dollars = 0.0  # what 1,000 searches cost


class WebFetch(Struct, frozen=True):
    """How pages are fetched for a model."""

    backend: Annotated[Literal["builtin", "tavily", "mcp", "off"], HttpRule.ADDRESS] = "builtin"
    endpoint: Address = None
    api_key: SecretSource | None = None
    tool: FileOnlyName = "fetch"
    command: Command = ()
    timeout_s: Seconds = 15.0
    max_mb: Megabytes = 5.0
    max_chars: Count = 50_000
    ports: tuple[Annotated[int, Meta(ge=1, le=65535)], ...] = (80, 443)  # that pages may be fetched from

    @property
    def max_bytes(self) -> int:
        return int(self.max_mb * 1024 * 1024)


class Tools(Struct, frozen=True):
    """The tools that the gateway runs itself."""

    web_search: WebSearch = WebSearch()
    web_fetch: WebFetch = WebFetch()


class Effort(Struct, frozen=True):
    """Thinking budgets, in tokens, for upstreams that have a budget instead of an effort."""

    minimal: Count = 1024
    low: Count = 2048
    medium: Count = 8192
    high: Count = 16384
    xhigh: Count = 32768
    max: Count = 32768


class ProviderConfig(Struct, frozen=True, kw_only=True):
    """One provider. `protocols` are those that it supports, preferred first; empty if this depends on the model."""

    name: str
    kind: Annotated[ProviderKind, HttpRule.ADDRESS]
    endpoint: Address = None
    protocols: tuple[ProtocolName, ...] = field(default=(), name="protocol")
    endpoints: Annotated[dict[ProtocolName, str], HttpRule.ADDRESS] = {}  # of protocols that are not at `endpoint`
    api_key: SecretSource | None = None
    key_header: Name | None = None  # None: authorization, or the usual header of the kind
    headers: dict[str, SecretSource] = {}
    user_agent: Name | None = None
    models: tuple[Name, ...] = ()
    list_models: bool = True
    models_endpoint: Address = None  # None: `endpoint`, then /models
    context_window: Count | None = None  # in tokens, of models whose window is not known otherwise
    default_thinking: DefaultThinking | None = None  # requested where a client requests none
    cache: CacheSetting = "auto"  # who marks what upstreams cache of translated requests
    cache_ttl: CacheTtl = "auto"  # how long that lives where the client does not say
    model_cache_ttl_s: Wait = 3600.0
    first_token_timeout_s: Seconds | None = None  # None: that of the kind, else that of [server]
    proxy: Annotated[SecretSource | None, HttpRule.ADDRESS] = None
    ca_file: Annotated[Path | None, HttpRule.FILE_ONLY] = None
    quirks: tuple[Literal[Quirk, ServerName], ...] = ()
    paths: tuple[PathName, ...] = ()  # the other paths of OpenAI's API that it serves
    keeps_responses: bool | None = None  # whether it stores responses itself; None: openai and openai-compatible do
    hosted_tools: bool = True  # False: web search and web fetch are not run by the upstream
    extra_credentials: tuple[SecretSource | Path, ...] = ()  # used in rotation with the first one
    preset: str = ""  # the vendor's name that the section gave as its kind


class KiroProviderConfig(ProviderConfig, frozen=True, kw_only=True):
    """A Kiro account: credentials, endpoints, and the handling of its peculiarities."""

    credentials: AccountSource = None
    region: AddressPart = "us-east-1"
    control_endpoint: Address = None
    auth_endpoint: Address = None
    profile_arn: Annotated[Name | None, HttpRule.ADDRESS] = None  # its region becomes part of the address
    operations_by: Literal["path", "target"] = "path"  # AWS's REST encoding, or its JSON one with x-amz-target
    thinking: Literal["as_reasoning", "remove", "pass", "strip_tags"] = "as_reasoning"
    thinking_by: Literal["auto", "native", "tags", "off"] = "auto"
    refresh_margin_s: Wait = 600.0
    default_max_input_tokens: Count = 200_000
    tool_description_max: Count = 10_000
    max_payload_bytes: Count | None = None  # None: no limit is enforced, since the service's own limit changes
    repair_truncation: bool = True
    missing_tail_is_truncation: bool = True


class CodexProviderConfig(ProviderConfig, frozen=True, kw_only=True):
    """A ChatGPT plan, as Codex uses it."""

    credentials: Annotated[Path | None, HttpRule.ACCOUNT] = None  # a file as `codex login` writes it
    auth_endpoint: Address = None
    client_id: Name = "app_EMoamEEZ73f0CkXaXp7hrann"  # that of Codex, which is public; the vendor registers no others
    client_version: Name = "1.0.0"  # sent with the request for the list of models
    originator: Name = "dragoman"
    refresh_margin_s: Wait = 300.0


class CopilotProviderConfig(ProviderConfig, frozen=True, kw_only=True):
    """A GitHub account with Copilot. `auto` depends on the type of its token."""

    credentials: AccountSource = None
    auth: Literal["auto", "exchange", "direct", "server"] = "auto"
    domain: AddressPart = "github.com"  # or the domain of a tenant: acme.ghe.com
    auth_endpoint: Address = None  # for signing in
    control_endpoint: Address = None  # for exchanging tokens
    client_id: Name | None = None  # of the OAuth app for signing in
    integration_id: str = "dragoman"  # empty: not sent
    refresh_margin_s: Wait = 300.0
    model_cache_ttl_s: Wait = 600.0


class GeminiProviderConfig(ProviderConfig, frozen=True, kw_only=True):
    """Google's Gemini API, with a key; or Vertex AI, with a token."""

    credentials: AccountSource = None  # a file, "adc", "metadata" or "command:…"
    auth_endpoint: Address = None  # where tokens are renewed
    refresh_margin_s: Wait = 300.0


class ModelRoute(Struct, frozen=True):
    """A model name or glob, and its `provider/model` targets, in order of preference."""

    name: Name
    to: Annotated[tuple[Name, ...], Meta(min_length=1)]


class PriceOverride(Struct, frozen=True):
    """The price of a model in US dollars per million tokens. Cached input costs as other input by default."""

    model: Name  # a glob over provider/model and over model
    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None
    request: Dollars | None = None  # for each request, where a path is not charged by tokens
    cache_write_1h: Dollars | None = None  # of what is kept for an hour; without it, as `cache_write`


BudgetMode = Literal["estimate", "strict"]
OutageMode = Literal["closed", "open"]


class ProviderLimits(LimitValues, frozen=True, kw_only=True):
    """The limits of all requests to some providers together."""

    names: Annotated[tuple[Name, ...], Meta(min_length=1)]


class LimitSettings(LimitValues, frozen=True, kw_only=True):
    """The limits of all requests together, of each user and key that has none of its own, and of providers."""

    wait_s: Wait = 30.0  # how long a request waits in line while only reservations are in its way
    budget: BudgetMode = "estimate"
    on_outage: OutageMode = "closed"  # what happens to requests while it cannot be known what was spent
    time_zone: Name = "UTC"
    webhook: Annotated[SecretSource | None, HttpRule.FILE_ONLY] = None
    user: LimitValues = LimitValues()
    key: LimitValues = LimitValues()
    providers: tuple[ProviderLimits, ...] = ()


class TeamSettings(Struct, frozen=True, kw_only=True):
    """A team: its members' names, limits of all of them together and of each, and the models that they may use."""

    name: Name
    members: tuple[Name, ...] = ()
    limits: LimitValues = LimitValues()
    each_user: LimitValues = LimitValues()
    models: tuple[Name, ...] = ()
    providers: tuple[Name, ...] = ()


class Config(Struct, frozen=True, kw_only=True):
    """The whole configuration. `origins` are the places where values were set; `source` is the file, if any."""

    server: ServerSettings
    retry: Retry
    debug: Debug
    store: StoreSettings
    fetch: Fetch
    responses: ResponsesSettings = ResponsesSettings()
    effort: Effort
    tools: Tools = Tools()
    console: ConsoleSettings = ConsoleSettings()
    providers: dict[str, ProviderConfig]
    models: tuple[ModelRoute, ...]
    prices: tuple[PriceOverride, ...] = ()
    limits: LimitSettings = LimitSettings()
    teams: tuple[TeamSettings, ...] = ()
    client_key: Secret | None
    source: Path | None = None
    origins: dict[str, str]
    warnings: tuple[str, ...]
    has_providers: bool = False  # in file or flags; else the providers are those that were found
    found_models: tuple[str, ...] = ()  # provider/model of the servers that were found, as listed then


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach a server that is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


CONSOLE_VARIABLE = "DRAGOMAN_CONSOLE"
CONSOLE_OFF = ("0", "off", "false", "no")
CONSOLE_IS_EXPOSED = (
    "The console is off: other machines can reach {host}, and nothing says that they use TLS. Put a reverse proxy "
    "with TLS in front and name its address in console.trusted_proxies, or listen on 127.0.0.1."
)


class ConsoleState(Struct, frozen=True):
    """Whether the console is served; `problem` says why it is not, although it is enabled."""

    is_on: bool
    problem: str = ""


def find_console_state(config: Config, environ: Mapping[str, str]) -> ConsoleState:
    """Return whether the console is served. The environment can only switch it off, and then nothing else counts."""
    console, is_local = config.console, is_loopback(config.server.host)
    if environ.get(CONSOLE_VARIABLE, "").strip().lower() in CONSOLE_OFF or console.enabled is False:
        return ConsoleState(False)
    if is_local or (console.enabled and console.trusted_proxies):
        return ConsoleState(True)
    return ConsoleState(False, CONSOLE_IS_EXPOSED.format(host=config.server.host) if console.enabled else "")
