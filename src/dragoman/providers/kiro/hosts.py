"""A stanza and what is known of its account come in; the addresses that belong together go out."""

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
    """One generation of Kiro's API: host, origin, paths and services fit together, and are not to be mixed."""

    name: str
    chat: str
    control: str
    usage: tuple[str, ...]  # paths under which usage has been seen, likeliest first
    chat_service: str  # for `x-amz-target`
    control_service: str
    needs_profile: bool  # even for accounts that have none
    origin: str = "AI_EDITOR"
    agent_mode: str = "vibe"
    mode_in_body: bool = False  # besides the header
    is_regional: bool = True  # the region of a profile must be that of the host


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
    "elsewhere",  # a proxy or a fake: everything at one address, and it may say itself what it needs
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
    region: str  # of the API; the sign-in may live in another


class AccountHosts:
    """Where an account is served: as configured, else as its profile and its kind of account have it."""

    def __init__(self, config: KiroProviderConfig, credential: Credential | None) -> None:
        self._config = config
        self.now = find_addresses(config, credential, None)
        self.first = self.now.chat

    def follow(self, credential: Credential, profile_arn: str | None) -> Addresses:
        """Another account may have signed in since, or its profile have been found."""
        self.now = find_addresses(self._config, credential, profile_arn)
        return self.now

    @property
    def by_target(self) -> bool:
        """Whether operations are named in a header, in AWS's JSON encoding, instead of by their paths."""
        return self._config.operations_by == "target"

    def redirected(self, out: OutgoingRequest) -> OutgoingRequest:
        """A request made out to the first address, made out to the present one."""
        if self.by_target:
            fields = tuple(field for field in out.headers if field[0] != JSON[0])
            named = target_headers(self.now.generation.chat_service, "GenerateAssistantResponse")
            return msgspec.structs.replace(out, url=f"{self.now.chat}/", headers=(*fields, *named))
        if self.now.chat == self.first or not out.url.startswith(self.first):
            return out
        return msgspec.structs.replace(out, url=self.now.chat + out.url[len(self.first) :])

    def controls(self) -> list[str]:
        """Where profiles may be listed: here, then in the API's other region."""
        if self._config.control_endpoint is not None or self._config.endpoint is not None:
            return [self.now.control]
        other = DEFAULT_REGION if self.now.region == EUROPE else EUROPE
        return [self.now.control, self.now.generation.control.format(region=other)]


def find_addresses(config: KiroProviderConfig, credential: Credential | None, profile_arn: str | None) -> Addresses:
    arn = config.profile_arn or (credential.profile_arn if credential else None) or profile_arn
    region = read_region(arn) or api_region(config.region)
    generation = _generation(config, credential, arn)
    chat = config.endpoint or generation.chat.format(region=region)
    control = config.control_endpoint or generation.control.format(region=region, endpoint=chat)
    return Addresses(generation, chat, control, region)


def _generation(config: KiroProviderConfig, credential: Credential | None, arn: str | None) -> Generation:
    if config.endpoint is not None:
        host = urlsplit(config.endpoint).hostname or ""
        if host.endswith(".kiro.dev"):
            return RUNTIME
        return Q if host.endswith(".amazonaws.com") else OTHER
    # Without a profile the runtime hosts refuse everyone, and a Builder ID has none.
    return Q if credential is not None and credential.builder_id and not arn else RUNTIME


def target_headers(service: str, operation: str) -> tuple[Header, ...]:
    """The headers by which AWS's JSON encoding knows an operation; all are posted to `/`."""
    return (b"content-type", b"application/x-amz-json-1.0"), (b"x-amz-target", f"{service}.{operation}".encode())


def api_region(region: str) -> str:
    """The API lives in two regions."""
    return EUROPE if region.startswith("eu-") else DEFAULT_REGION


def read_region(arn: str | None) -> str | None:
    """The region in a profile's name; None where it is no such name."""
    match = _ARN.fullmatch(arn) if arn else None
    return match[1] if match else None


def desktop_host(region: str) -> str:
    return f"https://prod.{region}.auth.desktop.kiro.dev"


def oidc_host(region: str) -> str:
    return f"https://oidc.{region}.amazonaws.com"
