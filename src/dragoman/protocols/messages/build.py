"""Build the body of a Messages request for an upstream from a hub request."""

import msgspec

from dragoman.framing.json_schema import Schema, add_to_description
from dragoman.hub.ext import note_foreign_fields, restore
from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import Profile, Target
from dragoman.hub.request import Format, Hosted, Request, Shape
from dragoman.passes.tag_instructions import split_leading_instructions
from dragoman.protocols.messages.build_content import Writer
from dragoman.protocols.messages.build_thinking import Thought, plan_thinking
from dragoman.protocols.messages.build_tools import write_tools
from dragoman.protocols.messages.build_turns import write_messages, write_system
from dragoman.protocols.messages.wire import DEFAULT_MAX_TOKENS, MCP_BETA, NAME, Wire

# No set: what a client gives as a format may be a list, which cannot be looked up in one.
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
_KEPT_KEYWORDS = frozenset({"type", "enum", "const", "title", "required", "default", "description"})
_SILENT = frozenset({"additionalProperties", "$schema", "$id", "$comment"})  # nothing to tell a model
_NAMED = frozenset({"properties", "$defs", "definitions"})  # their keys are names, their values are schemas
_CHOICES = {"oneOf": "anyOf", "anyOf": "anyOf", "allOf": "allOf"}
_JSON_ONLY = "Answer with one valid JSON object and nothing else."

# Fields that Messages has no word for, and the value of each that means nothing.
_UNSAID: dict[str, object] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "seed": None,
    "logprobs": False,
    "top_logprobs": 0,
    "verbosity": "medium",
    "cache_key": None,
    "metadata": {},
}


def clean_output(schema: object) -> object:
    """The schema of a structured output: objects are closed, and limits move into descriptions."""
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:  # a reference stands alone, but the root also holds what is referred to
        kept: Schema = {"$ref": schema["$ref"]}
        return kept | {key: _clean_each(value) for key, value in schema.items() if key in ("$defs", "definitions")}
    clean: Schema = {}
    told: Schema = {}
    for key, value in schema.items():
        if key in _KEPT_KEYWORDS or (key == "format" and value in _FORMATS) or (key == "minItems" and value in (0, 1)):
            clean[key] = value
        elif key in _NAMED:
            clean[key] = _clean_each(value)
        elif key in _CHOICES and isinstance(value, list) and _CHOICES[key] not in clean:
            clean[_CHOICES[key]] = [clean_output(choice) for choice in value]
        elif key == "items" and isinstance(value, dict):
            clean[key] = clean_output(value)
        elif key not in _SILENT or isinstance(value, dict):  # what a map's values are is worth telling
            told[key] = value
    if schema.get("type") == "object" or "properties" in schema:
        clean["additionalProperties"] = False
    return add_to_description(clean, told)


def _clean_each(schemas: object) -> object:
    if not isinstance(schemas, dict):
        return schemas
    return {name: clean_output(schema) for name, schema in schemas.items()}


def build(request: Request, target: Target, ledger: Ledger) -> bytes:
    note_foreign_fields(request, NAME, ledger)
    _tell_unsaid(request, ledger)
    writer = Writer(request, target, ledger)
    profile = target.profile
    max_tokens = _max_tokens(request, profile, ledger)
    thought = plan_thinking(request, target, max_tokens, ledger)
    offer = write_tools(request, profile, thought.on, writer)
    leading, turns = split_leading_instructions(request.turns)
    wire: Wire = {"model": target.model, "max_tokens": max_tokens}
    optional: Wire = {
        "system": write_system(leading, _instructions(request.format, ledger), writer),
        "messages": write_messages(turns, profile, writer),
        "tools": offer.tools or None,
        "mcp_servers": offer.servers or None,
        "tool_choice": offer.choice,
        "thinking": thought.thinking,
        "output_config": _output(request, thought, ledger),
        "stop_sequences": _stop(request, ledger) or None,
        **_sampling(request, profile, thought, ledger),
        "metadata": _end_user(request, ledger),
        "service_tier": _service_tier(request, ledger),
        "stream": request.stream or None,
    }
    wire |= {key: value for key, value in optional.items() if value is not None}
    writer.mark(wire, request.cache)
    writer.limit_breakpoints()
    if writer.own:
        restore(wire, request.ext)
    return msgspec.json.encode(wire)


def _tell_unsaid(request: Request, ledger: Ledger) -> None:
    if request.n is not None and request.n != 1:
        raise BadRequest(request.pointer("n"), "this upstream gives one answer at a time")
    for name, nothing in _UNSAID.items():
        value = getattr(request, name)
        if value is not None and value != nothing:
            ledger.note_dropped(request.pointer(name), "Messages has no such setting")


def _max_tokens(request: Request, profile: Profile, ledger: Ledger) -> int:
    at = request.pointer("max_tokens")
    if request.max_tokens is None:
        ledger.note_invented(at, "Messages demands a limit")
        return profile.max_output or DEFAULT_MAX_TOKENS
    if profile.max_output is not None and request.max_tokens > profile.max_output:
        ledger.note_approximated(at, f"this model writes at most {profile.max_output} tokens")
        return profile.max_output
    return request.max_tokens


def _instructions(format: Format | None, ledger: Ledger) -> list[str]:
    if format is None or format.shape is not Shape.JSON:
        return []
    ledger.note_approximated(format.at, "JSON is asked for in the instructions")
    return [_JSON_ONLY]


def _output(request: Request, thought: Thought, ledger: Ledger) -> Wire | None:
    output: Wire = {}
    if thought.effort is not None:
        output["effort"] = thought.effort
    format = request.format
    if format is not None and format.shape is Shape.SCHEMA:
        schema = format.schema
        if request.protocol != NAME:
            schema = _cleaned(format)
            ledger.note_approximated(format.at, "a schema has no name, and its limits are told in words")
        output["format"] = {"type": "json_schema", "schema": schema}
    return output or None


def _cleaned(format: Format) -> object:
    try:
        return clean_output(format.schema)
    except RecursionError as error:
        raise BadRequest(format.at, "the schema nests too deeply") from error


def _stop(request: Request, ledger: Ledger) -> list[str]:
    kept = [stop for stop in request.stop if stop.strip()]
    if len(kept) != len(request.stop):
        ledger.note_dropped(request.pointer("stop"), "a stop sequence must hold more than white space")
    return kept


def _sampling(request: Request, profile: Profile, thought: Thought, ledger: Ledger) -> Wire:
    """Temperature and its like, which newer models and thinking ones refuse; 1 is what they do anyway."""
    temperature = request.temperature
    wire: Wire = {"temperature": temperature, "top_p": request.top_p, "top_k": request.top_k}
    usual: Wire = {"temperature": 1, "top_p": 1, "top_k": None}
    reasons: dict[str, str] = {}
    if not profile.sampling:
        reasons = dict.fromkeys(wire, "this model chooses its sampling itself")
    elif thought.on and "enabled" in profile.thinking:
        reasons = dict.fromkeys(wire, "a thinking model chooses its sampling itself")
    for name, why in reasons.items():
        value = wire.pop(name)
        if value is not None and value != usual[name]:
            ledger.note_dropped(request.pointer(name), why)
    if "temperature" in wire and temperature is not None and temperature > 1:
        ledger.note_approximated(request.pointer("temperature"), "the highest temperature is 1")
        wire["temperature"] = 1
    return wire


def _end_user(request: Request, ledger: Ledger) -> Wire | None:
    own = request.protocol == NAME
    names = [name for name in ("user", "safety_identifier") if getattr(request, name) is not None]
    for name in names[1:]:
        ledger.note_dropped(request.pointer(name), "Messages knows one name of the end user")
    if not names:
        return None
    if not own:
        ledger.note_approximated(request.pointer(names[0]), "the end user is named in the metadata")
    return {"user_id": getattr(request, names[0])}


def _service_tier(request: Request, ledger: Ledger) -> str | None:
    tier = request.service_tier
    if tier is None or tier == "auto":
        return None
    at = request.pointer("service_tier")
    if tier != "default":
        ledger.note_dropped(at, f"Messages has no tier like {tier!r}")
        return None
    if request.protocol != NAME:
        ledger.note_approximated(at, "the default tier is called standard")
    return "standard_only"


def request_headers(request: Request) -> tuple[tuple[bytes, bytes], ...]:
    """Return the beta that a request with MCP servers needs."""
    uses_mcp = any(isinstance(tool, Hosted) and tool.kind == "mcp" for tool in request.tools)
    return (MCP_BETA,) if uses_mcp else ()
