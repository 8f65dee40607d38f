"""The OTLP collector that OpenTelemetry's environment variables name, reached over HTTP."""

import gzip
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from dragoman import __version__

PREFIX = "OTEL_EXPORTER_OTLP_"
PROTOCOL = "http/protobuf"
RETRYABLE = {408, 429, 502, 503, 504}
MAX_RESPONSE_BYTES = 65536


class InvalidSetting(Exception):
    """A variable has a value that is not supported; the message names it."""


class ExportFailed(Exception):
    """The collector did not accept a message."""

    def __init__(self, reason: str, retryable: bool) -> None:
        super().__init__(reason)
        self.retryable = retryable


class Collector(Struct, frozen=True):
    """Where and how to send one kind of message."""

    url: str
    headers: dict[str, str]
    timeout_s: float
    compress: bool
    certificate: str

    @property
    def where(self) -> str:
        """The URL without user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def post(self, body: bytes) -> None:
        """Send a message; blocks for up to the timeout, raises ExportFailed."""
        headers = {"user-agent": f"dragoman/{__version__}", **self.headers, "content-type": "application/x-protobuf"}
        if self.compress:
            body = gzip.compress(body, 1)
            headers["content-encoding"] = "gzip"
        request = urllib.request.Request(self.url, body, headers, method="POST")
        try:
            with self._opener().open(request, timeout=self.timeout_s) as response:
                response.read(MAX_RESPONSE_BYTES)
        except urllib.error.HTTPError as error:
            error.close()
            raise ExportFailed(f"HTTP {error.code}", error.code in RETRYABLE) from None
        except urllib.error.URLError as error:
            raise ExportFailed(_describe(error.reason), True) from None
        except (OSError, HTTPException) as error:
            raise ExportFailed(_describe(error), True) from None

    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self.certificate or None)
        return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Follow no redirect: the headers may contain a credential for this host."""


def find_collector(signal: str, environ: Mapping[str, str]) -> Collector | None:
    """Return the collector for "traces" or "metrics"; None if none is named or it is disabled.

    Raises InvalidSetting.
    """
    own = environ.get(f"{PREFIX}{signal.upper()}_ENDPOINT", "").strip()
    base = environ.get(f"{PREFIX}ENDPOINT", "").strip()
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if off or not (own or base) or environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower() == "none":
        return None
    protocol = _setting("PROTOCOL", signal, environ) or PROTOCOL
    if protocol != PROTOCOL:
        raise InvalidSetting(f"{PREFIX}PROTOCOL is {protocol!r}; only {PROTOCOL} is supported, usually on port 4318")
    url = own or f"{base.rstrip('/')}/v1/{signal}"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise InvalidSetting(f"{PREFIX}ENDPOINT must be a URL that begins with http:// or https://")
    return Collector(
        url=url,
        headers=parse_pairs(_setting("HEADERS", signal, environ)),
        timeout_s=parse_milliseconds(_setting("TIMEOUT", signal, environ), 10_000),
        compress=_setting("COMPRESSION", signal, environ) == "gzip",
        certificate=_setting("CERTIFICATE", signal, environ),
    )


def parse_pairs(text: str) -> dict[str, str]:
    """Parse `a=1,b=two%20words`, as in headers and resource attributes; other text is ignored."""
    found = (part.partition("=") for part in text.split(","))
    return {name.strip(): unquote(value.strip()) for name, equals, value in found if equals and name.strip()}


def parse_milliseconds(text: str, default: int) -> float:
    """Return the seconds that a number of milliseconds amounts to."""
    return (int(text) if text.strip().isdigit() and int(text) else default) / 1000


def resource_attributes(environ: Mapping[str, str], version: str, instance: str) -> dict[str, str]:
    given = parse_pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    name = environ.get("OTEL_SERVICE_NAME", "").strip() or given.get("service.name", "") or "dragoman"
    return {
        "service.version": version,
        "service.instance.id": instance,
        "host.name": socket.gethostname(),
        **given,
        "service.name": name,
        "telemetry.sdk.name": "dragoman",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": version,
    }


def _setting(name: str, signal: str, environ: Mapping[str, str]) -> str:
    """Return a setting of this signal, else the one for all signals."""
    return environ.get(f"{PREFIX}{signal.upper()}_{name}", environ.get(f"{PREFIX}{name}", "")).strip()


def _describe(error: object) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__ if isinstance(error, Exception) else str(error)
