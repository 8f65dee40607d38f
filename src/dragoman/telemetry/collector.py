"""OpenTelemetry's variables come in; a collector that takes OTLP over HTTP goes out, if they name one."""

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
SPOKEN = "http/protobuf"
RETRYABLE = {408, 429, 502, 503, 504}
MAX_ANSWER = 65536


class Unusable(Exception):
    """The variables ask for what cannot be done; the message says which and why."""


class Refusal(Exception):
    """The collector did not take it; `again` says whether it may later."""

    def __init__(self, reason: str, again: bool) -> None:
        super().__init__(reason)
        self.again = again


class Collector(Struct, frozen=True):
    """Where one kind of message goes, and how."""

    url: str
    headers: dict[str, str]
    timeout_s: float
    compress: bool
    certificate: str

    @property
    def where(self) -> str:
        """Without user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"

    def post(self, body: bytes) -> None:
        """Blocks for up to the timeout; raises Refusal."""
        headers = {"user-agent": f"dragoman/{__version__}", **self.headers, "content-type": "application/x-protobuf"}
        if self.compress:
            body = gzip.compress(body, 1)
            headers["content-encoding"] = "gzip"
        request = urllib.request.Request(self.url, body, headers, method="POST")
        try:
            with self._opener().open(request, timeout=self.timeout_s) as answer:
                answer.read(MAX_ANSWER)
        except urllib.error.HTTPError as error:
            error.close()
            raise Refusal(f"it answers {error.code}", error.code in RETRYABLE) from None
        except urllib.error.URLError as error:
            raise Refusal(_say(error.reason), True) from None
        except (OSError, HTTPException) as error:
            raise Refusal(_say(error), True) from None

    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self.certificate or None)
        return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoDetour())


class _NoDetour(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """The headers may hold a credential, which is for one host only."""


def collector_for(signal: str, environ: Mapping[str, str]) -> Collector | None:
    """For "traces" or "metrics"; None where none is named or it is switched off. Raises Unusable."""
    own = environ.get(f"{PREFIX}{signal.upper()}_ENDPOINT", "").strip()
    base = environ.get(f"{PREFIX}ENDPOINT", "").strip()
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if off or not (own or base) or environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip().lower() == "none":
        return None
    protocol = _setting("PROTOCOL", signal, environ) or SPOKEN
    if protocol != SPOKEN:
        raise Unusable(f"{PREFIX}PROTOCOL is {protocol!r}; only {SPOKEN} is spoken here, mostly on port 4318")
    url = own or f"{base.rstrip('/')}/v1/{signal}"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise Unusable(f"{PREFIX}ENDPOINT must be an address that begins with http:// or https://")
    return Collector(
        url=url,
        headers=pairs(_setting("HEADERS", signal, environ)),
        timeout_s=milliseconds(_setting("TIMEOUT", signal, environ), 10_000),
        compress=_setting("COMPRESSION", signal, environ) == "gzip",
        certificate=_setting("CERTIFICATE", signal, environ),
    )


def pairs(text: str) -> dict[str, str]:
    """`a=1,b=two%20words` as headers and resource attributes are written; what is no pair is left out."""
    found = (part.partition("=") for part in text.split(","))
    return {name.strip(): unquote(value.strip()) for name, equals, value in found if equals and name.strip()}


def milliseconds(text: str, default: int) -> float:
    """In seconds."""
    return (int(text) if text.strip().isdigit() and int(text) else default) / 1000


def resource_of(environ: Mapping[str, str], version: str, instance: str) -> dict[str, str]:
    given = pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
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
    """The signal's own wins."""
    return environ.get(f"{PREFIX}{signal.upper()}_{name}", environ.get(f"{PREFIX}{name}", "")).strip()


def _say(error: object) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__ if isinstance(error, Exception) else str(error)
