"""Sign in with a provider, and store the credential where the gateway reads it."""

import os
from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from dragoman.config.discovery import data_directory
from dragoman.config.providers import list_credentials
from dragoman.config.secret import STORE, SecretSource
from dragoman.config.settings import (
    CodexProviderConfig,
    Config,
    CopilotProviderConfig,
    KiroProviderConfig,
    ProviderConfig,
)
from dragoman.net.client import HttpClient, SendRequest
from dragoman.operate import AdminError
from dragoman.translate.hub.failure import BadRequest
from dragoman.upstreams.codex import login as codex_login
from dragoman.upstreams.codex import provider as codex_provider
from dragoman.upstreams.codex.credential import ISSUER_URL
from dragoman.upstreams.copilot import login as copilot_login
from dragoman.upstreams.copilot import provider as copilot_provider
from dragoman.upstreams.copilot.credential import find_addresses
from dragoman.upstreams.credentials.credential import Table, find_named_file
from dragoman.upstreams.credentials.login import LoginFailed, save_login
from dragoman.upstreams.credentials.stored import list_stored_names
from dragoman.upstreams.kiro import login as kiro_login
from dragoman.upstreams.kiro import provider as kiro_provider
from dragoman.upstreams.kiro.credential import BUILDER_ID_START, REGION, desktop_host, oidc_host

P = TypeVar("P", bound=ProviderConfig)
SignIn = Callable[[SendRequest], Awaitable[Table]]

NO_COPILOT_APP = (
    "providers.{name}.client_id is not set, and no client id was given. GitHub signs users in to an OAuth app, and "
    "this gateway has none of its own. Register one (GitHub: Settings, Developer settings, OAuth apps; enable the "
    "device flow), or set COPILOT_GITHUB_TOKEN."
)


class Prompt(Struct, frozen=True):
    """What the user must do: open the link and, if there is a code, enter it there."""

    link: str
    code: str = ""


class Conversation(Protocol):
    """How the sign-in reaches the user."""

    def show_prompt(self, prompt: Prompt) -> None: ...
    def show_remaining(self, seconds: float) -> None: ...  # called again and again until the user has confirmed


class CredentialUse(Enum):
    """Whether the provider uses the file that was just stored."""

    USED = "used"
    OVERRIDDEN = "overridden"  # the configuration names another file
    NOT_LISTED = "not_listed"  # a file of the user's choice, which the configuration does not name yet


class SignedIn(Struct, frozen=True):
    """A sign-in that succeeded."""

    provider: str
    file: Path
    use: CredentialUse
    overridden_by: str = ""


class KiroOptions(Struct, frozen=True):
    """How to sign in with Kiro: a Builder ID where nothing else is given."""

    start_url: str | None = None  # of an organisation
    region: str | None = None
    social: str | None = None  # "google" or "github"


class SignInOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """A sign-in by its kind. `social`, `start_url` and `region` are for Kiro, `client_id` is for Copilot."""

    kind: Literal["kiro", "codex", "copilot"]
    method: Literal["code", "browser"] = "code"
    social: Literal["google", "github"] | None = None
    start_url: str | None = None
    region: str | None = None
    client_id: str | None = None


def check_options(options: SignInOptions) -> None:
    """Raise BadRequest for options that contradict each other, or would lead to another address."""
    if options.kind != "kiro":
        for name in ("social", "start_url", "region"):
            if getattr(options, name) is not None:
                raise BadRequest(f"/{name}", f"{name} is for kiro only, not for {options.kind}.")
    if options.client_id is not None and options.kind != "copilot":
        raise BadRequest("/client_id", f"client_id is for copilot only, not for {options.kind}.")
    if options.kind == "copilot" and options.method != "code":
        raise BadRequest("/method", "GitHub signs users in with a code only: leave method out.")
    if options.kind == "kiro" and (options.method == "browser") != (options.social is not None):
        raise BadRequest("/social", "Kiro needs social (google or github) with method browser, and only then.")
    if options.region is not None and not REGION.fullmatch(options.region):
        raise BadRequest("/region", "region must be the name of a region, such as us-east-1.")
    if options.social is not None and options.start_url is not None:
        raise BadRequest("/start_url", "start_url cannot be used with social.")


async def sign_in(config: Config, options: SignInOptions, user: Conversation) -> SignedIn:
    """Sign in with the provider that the options name."""
    match options.kind:
        case "kiro":
            kiro = KiroOptions(options.start_url, options.region, options.social)
            return await sign_in_kiro(config, kiro, None, user)
        case "codex":
            return await sign_in_codex(config, device=options.method == "code", file=None, user=user)
        case "copilot":
            return await sign_in_copilot(config, options.client_id, None, user)


async def sign_in_kiro(config: Config, options: KiroOptions, file: Path | None, user: Conversation) -> SignedIn:
    """Sign in with a Builder ID, an organisation, Google or GitHub."""
    section = _section(config, KiroProviderConfig(name="kiro", kind="kiro"))
    region = options.region or section.region

    async def sign_in(send: SendRequest) -> Table:
        line = kiro_provider.make_service_client(section, send, os.environ)
        if options.social:
            social = kiro_login.SocialLogin(line, section.auth_endpoint or desktop_host(region), options.social)
            table = await social.run(lambda link: user.show_prompt(Prompt(link)))
        else:
            login = kiro_login.DeviceLogin(
                line, section.auth_endpoint or oidc_host(region), options.start_url or BUILDER_ID_START
            )
            client, prompt = await login.begin()
            user.show_prompt(Prompt(prompt.link, prompt.user_code))
            table = await login.wait(client, prompt, user.show_remaining)
        return {**table, "region": region}

    return await _sign_in(section, sign_in, _choose_file(file, "kiro.json"))


async def sign_in_codex(config: Config, *, device: bool, file: Path | None, user: Conversation) -> SignedIn:
    """Sign in with ChatGPT: in a browser on this machine, or with a code on another device."""
    section = _section(config, CodexProviderConfig(name="codex", kind="codex"))
    app = codex_login.App(section.auth_endpoint or ISSUER_URL, section.client_id, section.originator)

    async def sign_in(send: SendRequest) -> Table:
        line = codex_provider.make_service_client(section, send, os.environ)
        if not device:
            return await codex_login.BrowserLogin(line, app).run(lambda link: user.show_prompt(Prompt(link)))
        login = codex_login.DeviceLogin(line, app)
        prompt = await login.begin()
        user.show_prompt(Prompt(login.link, prompt.code))
        return await login.wait(prompt, user.show_remaining)

    return await _sign_in(section, sign_in, _choose_file(file, "codex.json"))


async def sign_in_copilot(config: Config, client_id: str | None, file: Path | None, user: Conversation) -> SignedIn:
    """Sign in with GitHub, by a code."""
    section = _section(config, CopilotProviderConfig(name="copilot", kind="copilot"))
    app = client_id or section.client_id
    if app is None:
        raise AdminError(f"Not signed in: {NO_COPILOT_APP.format(name=section.name)}")

    async def sign_in(send: SendRequest) -> Table:
        line = copilot_provider.make_service_client(section, send, os.environ)
        login = copilot_login.DeviceLogin(line, find_addresses(section).login, app)
        prompt = await login.begin()
        user.show_prompt(Prompt(prompt.verification_uri, prompt.user_code))
        return {section.domain: await login.wait(prompt, user.show_remaining)}

    return await _sign_in(section, sign_in, _choose_file(file, "copilot.json"))


def _section(config: Config, default: P) -> P:
    """Return the configured section of this kind of provider: its addresses and its proxy may be set there."""
    return next((section for section in config.providers.values() if isinstance(section, type(default))), default)


def _choose_file(given: Path | None, own_name: str) -> Path:
    return _own_file(own_name) if given is None else given.expanduser().absolute()


def _own_file(name: str) -> Path:
    return data_directory(os.environ, Path.home()) / name


async def _sign_in(section: ProviderConfig, sign_in: SignIn, file: Path) -> SignedIn:
    try:
        async with HttpClient() as http:
            table = await sign_in(http.send)
    except LoginFailed as failed:
        raise AdminError(f"Not signed in: {failed}.") from failed
    save_login(file, table)
    configured = list_credentials(section)
    if _uses_file(section, file):
        return SignedIn(section.name, file, CredentialUse.USED)
    if file == _own_file(file.name):
        other = list_stored_names(section)
        used = f"{STORE}{other[0]}" if other else str(_credential_file(configured[0]) or "a secret")
        return SignedIn(section.name, file, CredentialUse.OVERRIDDEN, used)
    return SignedIn(section.name, file, CredentialUse.NOT_LISTED)


def _uses_file(section: ProviderConfig, file: Path) -> bool:
    """Return whether the provider uses that file: one that it lists, or our own where it lists none."""
    configured = list_credentials(section)
    files = [_credential_file(source) for source in configured]
    return file in files or (not configured and file == _own_file(file.name))


def _credential_file(source: Path | SecretSource) -> Path | None:
    return find_named_file(source) if isinstance(source, SecretSource) else source
