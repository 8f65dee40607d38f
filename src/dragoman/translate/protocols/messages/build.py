"""Build the body of a Messages request for an upstream from a hub request."""

import msgspec

from dragoman.translate.hub.ext import list_settings, record_foreign_fields, record_unsupported, restore
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.profile import Profile, Target
from dragoman.translate.hub.request import NO_SAMPLING, Format, Hosted, Request, Shape
from dragoman.translate.passes.adapt_tools import DEFINITIONS, Schema, add_to_description, map_schemas
from dragoman.translate.passes.adapt_turns import split_leading_instructions
from dragoman.translate.protocols.messages.build_cache import encode_with_marks
from dragoman.translate.protocols.messages.build_content import ContentBuilder
from dragoman.translate.protocols.messages.build_thinking import ThinkingPlan, plan_thinking
from dragoman.translate.protocols.messages.build_tools import build_tools
from dragoman.translate.protocols.messages.build_turns import build_messages, build_system
from dragoman.translate.protocols.messages.wire import BINDING_BETA, DEFAULT_MAX_TOKENS, MCP_BETA, NAME, Wire

# Not a set: a client's `format` may be a list, which is not hashable.
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
_KEPT_KEYWORDS = frozenset({"type", "enum", "const", "title", "required", "default", "description"})
_MEANINGLESS = frozenset({"additionalProperties", "$schema", "$id", "$comment"})  # without meaning for a model
_NAMED = frozenset({"properties", *DEFINITIONS})
_CHOICES = {"oneOf": "anyOf", "anyOf": "anyOf", "allOf": "allOf"}
_JSON_ONLY = "Answer with one valid JSON object and nothing else."

# Fields that Messages does not have, and the default of each, which is no loss.
_UNSUPPORTED = list_settings(
    {
        "sampling.frequency_penalty": 0,
        "sampling.presence_penalty": 0,
        "sampling.seed": None,
        "sampling.logprobs": False,
        "sampling.top_logprobs": 0,
        "verbosity": "medium",
        "attribution.metadata": {},
    }
)


def _clean_schema(schema: object) -> object:
    """Return a schema that Anthropic accepts: objects are closed, and limits move into descriptions."""
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:  # a reference has no siblings except definitions at the root
        remaining: Schema = {"$ref": schema["$ref"]}
        return remaining | {
            key: map_schemas(key, value, _clean_schema) for key, value in schema.items() if key in DEFINITIONS
        }
    clean: Schema = {}
    described: Schema = {}
    for key, value in schema.items():
        if key in _KEPT_KEYWORDS or (key == "format" and value in _FORMATS) or (key == "minItems" and value in (0, 1)):
            clean[key] = value
        elif key in _NAMED or (key == "items" and isinstance(value, dict)):
            clean[key] = map_schemas(key, value, _clean_schema)
        elif key in _CHOICES and isinstance(value, list) and _CHOICES[key] not in clean:
            clean[_CHOICES[key]] = [_clean_schema(choice) for choice in value]
        elif key not in _MEANINGLESS or isinstance(value, dict):  # the type of a map's values is described
            described[key] = value
    if schema.get("type") == "object" or "properties" in schema:
        clean["additionalProperties"] = False
    return add_to_description(clean, described)


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    record_foreign_fields(request, NAME, ledger)
    _drop_unsupported(request, ledger)
    content = ContentBuilder(request, target, ledger)
    profile = target.profile
    max_tokens = _choose_max_tokens(request, profile, ledger)
    thinking = plan_thinking(request, target, max_tokens, ledger)
    offered = build_tools(request, profile, thinking.on, content)
    leading, turns = split_leading_instructions(request.turns)
    wire: Wire = {"model": target.model, "max_tokens": max_tokens}
    optional: Wire = {
        "system": build_system(leading, _format_instructions(request.format, ledger), content),
        "messages": build_messages(turns, profile, content),
        "tools": offered.tools or None,
        "mcp_servers": offered.servers or None,
        "tool_choice": offered.choice,
        "thinking": _with_binding(thinking.thinking) if request.vendor.drops_unbound else thinking.thinking,
        "output_config": _build_output_config(request, thinking, ledger),
        **(_build_sampling(request, profile, thinking, ledger) if request.sampling != NO_SAMPLING else {}),
        "metadata": _build_metadata(request, ledger),
        "service_tier": _choose_service_tier(request, ledger),
        "stream": request.stream or None,
    }
    wire |= {key: value for key, value in optional.items() if value is not None}
    if not content.same_protocol:
        return encode_with_marks(wire, content.marked, target)
    content.mark(wire, request.cache)
    content.limit_breakpoints()
    restore(wire, request.ext)
    return msgspec.json.encode(wire)


def _with_binding(thinking: Wire | None) -> Wire:
    """Return the thinking settings with which reasoning of another conversation is left out instead of refused."""
    return {**(thinking or {"type": "adaptive"}), "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def _drop_unsupported(request: Request, ledger: Ledger) -> None:
    count = request.sampling.n
    if count is not None and count != 1:
        raise BadRequest(request.pointer("n"), f"n must be 1, got {count}: a Messages upstream returns one answer.")
    record_unsupported(request, _UNSUPPORTED, "Messages has no such setting", ledger)


def _choose_max_tokens(request: Request, profile: Profile, ledger: Ledger) -> int:
    requested, most = request.max_tokens, profile.max_output
    if requested is None:
        ledger.record_invented(request.pointer("max_tokens"), "Messages requires a limit")
        return most or DEFAULT_MAX_TOKENS
    if most is not None and requested > most:
        ledger.record_approximated(request.pointer("max_tokens"), f"this model writes at most {most} tokens")
        return most
    return requested


def _format_instructions(format: Format | None, ledger: Ledger) -> list[str]:
    if format is None or format.shape is not Shape.JSON:
        return []
    ledger.record_approximated(format.at, "JSON is requested in the instructions")
    return [_JSON_ONLY]


def _build_output_config(request: Request, thinking: ThinkingPlan, ledger: Ledger) -> Wire | None:
    output: Wire = {}
    if thinking.effort is not None:
        output["effort"] = thinking.effort
    format = request.format
    if format is not None and format.shape is Shape.SCHEMA:
        schema = format.schema
        if request.protocol != NAME:
            schema = _clean_format_schema(format)
            ledger.record_approximated(format.at, "a schema has no name, and its limits move into descriptions")
        output["format"] = {"type": "json_schema", "schema": schema}
    return output or None


def _clean_format_schema(format: Format) -> object:
    try:
        return _clean_schema(format.schema)
    except RecursionError as error:
        raise BadRequest(format.at, "The schema of the response format is nested too deeply.") from error


def _build_stop_sequences(request: Request, ledger: Ledger) -> list[str]:
    stops = request.sampling.stop
    remaining = [stop for stop in stops if stop.strip()]
    if len(remaining) != len(stops):
        ledger.record_dropped(request.pointer("stop"), "a stop sequence must hold more than white space")
    return remaining


def _build_sampling(request: Request, profile: Profile, thinking: ThinkingPlan, ledger: Ledger) -> Wire:
    """Return the sampling settings, which newer and thinking models reject; 1 is the default and no loss."""
    sampling, temperature = request.sampling, request.sampling.temperature
    stops = _build_stop_sequences(request, ledger) or None
    wire: Wire = {"temperature": temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    usual: Wire = {"temperature": 1, "top_p": 1, "top_k": None}
    reasons: dict[str, str] = {}
    if not profile.sampling:
        reasons = dict.fromkeys(wire, "this model chooses its sampling itself")
    elif thinking.on and "enabled" in profile.thinking:
        reasons = dict.fromkeys(wire, "a thinking model chooses its sampling itself")
    for name, why in reasons.items():
        value = wire.pop(name)
        if value is not None and value != usual[name]:
            ledger.record_dropped(request.pointer(name), why)
    if "temperature" in wire and temperature is not None and temperature > 1:
        ledger.record_approximated(request.pointer("temperature"), "the highest temperature is 1")
        wire["temperature"] = 1
    return {"stop_sequences": stops, **wire}


def _build_metadata(request: Request, ledger: Ledger) -> Wire | None:
    user, safety_identifier = request.attribution.user, request.attribution.safety_identifier
    if user is None and safety_identifier is None:
        return None
    if user is not None and safety_identifier is not None:
        ledger.record_dropped(request.pointer("safety_identifier"), "Messages has one id for the end user")
    if request.protocol != NAME:
        at = request.pointer("safety_identifier" if user is None else "user")
        ledger.record_approximated(at, "the end user's id is sent in the metadata")
    return {"user_id": safety_identifier if user is None else user}


def _choose_service_tier(request: Request, ledger: Ledger) -> str | None:
    tier = request.attribution.service_tier
    if tier is None or tier == "auto":
        return None
    at = request.pointer("service_tier")
    if tier != "default":
        ledger.record_dropped(at, f"Messages has no tier like {tier!r}")
        return None
    if request.protocol != NAME:
        ledger.record_approximated(at, "the default tier is called standard")
    return "standard_only"


def request_headers(request: Request) -> tuple[tuple[bytes, bytes], ...]:
    """Return the betas that a request needs: for MCP servers, and to leave out reasoning of another conversation."""
    uses_mcp = Hosted in map(type, request.tools) and any(
        type(tool) is Hosted and tool.kind == "mcp" for tool in request.tools
    )
    betas = [*([MCP_BETA] if uses_mcp else ()), *([BINDING_BETA] if request.vendor.drops_unbound else ())]
    return ((b"anthropic-beta", b",".join(betas)),) if betas else ()
