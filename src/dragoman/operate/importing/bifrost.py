"""Bifrost: `config.json` with `providers`, `client` and `governance`."""

from dragoman.operate.importing.draft import Draft, Section, Unresolved
from dragoman.operate.importing.source_values import SourceValue
from dragoman.operate.importing.vendors import find_kind, make_address, make_vertex, name_key

MARKS = frozenset({"providers", "config_store", "logs_store", "governance", "vector_store"})
NOT_HERE = {
    "$schema": "dragoman's file has no schema",
    "config_store": "the configuration is the file; what may change at run time is in dragoman's store",
    "logs_store": "usage rows are in dragoman's store; captures are files",
    "vector_store": "replies are not cached",
    "mcp": "tools of MCP servers are the client's; only web search can use one: [tools.web_search]",
    "plugins": "plugins of Bifrost cannot run here",
    "framework": "prices are built in; [[prices]] overrides them",
    "governance": "make keys with `dragoman keys create`; `dragoman keys set` and `limits set` set models and limits",
}
KEY_NOT_HERE = {
    "weight": "keys of one provider are used in turn",
    "use_for_batch_api": "batches are not supported",
    "blacklisted_models": "a provider's models cannot be excluded; a key's can: `dragoman keys set --models`",
}
NETWORK_NOT_HERE = {
    "default_request_timeout_in_seconds": "dragoman has no limit for a whole request; see server.first_token_timeout_s",
    "max_retries": "retries are set for all providers: [retry]",
    "retry_backoff_initial": "retries are set for all providers: [retry]",
    "retry_backoff_max": "retries are set for all providers: [retry]",
}


def read_bifrost(document: SourceValue, draft: Draft) -> None:
    for vendor, provider in document.at("providers").members().items():
        _read_provider(vendor, provider, draft)
    size = document.at("client").at("max_request_body_size_mb")
    if size.number():
        draft.set(size, "server", "max_body_mb", size.number())
    for field, reason in NOT_HERE.items():
        document.at(field).skip(reason)


def _read_provider(vendor: str, provider: SourceValue, draft: Draft) -> None:
    network, base_type = provider.at("network_config"), provider.at("custom_provider_config").at("base_provider_type")
    keys = provider.at("keys").elements() or [provider.at("keys")]
    groups: list[tuple[Section, list[SourceValue]]] = []  # keys of one address are one provider
    for key in keys:
        place = key if key else provider
        try:
            section = _make_section(base_type.text() or vendor, draft.read_value(network.at("base_url")), key, draft)
        except (Unresolved, ValueError) as problem:
            place.skip(str(problem))
            continue
        if section is None:
            place.skip(f'no address is known for "{vendor}"; add it with `dragoman providers add`')
            continue
        same = next((group for address, group in groups if address == section), None)
        if same is None:
            groups.append((section, [key]))
        else:
            same.append(key)
    for section, group in groups:
        _add_provider(vendor, {**section}, provider, group, draft)
    base_type.map("providers.*.kind")
    for field, reason in NETWORK_NOT_HERE.items():
        network.at(field).skip(reason)


def _add_provider(vendor: str, section: Section, provider: SourceValue, keys: list[SourceValue], draft: Draft) -> None:
    network, proxy = provider.at("network_config"), provider.at("proxy_config").at("url")
    draft.take_keys((key.at("value") for key in keys), name_key(str(section["kind"]), vendor), section)
    if network.at("extra_headers"):
        section["headers"] = draft.take_headers(network.at("extra_headers"), vendor)
    if proxy:
        section["proxy"] = draft.take_proxy(proxy, vendor)
    lists = [
        (*key.at("models").elements(), *key.at("azure_key_config").at("deployments").members().values()) for key in keys
    ]
    models = dict.fromkeys(model.text() for listed in lists for model in listed if model.text() != "*")
    if models:
        section["models"] = list(models)
    name = draft.add_provider(vendor, section)
    network.at("base_url").map(f"providers.{name}.{'endpoint' if 'endpoint' in section else 'kind'}")
    for key in keys:
        _record_key(key, name, draft)
    if not any(keys):
        provider.map(f"providers.{name}")


def _make_section(vendor: str, address: str, key: SourceValue, draft: Draft) -> Section | None:
    """Return the settings of the vendor's address; None if it is not known. Raises Unresolved and ValueError."""
    azure = draft.read_value(key.at("azure_key_config").at("endpoint"))
    if azure:
        return make_address("openai-compatible", azure)
    if vendor == "vertex":
        return _make_vertex(key.at("vertex_key_config"), draft)
    kind = find_kind(vendor)
    if address:
        return make_address(kind, address)
    region = draft.read_value(key.at("bedrock_key_config").at("region"))
    if kind == "bedrock" and region:
        return {"kind": kind, "region": region}
    return {"kind": kind} if kind and kind != "openai-compatible" else None


def _make_vertex(config: SourceValue, draft: Draft) -> Section | None:
    project, region = draft.read_value(config.at("project_id")), draft.read_value(config.at("region")) or "global"
    return make_vertex(project, region) if project else None


def _record_key(key: SourceValue, name: str, draft: Draft) -> None:
    key.at("value").map(f"providers.{name}.api_key")
    key.at("models").map(f"providers.{name}.models")
    for field in ("name", "id"):
        key.at(field).skip("keys of providers have no names")
    for field, reason in KEY_NOT_HERE.items():
        key.at(field).skip(reason)
    azure = key.at("azure_key_config")
    azure.at("endpoint").map(f"providers.{name}.resource")
    azure.at("api_version").skip("the v1 API needs no version")
    for alias, deployment in azure.at("deployments").members().items():
        deployment.map(f"providers.{name}.models")
        if alias != deployment.text():
            draft.add_target(alias, f"{name}/{deployment.text()}")
            deployment.map("models.name")
    bedrock, vertex = key.at("bedrock_key_config"), key.at("vertex_key_config")
    bedrock.at("region").map(f"providers.{name}.region")
    for field in ("access_key", "secret_key", "session_token"):
        bedrock.at(field).skip("Bedrock is signed in to with $AWS_BEARER_TOKEN_BEDROCK")
    for field in ("project_id", "region"):
        vertex.at(field).map(f"providers.{name}.endpoint")
    vertex.at("auth_credentials").map(
        f"providers.{name}.credentials", "adc: set $GOOGLE_APPLICATION_CREDENTIALS to the file"
    )
