"""Kiro's hosts: the addresses that belong together, by configuration, account and profile."""

import re
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.config.settings import KiroProviderConfig
from dragoman.net.client import OutgoingRequest
from dragoman.net.headers import JSON, Header
from dragoman.providers.kiro.credential import Credential

DEFAULT_REGION = "us-east-1"
EUROPE = "eu-central-1"

_ARN = re.compile(r"arn:aws(?:-[a-z-]+)?:codewhisperer:([a-z0-9-]+):\d+:profile/[A-Za-z0-9_-]+")


class Generation(Struct, frozen=True):
    """One generation of Kiro's API. Its host, origin, paths and services belong together."""

    name: str
    chat: str
    control: str
    usage: tuple[str, ...]  # known paths of usage, likeliest first
    chat_service: str  # for `x-amz-target`
    control_service: str
    needs_profile: bool  # also of accounts that have none
    origin: str = "AI_EDITOR"
    agent_mode: str = "vibe"
    mode_in_body: bool = False  # besides the header
    is_regional: bool = True  # the profile must be in the host's region


RUNTIME = Generation(
    "runtime",
    chat="https://runtime.{region}.kiro.dev",
    control="https://management.{region}.kiro.dev",
    usage=("/Get-Usage-Limits", "/getUsageLimits"),
    chat_service="KiroRuntimeService",
    control_service="KiroControlPlaneBearerService",
    needs_profile=True,
    mode_in_body=True,
)
Q = Generation(
    "q",
    chat="https://q.{region}.amazonaws.com",
    control="https://q.{region}.amazonaws.com",
    usage=("/getUsageLimits",),
    chat_service="AmazonCodeWhispererStreamingService",
    control_service="AmazonCodeWhispererService",
    needs_profile=False,
)
OTHER = Generation(
    "elsewhere",  # a proxy or a test server: everything at one address
    chat="{endpoint}",
    control="{endpoint}",
    usage=("/getUsageLimits", "/Get-Usage-Limits"),
    chat_service="KiroRuntimeService",
    control_service="KiroControlPlaneBearerService",
    needs_profile=False,
    is_regional=False,
)


class Addresses(Struct, frozen=True):
    generation: Generation
    chat: str
    control: str
    region: str  # of the API; the sign-in's may differ


class AccountHosts:
    """The hosts of one account: configured, or derived from its profile and kind."""

    def __init__(self, config: KiroProviderConfig, credential: Credential | None) -> None:
        self._config = config
        self.current = find_addresses(config, credential, None)
        self.first_url = self.current.chat

    def update(self, credential: Credential, profile_arn: str | None) -> Addresses:
        """Update the addresses: another account may have signed in, or a profile was found."""
        self.current = find_addresses(self._config, credential, profile_arn)
        return self.current

    @property
    def uses_target_header(self) -> bool:
        """Whether operations are named in a header, as in AWS's JSON protocol, instead of by paths."""
        return self._config.operations_by == "target"

    def redirect(self, out: OutgoingRequest) -> OutgoingRequest:
        """Return a request for the first address, sent to the current one."""
        if self.uses_target_header:
            fields = tuple(field for field in out.headers if field[0] != JSON[0])
            named = target_headers(self.current.generation.chat_service, "GenerateAssistantResponse")
            return msgspec.structs.replace(out, url=f"{self.current.chat}/", headers=(*fields, *named))
        if self.current.chat == self.first_url or not out.url.startswith(self.first_url):
            return out
        return msgspec.structs.replace(out, url=self.current.chat + out.url[len(self.first_url) :])

    def control_urls(self) -> list[str]:
        """Return the addresses that list profiles: the current one, then the API's other region."""
        if self._config.control_endpoint is not None or self._config.endpoint is not None:
            return [self.current.control]
        other = DEFAULT_REGION if self.current.region == EUROPE else EUROPE
        return [self.current.control, self.current.generation.control.format(region=other)]


def find_addresses(config: KiroProviderConfig, credential: Credential | None, profile_arn: str | None) -> Addresses:
    arn = config.profile_arn or (credential.profile_arn if credential else None) or profile_arn
    region = read_region(arn) or api_region(config.region)
    generation = _choose_generation(config, credential, arn)
    chat = config.endpoint or generation.chat.format(region=region)
    control = config.control_endpoint or generation.control.format(region=region, endpoint=chat)
    return Addresses(generation, chat, control, region)


def _choose_generation(config: KiroProviderConfig, credential: Credential | None, arn: str | None) -> Generation:
    if config.endpoint is not None:
        host = urlsplit(config.endpoint).hostname or ""
        if host.endswith(".kiro.dev"):
            return RUNTIME
        return Q if host.endswith(".amazonaws.com") else OTHER
    # Without a profile the runtime hosts reject every request, and a Builder ID has none.
    return Q if credential is not None and credential.builder_id and not arn else RUNTIME


def target_headers(service: str, operation: str) -> tuple[Header, ...]:
    """Return the headers that name an operation in AWS's JSON protocol; all are posted to `/`."""
    return (b"content-type", b"application/x-amz-json-1.0"), (b"x-amz-target", f"{service}.{operation}".encode())


def api_region(region: str) -> str:
    """Return which of its two regions the API is used in."""
    return EUROPE if region.startswith("eu-") else DEFAULT_REGION


def read_region(arn: str | None) -> str | None:
    """Return the region in a profile's ARN; None if it is not an ARN."""
    match = _ARN.fullmatch(arn) if arn else None
    return match[1] if match else None
