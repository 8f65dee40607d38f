"""claude-code-router: `config.json` with `Providers` and `Router`."""

import re

from dragoman.operate.importing.draft import Draft, Section
from dragoman.operate.importing.source_values import SourceValue
from dragoman.operate.importing.vendors import cut_operation, make_address, name_key

LOOPBACK = re.compile(r"//(?:localhost|127\.|\[::1\])")  # these are not asked over a proxy
MARKS = frozenset({"Providers", "Router"})
# Claude Code's names, by the route that the router takes for them.
ROUTES = {"background": "claude-*haiku*", "default": "claude-*"}
NOT_HERE = {
    "think": "a route by thinking is not possible; a model name of your own is",
    "longContext": "a route by length is not possible; a model name of your own is",
    "longContextThreshold": "a route by length is not possible",
    "webSearch": "web search needs no route of its own; see [tools.web_search]",
    "image": "a route by content is not possible; a model name of your own is",
}
TRANSFORMER = "dragoman translates between protocols without it; how a server differs is learned, or set as quirks"


def read_claude_code_router(document: SourceValue, draft: Draft) -> None:
    proxy = document.at("PROXY_URL")
    names = {}
    for provider in document.at("Providers", "providers").elements():
        names[provider.at("name").text()] = _read_provider(provider, proxy, draft)
    router = document.at("Router")
    for route, pattern in ROUTES.items():
        _read_route(router.at(route), pattern, names, draft)
    for route, reason in NOT_HERE.items():
        router.at(route).skip(reason)
    draft.take_client_key(document.at("APIKEY"))
    draft.set(document.at("HOST"), "server", "host", document.at("HOST").text())
    if document.at("PORT").number() is not None:
        draft.set(document.at("PORT"), "server", "port", document.at("PORT").number())
    timeout = document.at("API_TIMEOUT_MS").number()
    if timeout:
        reason = "it counts until the first token, not for the whole request"
        draft.set(document.at("API_TIMEOUT_MS"), "server", "first_token_timeout_s", timeout / 1000, reason)


def _read_provider(provider: SourceValue, proxy: SourceValue, draft: Draft) -> str:
    base = provider.at("name").text() or "provider"
    address, models = provider.at("api_base_url"), provider.at("models")
    endpoint, protocol = cut_operation(address.text())
    section: Section = make_address("", endpoint, protocol)
    key = provider.at("api_key")
    draft.take_keys([key], name_key(str(section["kind"]), base), section)
    if models:
        section["models"] = [model.text() for model in models.elements()]
    if proxy and not LOOPBACK.search(endpoint):
        section["proxy"] = draft.take_proxy(proxy, base)
    name = draft.add_provider(base, section)
    provider.at("name").map(f"providers.{name}")
    address.map(f"providers.{name}.{'endpoint' if 'endpoint' in section else 'kind'}")
    key.map(f"providers.{name}.api_key")
    models.map(f"providers.{name}.models")
    provider.at("transformer").skip(TRANSFORMER)
    return name


def _read_route(route: SourceValue, pattern: str, names: dict[str, str], draft: Draft) -> None:
    provider, _, model = route.text().partition(",")
    if not route:
        return
    if provider not in names:
        route.skip(f'there is no provider "{provider}"')
        return
    draft.add_target(pattern, f"{names[provider]}/{model.strip()}")
    route.map(f"models.name = {pattern}")
