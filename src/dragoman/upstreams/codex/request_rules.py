"""What the ChatGPT backend accepts: bodies that may pass unchanged, and requests fitted to it with losses recorded.

A body that Codex itself could have sent passes byte for byte, since that client is made for this backend, unlike any
translation: turn state, metadata and compacted contexts have a meaning there. Only instructions are added where it has
none. Any other body would be rejected for a single field, so it is rebuilt from the rest of the request.
"""

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.translate.caching.client_marks import remove_marks
from dragoman.translate.framing.jsonread import JSON_ERRORS
from dragoman.translate.framing.jsonscan import replace_value
from dragoman.translate.hub.ext import list_settings, record_unsupported
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import (
    Attribution,
    Ext,
    Hosted,
    Part,
    Request,
    Role,
    Text,
    Thinking,
    Tool,
    Turn,
)

NAME = "responses"
FIELDS = frozenset(
    (
        *("model", "instructions", "input", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "store"),
        *("stream", "stream_options", "include", "service_tier", "prompt_cache_key", "text", "client_metadata"),
    )
)
STREAM_OPTIONS = frozenset({"reasoning_summary_delivery"})
TIER = "priority"
ULTRA = "ultra"  # an effort that Codex names, but its backend does not
DEFAULT_INSTRUCTIONS = "You are a helpful assistant."
MAX_ID_LENGTH = 64

# Settings of a request that the backend rejects, and the value that is the default.
REJECTED = list_settings(
    {
        "max_tokens": None,
        "sampling.temperature": 1.0,
        "sampling.top_p": 1.0,
        "sampling.logprobs": False,
        "sampling.top_logprobs": None,
        "max_tool_calls": None,
        "attribution.user": None,
        "attribution.safety_identifier": None,
        "attribution.metadata": None,
    }
)
# Fields that Chat has too, and that would be copied.
SHARED = frozenset(("moderation", "prompt_cache_options", "prompt_cache_retention"))
NO_CACHE = "the ChatGPT backend accepts no cache breakpoints"
NO_SUCH_FIELD = "the ChatGPT backend accepts no such field"

_body = msgspec.json.Decoder(dict[str, Raw])


class _Reasoning(Struct):
    effort: str | None = None


class _Item(Struct):
    type: str = "message"
    role: str | None = None
    id: str | None = None
    encrypted_content: str | None = None


_items = msgspec.json.Decoder(list[_Item])


def passthrough_body(protocol: str, body: bytes) -> bytes | None:
    """Return the body if the backend accepts it, with instructions added where Codex leaves them out; else None."""
    try:
        fields = _body.decode(body)
        if not (
            fields.keys() <= FIELDS and _has_accepted_fields(fields) and _has_accepted_items(fields["input"], body)
        ):
            return None
    except (KeyError, *JSON_ERRORS):
        return None
    sentence = msgspec.json.encode(DEFAULT_INSTRUCTIONS)
    match bytes(fields.get("instructions", b"")):
        case b"":
            return b'{"instructions":%b,' % sentence + body.lstrip()[1:]
        case b"null" | b'""':
            return replace_value(body, "instructions", sentence)
    return body


def _has_accepted_fields(fields: dict[str, Raw]) -> bool:
    values = {name: bytes(value) for name, value in fields.items() if name != "input"}
    if values.get("store") != b"false" or values.get("stream") != b"true":
        return False
    options = msgspec.json.decode(values.get("stream_options", b"null"), type=dict[str, Raw] | None) or {}
    tier = msgspec.json.decode(values.get("service_tier", b"null"), type=str | None)
    reasoning = msgspec.json.decode(values.get("reasoning", b"null"), type=_Reasoning | None) or _Reasoning()
    settled = tier in (None, TIER) and reasoning.effort != ULTRA
    return settled and options.keys() <= STREAM_OPTIONS and not _has_parallel_calls_without_tools(fields)


def _has_parallel_calls_without_tools(fields: dict[str, Raw]) -> bool:
    """Return whether parallel calls are set without tools; Codex may also put tools into the input."""
    none = bytes(fields.get("tools", b"null")) in (b"[]", b"null")
    return none and "parallel_tool_calls" in fields and b'"additional_tools"' not in bytes(fields["input"])


def _has_accepted_items(given: Raw, body: bytes) -> bool:
    if b'"prompt_cache_breakpoint"' in body:
        return False
    return not any(
        item.role == "system"
        or item.type == "item_reference"
        or len(item.id or "") > MAX_ID_LENGTH
        or (item.type == "reasoning" and not item.encrypted_content)
        for item in _items.decode(given)
    )


def fit_request(request: Request, ledger: Ledger) -> Request:
    """Return the request without what the backend rejects, and with what it requires."""
    if request.protocol == NAME:  # those of others are not sent anyway
        request = remove_marks(request, lambda at: ledger.record_dropped(at, NO_CACHE))
    turns = tuple(_fit_turn(turn, ledger) for turn in request.turns)
    fitted = replace(
        request,
        turns=_add_instructions(request, [turn for turn in turns if turn.parts], ledger),
        tools=tuple(_fit_tool(tool) for tool in request.tools),
        parallel=request.parallel if request.tools else None,
        reasoning=_replace_ultra(request, ledger),
        attribution=Attribution(service_tier=_fit_tier(request, ledger)),
        ext=_keep_known_ext(request, ledger),
        # Nothing is stored upstream, so reasoning must be sent along.
        extras=replace(request.extras, encrypted_reasoning=True),
        stream=True,
        raw={**request.raw, "store": False},
        sampling=replace(request.sampling, temperature=None, top_p=None, logprobs=None, top_logprobs=None),
        max_tokens=None,
        max_tool_calls=None,
    )
    record_unsupported(request, REJECTED, NO_SUCH_FIELD, ledger)
    return fitted


def _keep_known_ext(request: Request, ledger: Ledger) -> Ext:
    kept: Ext = {}
    for pointer, value in request.ext.items():
        head, _, rest = pointer.partition("/")
        ours = head in FIELDS and (head != "stream_options" or rest in STREAM_OPTIONS)
        if ours or (request.protocol != NAME and head not in SHARED):
            kept[pointer] = value
        else:
            ledger.record_dropped(f"/{pointer}", NO_SUCH_FIELD)
    return kept


def _fit_tier(request: Request, ledger: Ledger) -> str | None:
    tier = request.attribution.service_tier
    if tier in (None, TIER):
        return tier
    if tier != "default":
        ledger.record_dropped(request.pointer("service_tier"), f"the ChatGPT backend has only one other tier, {TIER}")
    return None


def _replace_ultra(request: Request, ledger: Ledger) -> object:
    reasoning = request.reasoning
    if reasoning is None or reasoning.effort != ULTRA:
        return reasoning
    ledger.record_approximated(reasoning.at, "the ChatGPT backend accepts 'max' instead of 'ultra'")
    return replace(reasoning, effort="max")


def _add_instructions(request: Request, turns: list[Turn], ledger: Ledger) -> tuple[Turn, ...]:
    """Make leading system text the instructions, and later system turns developer turns: there is no system role."""
    at = "/instructions"
    leading: list[Turn] = []
    while turns and _is_leading_system(turns[0], request):
        leading.append(turns.pop(0))
    texts = [part for turn in leading for part in turn.parts]
    if not texts:
        ledger.record_invented(at, "the ChatGPT backend requires instructions: a neutral sentence")
        texts = [Text(DEFAULT_INSTRUCTIONS, at)]
    elif request.protocol == NAME:
        texts = [Text("\n\n".join(part.text for part in texts if isinstance(part, Text)), at)]
    rest = (replace(turn, role=Role.DEVELOPER) if turn.role is Role.SYSTEM else turn for turn in turns)
    return (Turn(Role.SYSTEM, tuple(texts), at), *rest)


def _is_leading_system(turn: Turn, request: Request) -> bool:
    roles = (Role.SYSTEM,) if request.protocol == NAME else (Role.SYSTEM, Role.DEVELOPER)
    return turn.role in roles and all(isinstance(part, Text) for part in turn.parts)


def _fit_turn(turn: Turn, ledger: Ledger) -> Turn:
    return replace(turn, parts=tuple(part for part in turn.parts if not _is_reasoning_reference(part, ledger)))


def _is_reasoning_reference(part: Part, ledger: Ledger) -> bool:
    """Return whether it is reasoning by id alone, which refers to nothing: the backend stores none."""
    if not isinstance(part, Thinking) or part.opaque is not None:
        return False
    ledger.record_dropped(part.at, "reasoning without its encrypted form means nothing to this upstream")
    return True


def _fit_tool(tool: Tool) -> Tool:
    raw = tool.raw if isinstance(tool, Hosted) and tool.kind == "web_search" else None
    if isinstance(tool, Hosted) and isinstance(raw, dict) and str(raw.get("type")).startswith("web_search_preview"):
        return replace(tool, raw={**raw, "type": "web_search"})
    return tool
