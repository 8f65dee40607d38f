"""LiteLLM's proxy: `config.yaml` with `model_list`."""

from dragoman.operate.importing.draft import Draft, Section, Unresolved
from dragoman.operate.importing.source_values import SourceValue
from dragoman.operate.importing.vendors import find_kind, make_address, make_vertex, name_key

MARKS = frozenset({"model_list", "litellm_settings", "router_settings", "general_settings"})
ORDERED = "deployments of one name are tried in this order; LiteLLM spreads requests over them"
NOT_HERE = {
    "api_version": "the v1 API needs no version",
    "rpm": "a limit of dragoman refuses, while LiteLLM chooses another deployment; see [[limits.providers]]",
    "tpm": "a limit of dragoman refuses, while LiteLLM chooses another deployment; see [[limits.providers]]",
    "timeout": "dragoman has no limit for a whole request; see server.first_token_timeout_s and idle_timeout_s",
    "stream_timeout": "dragoman has no limit for a whole request; see server.first_token_timeout_s and idle_timeout_s",
}
AWS_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_profile_name", "aws_role_name")
AWS_KEY_REASON = "Bedrock is signed in to with $AWS_BEARER_TOKEN_BEDROCK"
SETTINGS_NOT_HERE = {
    "drop_params": "what an upstream does not take is always left out, and named in x-dragoman-loss",
    "context_window_fallbacks": "a request that is too long is not sent elsewhere",
    "content_policy_fallbacks": "a refusal is not sent elsewhere",
    "request_timeout": NOT_HERE["timeout"],
    "routing_strategy": "targets are tried in the order of `to`",
}


def read_litellm(document: SourceValue, draft: Draft) -> None:
    for entry in document.at("model_list").elements():
        _read_deployment(entry, draft)
    for section in ("litellm_settings", "router_settings"):
        settings = document.at(section)
        draft.set_attempts(settings.at("num_retries"))
        for name, reason in SETTINGS_NOT_HERE.items():
            settings.at(name).skip(reason)
    _read_aliases(document.at("router_settings").at("model_group_alias"), draft)
    for section in ("litellm_settings", "router_settings"):
        _read_fallbacks(document.at(section).at("fallbacks"), draft)
    general = document.at("general_settings")
    draft.take_client_key(general.at("master_key"))
    general.at("database_url").skip("dragoman's store has tables of its own; store.url names its database")
    for member in document.at("environment_variables").members().values():
        reference = draft.take_secret(member, str(member.path[-1]))
        member.map("$" + reference.removeprefix("env:"), "set it where the gateway starts")


def _read_deployment(entry: SourceValue, draft: Draft) -> None:
    params = entry.at("litellm_params")
    vendor, _, model = params.at("model").text().partition("/")
    if not model:
        vendor, model = "", vendor
    custom = params.at("custom_llm_provider")
    vendor = custom.text() or vendor or "openai"
    try:
        section = _make_section(params, vendor, model, draft)
    except (Unresolved, ValueError) as problem:
        entry.skip(str(problem))
        return
    if section is None:
        entry.skip(f'no address is known for "{vendor}"; add it with `dragoman providers add`')
        return
    base = entry.at("model_name").text() if "endpoint" in section or "resource" in section else vendor
    base = vendor if not base or "*" in base or "/" in base else base
    name = _add_provider(params, draft, base, section)
    _add_route(entry.at("model_name"), params.at("model"), name, model, draft)
    custom.map(f"providers.{name}.kind")
    for key, reason in NOT_HERE.items():
        params.at(key).skip(reason)


def _add_route(requested: SourceValue, target: SourceValue, provider: str, model: str, draft: Draft) -> None:
    """Make the name that clients ask for mean this model, unless that needs no route."""
    name = requested.text() or model
    if "*" in model:
        if name == f"{provider}/{model}":
            requested.map(f"providers.{provider}", "as before, PROVIDER/MODEL asks it")
            target.map(f"providers.{provider}")
            return
        if name not in ("*", model):
            requested.skip(f"ask {provider}/MODEL: a glob keeps the name that was requested for")
            target.map(f"providers.{provider}")
            return
        model = "*"
    reason = ORDERED if name in draft.routes else ""
    draft.add_target(name, f"{provider}/{model}")
    requested.map("models.name", reason)
    target.map("models.to")


def _make_section(params: SourceValue, vendor: str, model: str, draft: Draft) -> Section | None:
    """Return the settings of the vendor's address; None if it is not known. Raises Unresolved and ValueError."""
    address = draft.read_value(params.at("api_base", "base_url"))
    if address:
        return make_address(find_kind(vendor), address)
    if vendor in ("vertex_ai", "vertex_ai_beta"):
        return _make_vertex(params, model, draft)
    if vendor == "bedrock":
        region = draft.read_value(params.at("aws_region_name"))
        kind = "bedrock-claude" if "claude" in model else "bedrock"
        return {"kind": kind, "region": region} if region else {"kind": kind}
    kind = find_kind(vendor)
    return {"kind": kind} if kind and kind != "openai-compatible" else None


def _make_vertex(params: SourceValue, model: str, draft: Draft) -> Section | None:
    project = draft.read_value(params.at("vertex_project"))
    location = draft.read_value(params.at("vertex_location")) or "us-central1"
    if not project or "claude" in model:
        return None
    return make_vertex(project, location, draft.read_value(params.at("vertex_credentials")) or "adc")


def _add_provider(params: SourceValue, draft: Draft, base: str, section: Section) -> str:
    """Add the provider, with its key and headers, and record the fields that it was made of."""
    key, organization = params.at("api_key"), params.at("organization")
    draft.take_keys([key], name_key(str(section["kind"]), base), section)
    headers = draft.take_headers(params.at("extra_headers", "headers"), base)
    if organization:
        headers["OpenAI-Organization"] = organization.text()
    if headers:
        section["headers"] = headers
    name = draft.add_provider(base, section)
    key.map(f"providers.{name}.api_key")
    organization.map(f"providers.{name}.headers")
    params.at("api_base", "base_url").map(f"providers.{name}.{'resource' if 'resource' in section else 'endpoint'}")
    params.at("aws_region_name").map(f"providers.{name}.region")
    for field in ("vertex_project", "vertex_location"):
        params.at(field).map(f"providers.{name}.endpoint")
    params.at("vertex_credentials").map(f"providers.{name}.credentials")
    for field in AWS_KEYS:
        params.at(field).skip(AWS_KEY_REASON)
    return name


def _read_aliases(aliases: SourceValue, draft: Draft) -> None:
    for alias, place in aliases.members().items():
        group = place.at("model") if isinstance(place.value, dict) else place
        for target in list(draft.routes.get(group.text(), ())):
            draft.add_target(alias, target)
        place.map("models.name") if alias in draft.routes else place.skip(f'there is no model "{group.text()}"')


def _read_fallbacks(fallbacks: SourceValue, draft: Draft) -> None:
    groups = {name: list(targets) for name, targets in draft.routes.items()}
    for element in fallbacks.elements():
        for name, place in element.members().items():
            for other in place.elements():
                for target in groups.get(other.text(), ()):
                    draft.add_target(name, target)
                known = other.text() in groups
                other.map("models.to") if known else other.skip(f'there is no model "{other.text()}"')
