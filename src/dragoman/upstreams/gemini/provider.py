"""Gemini: Google's generateContent, with the key in x-goog-api-key, or with a token on Vertex AI."""

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import GeminiProviderConfig, ProviderConfig
from dragoman.net.bodies import read_and_close
from dragoman.net.headers import Header
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.protocols.gemini.wire import VERTEX
from dragoman.upstreams import Surroundings
from dragoman.upstreams.account_state import BROKEN, OK, Finding
from dragoman.upstreams.credentials.credential import CredentialSource
from dragoman.upstreams.credentials.refresher import CredentialRefresher, RenewalTiming
from dragoman.upstreams.credentials.service_client import ServerClock, ServiceClient
from dragoman.upstreams.gemini.credential import REMEDY, TOKEN_URL, GoogleToken, TokenIssuer, find_source
from dragoman.upstreams.provider import (
    Account,
    Auth,
    Authorize,
    Catalogue,
    Endpoint,
    ModelInfo,
    Provider,
    RequestRules,
    UnsignedRequest,
)
from dragoman.upstreams.rejections.reasoning import adjust_reasoning
from dragoman.upstreams.section import (
    api_key_reader,
    configured_models,
    read_dial,
    read_endpoint,
    read_secrets,
    read_user_agent,
)

LIST_TIMEOUT_S = 10.0
MAX_LIST_BYTES = 16 * 1024 * 1024
MAX_PAGES = 20
_PAGE_SIZE = 1000
VERTEX_PATH = "/publishers/"  # in every endpoint of Vertex AI
# Vertex AI lists no models at this address.
VERTEX_MODELS = tuple(
    ModelInfo(name, owned_by="google", max_input=1_048_576, max_output=65_536)
    for name in (
        *("gemini-4-argon", "gemini-3.8-flash", "gemini-3.5-flash", "gemini-3.5-flash-lite", "gemini-3.1-pro-preview"),
        *("gemini-2.5-pro", "gemini-2.5-flash", "gemini-2.5-flash-lite"),
    )
)


def make_gemini(config: ProviderConfig, around: Surroundings) -> Provider:
    assert isinstance(config, GeminiProviderConfig)
    send, environ = around.send, around.environ
    endpoint = replace(read_endpoint(config, send, environ), counts_tokens=True)
    is_vertex = VERTEX_PATH in endpoint.url
    uses_token = config.credentials is not None or (is_vertex and config.api_key is None)
    service = ServiceClient(send, read_dial(config, environ), ServerClock(), (read_user_agent(config),))
    auth, account = (
        _make_token_auth(config, service, environ, find_source(config, environ, around.stored))
        if uses_token
        else _make_key_auth(config, environ)
    )
    return Provider(
        name=config.name,
        kind=config.kind,
        issuer="vertex" if is_vertex else "gemini",  # neither takes the other's signatures
        endpoint=endpoint,
        auth=auth,
        catalogue=Catalogue(
            models=configured_models(config),
            fallback_models=VERTEX_MODELS if is_vertex else (),
            has_list=config.list_models and not is_vertex,
            list_models=_make_lister(endpoint, auth.authorize, config.models_endpoint),
            ttl_s=config.model_cache_ttl_s,
        ),
        requests=RequestRules(
            quirks=frozenset((VERTEX,)) if is_vertex else frozenset(),
            hosted_tools=frozenset(("web_search", "web_fetch")),
            mixes_tools=lambda profile: profile.hosted_beside_functions and not is_vertex,
            adjust=adjust_reasoning,
        ),
        account=account,
    )


def _make_key_auth(config: GeminiProviderConfig, environ: Mapping[str, str]) -> tuple[Auth, Account]:
    read_key = api_key_reader(config, environ)

    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        key = read_key()
        return ((b"x-goog-api-key", key),) if key else ()

    return Auth(authorize, secrets=read_secrets(config, environ)), Account()


def _make_token_auth(
    config: GeminiProviderConfig,
    service: ServiceClient,
    environ: Mapping[str, str],
    find: Callable[[], CredentialSource[GoogleToken]],
) -> tuple[Auth, Account]:
    issuer = TokenIssuer(service, config.auth_endpoint or TOKEN_URL, environ)
    timing = RenewalTiming(service.clock, config.refresh_margin_s)
    refresher = CredentialRefresher(config.name, find, issuer, timing)

    async def authorize(request: UnsignedRequest) -> tuple[Header, ...]:
        token = await refresher.get()
        bearer = (b"authorization", b"Bearer " + token.access_token.encode())
        project = token.quota_project.encode()
        return (bearer, (b"x-goog-user-project", project)) if project else (bearer,)

    async def inspect() -> list[Finding]:
        what = f"provider {config.name}"
        try:
            token = await refresher.get()
        except RequestError as refused:
            return [Finding(what, BROKEN, refused.failure.message, REMEDY)]
        location = find().location
        return [Finding(what, OK, f"has a token ({token.method.replace('_', ' ')}, {location})")]

    auth = Auth(
        authorize,
        renew=refresher.renew,
        login_command="gcloud auth application-default login",
        secrets=read_secrets(config, environ),
    )
    return auth, Account(inspect=inspect)


class _Model(Struct, rename="camel"):
    name: str = ""
    display_name: str = ""
    input_token_limit: int | None = None
    output_token_limit: int | None = None
    supported_generation_methods: list[str] | None = None


class _Page(Struct, rename="camel"):
    models: list[_Model] = []
    next_page_token: str = ""


def _make_lister(
    endpoint: Endpoint, authorize: Authorize, elsewhere: str | None
) -> Callable[[], Awaitable[tuple[ModelInfo, ...]]]:
    async def list_models() -> tuple[ModelInfo, ...]:
        """Return the models that generate content, over all pages of the list."""
        found: list[ModelInfo] = []
        token = ""
        for _ in range(MAX_PAGES):
            headers = (*endpoint.headers, (b"accept", b"application/json"))
            address = elsewhere or f"{endpoint.url}/models"
            url = f"{address}?pageSize={_PAGE_SIZE}" + (f"&pageToken={quote(token, safe='')}" if token else "")
            request = UnsignedRequest(endpoint.protocols[0], "GET", url, headers)
            out = request.add_credentials(await authorize(request))
            response = await endpoint.send(out, endpoint.dial, head_timeout_s=LIST_TIMEOUT_S)
            body = await read_and_close(response, MAX_LIST_BYTES, LIST_TIMEOUT_S)
            if response.status != 200:
                raise RequestError(Failure(Kind.UPSTREAM, f"HTTP {response.status}", status=response.status))
            page = msgspec.json.decode(body, type=_Page)
            found += [_describe(model) for model in page.models if _generates(model)]
            token = page.next_page_token
            if not token:
                break
        return tuple(found)

    return list_models


def _generates(model: _Model) -> bool:
    methods = model.supported_generation_methods
    return bool(model.name) and (methods is None or "generateContent" in methods)


def _describe(model: _Model) -> ModelInfo:
    return ModelInfo(
        model.name.removeprefix("models/"),
        model.display_name,
        owned_by="google",
        max_input=model.input_token_limit,
        max_output=model.output_token_limit,
    )
