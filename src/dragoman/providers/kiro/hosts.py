"""A stanza and what is known of its account come in; the addresses that belong together go out."""

import re
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.config.settings import KiroProviderConfig
from dragoman.providers.kiro.credential import Credential

DEFAULT_REGION = "us-east-1"
EUROPE = "eu-central-1"

_ARN = re.compile(r"arn:aws(?:-[a-z-]+)?:codewhisperer:([a-z0-9-]+):\d+:profile/[A-Za-z0-9_-]+")


class Generation(Struct, frozen=True):
    """One generation of Kiro's API: host, origin and paths fit together, and are not to be mixed.

    All of them are asked by path; `x-amz-target` belongs to another encoding and is never sent.
    """

    name: str
    chat: str
    control: str
    usage: tuple[str, ...]  # paths under which usage has been seen, likeliest first
    needs_profile: bool  # even for accounts that have none
    origin: str = "AI_EDITOR"
    agent_mode: str = "vibe"


RUNTIME = Generation(
    "runtime",
    chat="https://runtime.{region}.kiro.dev",
    control="https://management.{region}.kiro.dev",
    usage=("/Get-Usage-Limits", "/getUsageLimits"),
    needs_profile=True,
)
Q = Generation(
    "q",
    chat="https://q.{region}.amazonaws.com",
    control="https://q.{region}.amazonaws.com",
    usage=("/getUsageLimits",),
    needs_profile=False,
)
ELSEWHERE = Generation(
    "elsewhere",  # a proxy or a fake: everything at one address, and it may say itself what it needs
    chat="{endpoint}",
    control="{endpoint}",
    usage=("/getUsageLimits", "/Get-Usage-Limits"),
    needs_profile=False,
)


class Addresses(Struct, frozen=True):
    generation: Generation
    chat: str
    control: str
    region: str  # of the API; the sign-in may live in another
    auth: str | None  # replaces the sign-in's own hosts


def addresses(config: KiroProviderConfig, credential: Credential | None) -> Addresses:
    arn = config.profile_arn or (credential.profile_arn if credential else None)
    region = region_of(arn) or api_region(config.region)
    generation = _generation(config, credential, arn)
    chat = config.endpoint or generation.chat.format(region=region)
    control = config.control_endpoint or generation.control.format(region=region, endpoint=chat)
    return Addresses(generation, chat, control, region, config.auth_endpoint)


def _generation(config: KiroProviderConfig, credential: Credential | None, arn: str | None) -> Generation:
    if config.endpoint is not None:
        host = urlsplit(config.endpoint).hostname or ""
        if host.endswith(".kiro.dev"):
            return RUNTIME
        return Q if host.endswith(".amazonaws.com") else ELSEWHERE
    # Without a profile the runtime hosts refuse everyone, and a Builder ID has none.
    return Q if credential is not None and credential.builder_id and not arn else RUNTIME


def api_region(region: str) -> str:
    """The API lives in two regions."""
    return EUROPE if region.startswith("eu-") else DEFAULT_REGION


def region_of(arn: str | None) -> str | None:
    """The region in a profile's name; None where it is no such name."""
    match = _ARN.fullmatch(arn) if arn else None
    return match[1] if match else None


def desktop_host(region: str) -> str:
    return f"https://prod.{region}.auth.desktop.kiro.dev"


def oidc_host(region: str) -> str:
    return f"https://oidc.{region}.amazonaws.com"
