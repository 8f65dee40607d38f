"""Gemini: Google's generateContent, with the key in x-goog-api-key."""

import re
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

import msgspec
from msgspec import Struct

from dragoman.config.settings import ProviderConfig
from dragoman.hub.failure import Failure, Kind, RequestError
from dragoman.net.client import OutgoingRequest
from dragoman.net.headers import Header
from dragoman.passes.drop_reasoning import drop_reasoning
from dragoman.providers.connection import api_key_reader, configured_models, read_dial, read_headers, read_secrets
from dragoman.providers.provider import (
    Adjustment,
    Auth,
    Authorize,
    Catalogue,
    Endpoint,
    ModelInfo,
    Provider,
    RequestRules,
    SendRequest,
)

LIST_TIMEOUT_S = 10.0
MAX_LIST_BYTES = 16 * 1024 * 1024
MAX_PAGES = 20
_PAGE_SIZE = 1000
_SIGNATURE_REJECTED = re.compile(r"thought[_ ]?signature", re.IGNORECASE)


def make_gemini(config: ProviderConfig, send: SendRequest, environ: Mapping[str, str]) -> Provider:
    read_key = api_key_reader(config, environ)

    async def authorize(protocol: str) -> tuple[Header, ...]:
        key = read_key()
        return ((b"x-goog-api-key", key),) if key else ()

    endpoint = Endpoint(
        url=config.endpoint or "",
        protocols=config.protocols,
        send=send,
        dial=read_dial(config, environ),
        headers=read_headers(config, environ),
        first_token_timeout_s=config.first_token_timeout_s,
    )
    return Provider(
        name=config.name,
        kind=config.kind,
        issuer="gemini",
        endpoint=endpoint,
        auth=Auth(authorize, secrets=read_secrets(config, environ)),
        catalogue=Catalogue(
            models=configured_models(config),
            list_models=_make_lister(endpoint, authorize),
            ttl_s=config.model_cache_ttl_s,
        ),
        requests=RequestRules(adjust=adjust_signatures),
    )


def adjust_signatures(failure: Failure) -> Adjustment | None:
    """Send a request again without signatures that the upstream rejects: they are bound to a model and an account."""
    if failure.kind is not Kind.BAD_REQUEST or not _SIGNATURE_REJECTED.search(failure.message):
        return None
    return Adjustment("signatures dropped", drop_reasoning)


class _Model(Struct, rename="camel"):
    name: str = ""
    display_name: str = ""
    input_token_limit: int | None = None
    output_token_limit: int | None = None
    supported_generation_methods: list[str] | None = None


class _Page(Struct, rename="camel"):
    models: list[_Model] = []
    next_page_token: str = ""


def _make_lister(endpoint: Endpoint, authorize: Authorize) -> Callable[[], Awaitable[tuple[ModelInfo, ...]]]:
    async def list_models() -> tuple[ModelInfo, ...]:
        """Return the models that generate content, over all pages of the list."""
        found: list[ModelInfo] = []
        token = ""
        for _ in range(MAX_PAGES):
            page = await _fetch_page(endpoint, authorize, token)
            found += [_describe(model) for model in page.models if _generates(model)]
            token = page.next_page_token
            if not token:
                break
        return tuple(found)

    return list_models


async def _fetch_page(endpoint: Endpoint, authorize: Authorize, token: str) -> _Page:
    headers = (*endpoint.headers, (b"accept", b"application/json"), *await authorize(endpoint.protocols[0]))
    url = f"{endpoint.url}/models?pageSize={_PAGE_SIZE}" + (f"&pageToken={quote(token, safe='')}" if token else "")
    response = await endpoint.send(OutgoingRequest("GET", url, headers), endpoint.dial, head_timeout_s=LIST_TIMEOUT_S)
    try:
        body = await response.read(MAX_LIST_BYTES, LIST_TIMEOUT_S)
    finally:
        response.close()
    if response.status != 200:
        raise RequestError(Failure(Kind.UPSTREAM, f"HTTP {response.status}", status=response.status))
    return msgspec.json.decode(body, type=_Page)


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
