"""The state of the running gateway: address, uptime, streams, providers, and what was used today."""

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import Config
from dragoman.net.bodies import read_and_close
from dragoman.net.client import ConnectionLost, HttpClient, OutgoingRequest, SizeLimitExceeded, UpstreamTimeout
from dragoman.operate.configuration.config_file import ProviderRow, list_providers
from dragoman.operate.configuration.effective import base_url
from dragoman.operate.gateway.gateway_process import find_process
from dragoman.operate.gateway.running_gateway import MAX_BODY_BYTES, PROBE_TIMEOUT_S, find_gateway
from dragoman.operate.metrics.catalogue import COOLING_DOWN, IN_PROGRESS, POOL_CREDENTIALS, STREAMS
from dragoman.operate.usage.reports import UsageQuestion, load_usage, parse_span
from dragoman.store.usage_rows import UsageSum
from dragoman.translate.framing.jsonread import JSON_ERRORS

SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>[^}]*)\})? (?P<value>[\d.e+-]+)")
LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
NANO = 1_000_000_000


class ProviderState(Struct, frozen=True):
    """One provider. `state` is ok, cooling down or problem, and unknown if no gateway runs; `requests` are today's."""

    name: str
    kind: str
    endpoint: str
    state: str
    detail: str
    requests: int
    failed: int


class GatewayStatus(Struct, frozen=True, kw_only=True):
    """What a gateway does now. Without one, `running` is false, and the providers are those of the configuration."""

    running: bool
    address: str
    pid: int | None  # of its process, the parent of several workers; None where it is not this machine's or user's
    version: str | None
    ready: bool
    uptime_s: float | None
    streams: int
    requests_under_way: int
    providers: list[ProviderState]
    requests: int  # today
    failed: int
    cost_usd: float
    unpriced: int  # requests with token counts and without a known price


class _Health(Struct, frozen=True):
    version: str = ""
    uptime_s: float | None = None


class _Scrape(Struct, frozen=True):
    is_running: bool = False
    streams: int = 0
    under_way: int = 0
    resting: dict[str, tuple[int, int]] = {}  # provider -> credentials available, cooling down


async def read_status(
    config: Config, environ: Mapping[str, str], key: str | None = None, url: str | None = None
) -> GatewayStatus:
    """Ask the running gateway, and read today's usage; raises AdminError if no gateway answers at `url`."""
    root = await find_gateway(config, environ, url)
    health, ready, scrape = _Health(), False, _Scrape()
    if root is not None:
        health, ready, scrape = await _ask(root)
        scrape = replace(scrape, is_running=True)
    now = datetime.now()
    today = UsageQuestion(parse_span(now.date().isoformat(), None, now), "provider")
    loaded = await load_usage(config, key, today, root)
    process = None if root is None else find_process(environ, root)
    sums = loaded.report.sums
    providers = _merge(list_providers(config, environ), scrape, sums)
    return GatewayStatus(
        running=root is not None,
        address=root or base_url(config.server.host, config.server.port),
        pid=None if process is None else process.pid,
        version=health.version or None,
        ready=ready,
        uptime_s=health.uptime_s,
        streams=scrape.streams,
        requests_under_way=scrape.under_way,
        providers=providers,
        requests=sum(part.requests for part in sums),
        failed=sum(part.failed for part in sums),
        cost_usd=sum(part.cost_nano_usd for part in sums) / NANO,
        unpriced=sum(max(0, part.counted - part.priced) for part in sums),
    )


async def _ask(root: str) -> tuple[_Health, bool, _Scrape]:
    try:
        async with HttpClient() as http:
            _, health = await _get(http, f"{root}/health")
            ready, _ = await _get(http, f"{root}/ready")
            _, metrics = await _get(http, f"{root}/metrics")
        return msgspec.json.decode(health, type=_Health), ready == 200, _read_metrics(metrics.decode())
    except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded, *JSON_ERRORS):
        return _Health(), False, _Scrape()


async def _get(http: HttpClient, url: str) -> tuple[int, bytes]:
    response = await http.send(OutgoingRequest("GET", url, ()), head_timeout_s=PROBE_TIMEOUT_S)
    return response.status, await read_and_close(response, MAX_BODY_BYTES, PROBE_TIMEOUT_S)


def _read_metrics(text: str) -> _Scrape:
    values: dict[str, int] = {}
    resting: dict[str, tuple[int, int]] = {}
    for sample in filter(None, map(SAMPLE.fullmatch, text.splitlines())):
        value = int(float(sample["value"]))
        if sample["name"] in (STREAMS.name, IN_PROGRESS.name):
            values[sample["name"]] = value
        elif sample["name"] == POOL_CREDENTIALS.name:
            labels = dict(LABEL.findall(sample["labels"] or ""))
            available, cooling = resting.get(labels["provider"], (0, 0))
            is_cooling = COOLING_DOWN in labels.values()
            resting[labels["provider"]] = (available, value) if is_cooling else (value, cooling)
    under_way = values.get(IN_PROGRESS.name, 0)
    return _Scrape(streams=values.get(STREAMS.name, 0), under_way=under_way, resting=resting)


def _merge(rows: list[ProviderRow], scrape: _Scrape, sums: tuple[UsageSum, ...]) -> list[ProviderState]:
    """Return the gateway's providers, with what the configuration knows of them."""
    known = {row.name: row for row in rows}
    names = list(scrape.resting or known)
    return [_describe(name, known.get(name), scrape, sums) for name in names]


def _describe(name: str, row: ProviderRow | None, scrape: _Scrape, sums: tuple[UsageSum, ...]) -> ProviderState:
    state, detail = ("ok", "") if scrape.is_running else ("unknown", "")
    resting = scrape.resting.get(name)
    if row is not None and row.problem:
        state, detail = "problem", row.problem
    elif resting is not None and resting[1]:
        available, cooling = resting
        state = "ok" if available else "cooling down"
        detail = f"{cooling} of {available + cooling} credentials cooling down"
    own = [part for part in sums if part.group == name]
    return ProviderState(
        name=name,
        kind="" if row is None else row.kind,
        endpoint="" if row is None else row.endpoint,
        state=state,
        detail=detail,
        requests=sum(part.requests for part in own),
        failed=sum(part.failed for part in own),
    )
