"""The table of rejections: which words of an upstream mean what, and what is changed about the request.

A rule applies only if its words are the whole message and the request has what they are about. Rules with a quirk
change how a request is built; those with edits change its bytes, so that they serve requests that pass unchanged too.
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache
from itertools import combinations

from msgspec import Struct

from dragoman.translate.hub.profile import EFFORTS
from dragoman.translate.protocols.messages.wire import MARKED_PLACES, NO_MARK_ON
from dragoman.upstreams.rejections import changes
from dragoman.upstreams.rejections.changes import Edits, MakeEdits
from dragoman.upstreams.rejections.complaint import HOLE, MAX_SENTENCES, PATH, Complaint
from dragoman.upstreams.rejections.guards import (
    Guard,
    find_keyword,
    find_keyword_anywhere,
    find_named,
    has_cache_point,
    has_calls,
    has_custom_tool,
    has_field,
    if_edited,
    refuses_mark,
)
from dragoman.upstreams.rejections.sent import Sent, format_path, parse_path

CHAT = frozenset(("chat",))
MESSAGES = frozenset(("messages",))
GEMINI = frozenset(("gemini",))
OPENAI = frozenset(("chat", "responses"))
CONVERSATIONS = frozenset(("chat", "messages", "responses"))
KIRO = frozenset(("kiro",))
ANY = frozenset(("chat", "messages", "responses", "gemini"))
REJECTED = frozenset((400, 422, 500))  # 500: of servers whose template raises an exception
EVEN_200 = REJECTED | {200}
_QUOTED = f"(?:{HOLE}|\"{PATH}\"|'{PATH}'|`{PATH}`)"
_VALUE = rf"(?:True|False|None|[\d.-]{{1,30}}|{_QUOTED})"  # as Python writes it
_LIST = r"(?:one of )?`?\w{1,40}`?(?:(?:,|,? or) `?\w{1,40}`?){0,9}"
NO_CHAT_TOOLS = "no_chat_tools"  # a quirk of one model: its tools need the Responses endpoint


class RuleScope(Enum):
    """What a rule is learnt for, besides the tenant of the rejected request."""

    PROVIDER = "provider"
    MODEL = "model"
    REQUEST = "request"  # not at all


class Found(Struct, frozen=True):
    """What is learnt: a rule, and the field that it is about."""

    rule: str
    path: str = ""  # a JSON pointer, with `*` for every element


class Rule(Struct, frozen=True, kw_only=True):
    id: str
    protocols: frozenset[str] = ANY
    statuses: frozenset[int] = REJECTED
    words: tuple[str, ...] = ()  # patterns, each of a whole message
    is_list: bool = False  # the vendor writes several sentences, one in each line
    in_detail: bool = False  # only where it is the `detail` of the error
    guard: Guard
    edit: MakeEdits | None = None
    quirk: str = ""
    is_free: bool = False  # it costs the client nothing, so that strict requests follow it too
    scope: RuleScope = RuleScope.MODEL
    source: str  # where the words were seen


def _say(*sentences: str) -> tuple[str, ...]:
    """Return the patterns of sentences: <field> is a name or path, <text> something quoted, <list> several of them."""
    marks = {"<field>": f"(?P<path>{PATH})", "<text>": _QUOTED, "<list>": _LIST, "<value>": _VALUE}
    for mark, pattern in marks.items():
        sentences = tuple(sentence.replace(mark, pattern) for sentence in sentences)
    return sentences


@cache
def _compile(words: str) -> re.Pattern[str]:
    """Compile a pattern when a rejection comes: all of them would take memory and time at the start."""
    return re.compile(words, re.IGNORECASE)


_VARIANT = (
    r"(?:Failed to deserialize the JSON body into the target type: )?"
    r"messages\[\d+\]\.role: unknown variant `?{}`?, expected <list>(?: at line \d+ column \d+)?"
)

_EXTRA = _say(
    r"<field>: Extra inputs are not permitted\.?",
    r"(?:Malformed input request: )?#(?P<inside>[\w/]{0,256}): extraneous key \[<field>\] is not permitted"
    r"(?:, please reformat your input and try again)?\.?",
    r"Validation error at #/(?P<path>[\w/.-]{1,256}): Extra inputs are not permitted\.?",
    r"(?:\d{1,4} request validation errors?: )?Extra inputs are not permitted, field: '<field>'(?:, value: <value>)?"
    r"(?:; Extra inputs are not permitted, field: <text>(?:, value: <value>)?)*+",
)
_FORBIDDEN = _say(r"extra_forbidden: <field>")
_UNSUPPORTED = _say(
    r"(?:Validation: )?Un(?:supported|known|recognized) parameter(?:\(s\))?: ['\"`]?<field>['\"`]?"
    r"(?: is not supported with this model)?\.?",
    r"Unrecognized request argument supplied: <field>",
    r"Model [\w.:/@-]{1,256} does not support parameter <field>\.?",
    r"['\"`]<field>['\"`] is not supported with this model\.?",
)
_PROPERTY = _say(
    rf"(?:'(?P<inside>{PATH})' ?: (?:for <text> the following must be satisfied\[\('{PATH}' ?: )?)?"
    rf"property '<field>' is unsupported(?:, did you mean '{PATH}'\?)?(?:\)\])?"
)

RULES: tuple[Rule, ...] = (
    Rule(
        id="leading_system",
        protocols=CONVERSATIONS,
        words=_say(
            r"(?:Chat template error: )?system message must be at the beginning\.?",
            r"Unexpected role 'system' after role '(?:user|assistant|tool|system|developer)'\.?",
        ),
        guard=if_edited(changes.tag_later_system),
        edit=changes.tag_later_system,
        source="vllm#41114, claude-code#77698, ollama#17774, litellm#26879, Rapid-MLX#1543, swarmauri-sdk#162, "
        "lemonade#2674",
    ),
    Rule(
        id="no_system_role",
        protocols=CONVERSATIONS,
        words=_say(
            _VARIANT.format("system"),
            r"messages: Unexpected role \"system\"\. The Messages API accepts a top-level `system` parameter, not "
            r"\"system\" as an input message role\.?",
            r"messages\[\d+\]\.role must be either 'user' or 'assistant', but got 'system'\.?",
            r"messages\.\d+\.role: Input should be 'user' or 'assistant'",
        ),
        guard=if_edited(changes.tag_later_system),
        edit=changes.tag_later_system,
        scope=RuleScope.PROVIDER,
        source="Qwen#2244, claude-code#63395, claude-code#63473, kiro-gateway PR197, cursor-claude-connector#3",
    ),
    Rule(
        id="no_betas",
        protocols=MESSAGES,
        words=_say(r"invalid beta flag"),
        guard=if_edited(changes.drop_betas),
        edit=changes.drop_betas,
        source="claude-code#49370, #56595, CLIProxyAPI#4750",
    ),
    Rule(
        id="block_cache_mark",
        protocols=MESSAGES,
        words=_say(r"cache_control: Extra inputs are not permitted\.?"),
        guard=has_field("cache_control"),
        edit=changes.mark_last_block,
        source="copilot-api PR263",
    ),
    Rule(
        id="adaptive_thinking",
        protocols=MESSAGES,
        words=_say(
            r'"thinking\.type\.enabled" is not supported for this model\. '
            r'Use "thinking\.type\.adaptive" and "output_config\.effort"(?: to control thinking behavior)?\.?'
        ),
        guard=if_edited(changes.send_adaptive),
        edit=changes.send_adaptive,
        source="aelix-ai#258",
    ),
    Rule(
        id="thinking_budget",
        protocols=MESSAGES,
        words=_say(
            r"adaptive thinking is not supported on this model\.?",
            r"Only 'enabled' and 'disabled' are supported for thinking; 'adaptive' is not supported\.?",
            r"(?:Validation: )?`thinking\.type` must be `enabled` or `disabled`",
            r"thinking type should be enabled or disabled",
            r"thinking\.type: Input should be 'enabled' or 'disabled'",
            r"(?:Invalid request: )?thinking\.type: Invalid enum value\. Expected 'enabled' \| 'disabled', "
            r"received 'adaptive'",
            r"thinking: Input tag 'adaptive' found using 'type' does not match any of the expected tags: "
            r"'disabled', 'enabled'",
        ),
        guard=if_edited(changes.send_budget),
        edit=changes.send_budget,
        source="claude-code#89633, #29531, omlx#56",
    ),
    Rule(
        id="no_sampling",
        words=_say(
            r"`(?:temperature|top_p|top_k)` is deprecated for this model\.?",
            r"Unsupported value: '(?:temperature|top_p)' does not support \S+ with this model\. "
            r"Only the default \(1\) value is supported\.?",
        ),
        guard=if_edited(changes.drop_sampling),
        edit=changes.drop_sampling,
        source="github/app#2574",
    ),
    Rule(
        id="no_prefill",
        protocols=CONVERSATIONS,
        statuses=EVEN_200,
        words=(
            r"This model does not support assistant message prefill\. The conversation must end with a user message\.?",
        ),
        guard=if_edited(changes.end_with_user),
        edit=changes.end_with_user,
        source="vscode-unify#249, opencode#13768",
    ),
    Rule(
        id="no_developer",
        protocols=OPENAI,
        words=_say(
            _VARIANT.format("developer"),
            r"(?:Unexpected|Invalid) role:? '?developer'?\.?",
        ),
        guard=if_edited(changes.replace_role("developer", "system")),
        edit=changes.replace_role("developer", "system"),
        scope=RuleScope.PROVIDER,
        source="9router#773",
    ),
    Rule(
        id="replay_reasoning",
        protocols=CHAT,
        words=_say(
            r"The `reasoning_content` in the thinking mode must be passed back to the API\.?",
            r"thinking is enabled but reasoning_content is missing in assistant tool call message at index \d+\.?",
        ),
        guard=if_edited(changes.add_reasoning),
        edit=changes.add_reasoning,
        quirk="replay_thinking",  # the thinking that there is; the edit adds the rest
        source="pi#3636, hermes PR15228, kimi-agent-sdk#169",
    ),
    Rule(
        id="no_thinking_with_choice",
        protocols=frozenset(("chat", "messages")),
        words=_say(r"tool_choice '?(?:specified|required)'? is incompatible with thinking enabled\.?"),
        guard=if_edited(changes.stop_thinking),
        edit=changes.stop_thinking,
        scope=RuleScope.REQUEST,
        source="oh-my-pi#1077",
    ),
    Rule(
        id="max_tokens",
        protocols=CHAT,
        words=_say(
            r"(?:extra_forbidden: )?(?P<path>max_completion_tokens)(?:: Extra inputs are not permitted\.?)?",
            r"Un(?:supported|known|recognized) parameter(?:\(s\))?: ['\"`]?(?P<path>max_completion_tokens)['\"`]?"
            r"(?: is not supported with this model)?\.?",
        ),
        guard=has_field("max_completion_tokens"),
        edit=changes.rename("max_completion_tokens", "max_tokens"),
        scope=RuleScope.PROVIDER,
        source="eca#231, litellm#30835",
    ),
    Rule(
        id="max_completion_tokens",
        protocols=CHAT,
        words=_say(
            r"Unsupported parameter: 'max_tokens' is not supported with this model\. "
            r"Use 'max_completion_tokens' instead\.?"
        ),
        guard=has_field("max_tokens"),
        edit=changes.rename("max_tokens", "max_completion_tokens"),
        source="gollm#33, opencode#37964, copilot-api#164",
    ),
    Rule(
        id="no_user_after_tool",
        protocols=CONVERSATIONS,
        words=_say(r"Unexpected role 'user' after role 'tool'\.?"),
        guard=if_edited(changes.join_tool_text),
        edit=changes.join_tool_text,
        source="avante PR2695",
    ),
    Rule(
        id="alternating_roles",
        protocols=CONVERSATIONS,
        words=_say(
            r"(?:(?:After the optional system message, )?conversation roles must alternate "
            r"user/assistant/user/assistant/\.\.\. ?){1,2}",
            r"After the optional system message, conversation roles must alternate user and assistant roles "
            r"except for tool calls and results\.?",
        ),
        guard=if_edited(changes.merge_neighbours),
        edit=changes.merge_neighbours,
        source="vllm#6862",
    ),
    Rule(
        id=NO_CHAT_TOOLS,
        protocols=CHAT,
        words=_say(
            r"Function tools with reasoning_effort are not supported for \S{1,256} in /v1/chat/completions\. "
            r"(?:To use function tools, use|Please use) /v1/responses"
            r"(?: instead| or set reasoning_effort to 'none')?\.?",
        ),
        guard=has_field("tools"),
        edit=changes.send_no_effort,
        quirk=NO_CHAT_TOOLS,
        source="leviath#333, litellm PR34569",
    ),
    Rule(
        id="no_effort",
        protocols=CONVERSATIONS,
        words=_say(r"<text> does not support thinking\.?"),
        guard=if_edited(changes.drop_effort),
        edit=changes.drop_effort,
        source="openclaude#1371, claude-code#2245, claude-code#2507",
    ),
    Rule(
        id="no_custom_tools",
        protocols=OPENAI,
        words=_say(
            r"(?:Failed to deserialize the JSON body into the target type: )?"
            r"tools(?:\[\d+\]|\.\d+)\.type: unknown variant `custom`, expected <list>(?: at line \d+ column \d+)?",
            r"Invalid value: 'custom'\. Supported values are: 'function'\.?",
        ),
        guard=has_custom_tool,
        quirk="no_custom_tools",
        scope=RuleScope.PROVIDER,
        source="copilot-cli#4840",
    ),
    Rule(
        id="short_call_ids",
        protocols=CHAT,
        words=_say(r"Tool call id was \S{1,256} but must be a-z, A-Z, 0-9, with a length of 9\.?"),
        guard=has_calls,
        quirk="short_call_ids",
        scope=RuleScope.PROVIDER,
        source="opencode#1680, gptel#1203, langchain PR24668",
    ),
    Rule(
        id="signature_placeholder",
        protocols=GEMINI,
        words=_say(
            r"Function call is missing a thought_signature in functionCall parts\."
            r"(?: This is required for tools to work correctly, and missing thought_signature may lead to degraded "
            r"model performance\.)?"
            r"(?: Additional data, function call (?:<text>|[\w.:/-]{1,256}) ?, position \d+\.?)?"
            r"(?: Please refer to https://\S{1,200} for more details\.?)?",
            r"Unable to submit request because function call <text> in the \d+\. content block is missing a "
            r"`thought_signature`\.(?: Learn more: https://\S{1,200})?",
        ),
        guard=if_edited(changes.add_placeholders),
        edit=changes.add_placeholders,
        source="Antigravity-Manager#139, Antigravity-Manager#3202, 5ire#405, pydantic-ai#3881, gemini-cli#26639",
    ),
    Rule(
        id="schema_keyword",
        protocols=ANY,
        words=_say(
            r"Invalid JSON payload received\. Unknown name \"<field>\" at (?P<at><text>): Cannot find field\.?",
        ),
        is_list=True,
        guard=find_keyword_anywhere,
        edit=changes.drop_keyword,
        scope=RuleScope.PROVIDER,
        source="octopus#252, CLIProxyAPI#5065",
    ),
    Rule(
        id="unknown_keyword",
        words=(*_EXTRA, *_FORBIDDEN, *_UNSUPPORTED, *_PROPERTY),
        guard=find_keyword,
        edit=changes.drop_keyword,
        scope=RuleScope.PROVIDER,
        source="the words of the rules for fields",
    ),
    Rule(
        id="no_cache_points",
        protocols=KIRO,
        words=_say(
            r"(?:Unexpected|Unknown|Unsupported) (?:member|field|property|key):? cachePoint(?: in \w{1,80})?\.?",
            r"(?:Malformed input request: )?(?:[\w./#-]{1,256}: )?extraneous key \[cachePoint\] is not permitted"
            r"(?:, please reformat your input and try again)?\.?",
            r"cachePoint is not (?:supported|allowed|permitted)(?: (?:by|for|with) this model)?\.?",
        ),
        guard=has_cache_point,
        quirk="no_cache_points",
        is_free=True,
        source="AWS's words for a member that it does not know",
    ),
    *(
        Rule(
            id=f"{NO_MARK_ON}{place}",
            protocols=MESSAGES,
            words=_EXTRA,
            guard=refuses_mark(place),
            edit=changes.drop_marks(place),
            quirk=f"{NO_MARK_ON}{place}",
            is_free=True,
            source="the words of extra_field",
        )
        for place in MARKED_PLACES
    ),
    # For fields that are not known yet: the field that the error names is left out.
    Rule(
        id="extra_field",
        words=_EXTRA,
        guard=find_named,
        edit=changes.drop_field,
        source="claude-code#82549, copilot-api#145, PR261, opencode#24696, semantic-kernel#10510, 9router#1442",
    ),
    Rule(
        id="forbidden_field",
        words=_FORBIDDEN,
        guard=find_named,
        edit=changes.drop_field,
        scope=RuleScope.PROVIDER,
        source="eca#231, litellm#30835",
    ),
    Rule(
        id="extra_name",
        words=_say(
            r"Invalid JSON payload received\. Unknown name \"<field>\"(?: at '(?P<inside>"
            + PATH
            + r")')?: Cannot find field\.?"
        ),
        is_list=True,
        guard=find_named,
        edit=changes.drop_field,
        scope=RuleScope.PROVIDER,
        source="octopus#252",
    ),
    Rule(
        id="unsupported_detail",
        in_detail=True,
        words=_say(r"Unsupported parameter: ['\"`]?<field>['\"`]?\.?"),
        guard=find_named,
        edit=changes.drop_field,
        scope=RuleScope.PROVIDER,
        source="OmniRoute#2770",
    ),
    Rule(
        id="unsupported_parameter",
        words=_UNSUPPORTED,
        guard=find_named,
        edit=changes.drop_field,
        source="model-hotel PR879, OmniRoute#6625, OmniRoute#848, LinguaGacha#771, pi#8381",
    ),
    Rule(
        id="unsupported_property",
        words=_PROPERTY,
        guard=find_named,
        edit=changes.drop_field,
        scope=RuleScope.PROVIDER,
        source="freellmapi#1070, fanenr/chatbot#21, gptel#774, beeai-framework#487",
    ),
    *(
        Rule(
            id=f"effort_{refused}_as_{named}",
            protocols=CONVERSATIONS,
            guard=lambda sent, found: None,
            edit=changes.replace_effort(refused, named),
            source="ollama PR17331, ollama PR17252",
        )
        for refused, named in combinations(reversed(EFFORTS), 2)
    ),
)

BY_ID = {rule.id: rule for rule in RULES}
POSITIONS = {rule.id: number for number, rule in enumerate(RULES)}  # rules are applied in this order
_PARAMETER_CODES = frozenset(("unsupported_parameter", "unknown_parameter"))
_EFFORT_VALUE = re.compile(
    r"""invalid reasoning value: ['"](\w{1,40})['"] \(must be ([^()]{1,300})\)"""
    r"""|Unsupported value: '(\w{1,40})' is not supported with the \S{1,256} model\. """
    r"""Supported values are: ((?:'\w{1,40}'(?:,? and |, )?){1,9})\.?""",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_QUOTES = "'\"` "
# The plurals of NVIDIA's and OpenAI's sentences about one parameter.
_SEVERAL = re.compile(
    r"(?:(?:Validation: )?Unsupported parameter\(s\)|Unrecognized request arguments supplied): "
    rf"((?:['\"`]?[\w-]{{1,256}}['\"`]?, ?){{1,{MAX_SENTENCES - 1}}}['\"`]?[\w-]{{1,256}}['\"`]?)\.?",
    re.IGNORECASE,
)


def find_rules(complaint: Complaint, sent: Sent) -> tuple[Found, ...]:
    """Return the rules that a complaint about this request is an instance of; none if nothing is to be changed."""
    sentences = [(complaint.message, False), *((line, True) for line in _split_list(complaint.message, sent.protocol))]
    sentences += [(f"Unsupported parameter: {name}", False) for name in _list_names(complaint.message)]
    sentences += [(f"extra_forbidden: {extra}", False) for extra in complaint.extras]
    sentences += [(each, False) for each in complaint.literals]
    sentences += [(each, True) for each in complaint.violations if sent.protocol == "gemini"]
    if complaint.param and complaint.code in _PARAMETER_CODES:
        sentences.append((f"Unsupported parameter: {complaint.param}", False))
    found = [_match(text.strip(), complaint, sent, of_list=of_list) for text, of_list in sentences]
    found.append(_match_effort(complaint, sent))
    return tuple(dict.fromkeys(one for one in found if one is not None))


def _list_names(message: str) -> list[str]:
    """Return the names of a sentence about several parameters."""
    named = _SEVERAL.fullmatch(message)
    return [] if named is None else [name.strip(_QUOTES) for name in named[1].split(",")]


def _split_list(message: str, protocol: str) -> list[str]:
    """Return the sentences of a message that is a vendor's list of them; one that only quotes such a line has none."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    lists = [rule for rule in RULES if rule.is_list and protocol in rule.protocols]
    patterns = [words for rule in lists for words in map(_compile, rule.words)]
    is_list = all(any(words.fullmatch(line) for words in patterns) for line in lines)
    return lines[:MAX_SENTENCES] if is_list else []


def _match(text: str, complaint: Complaint, sent: Sent, *, of_list: bool) -> Found | None:
    """Return the first rule that has this sentence among its words."""
    for rule in RULES:
        if rule.is_list is not of_list or sent.protocol not in rule.protocols or complaint.status not in rule.statuses:
            continue
        if rule.in_detail and not complaint.in_detail:
            continue
        for words in map(_compile, rule.words):
            fit = words.fullmatch(text)
            path = None if fit is None else rule.guard(sent, fit)
            if path is not None:
                return Found(rule.id, format_path(path))
    return None


def _match_effort(complaint: Complaint, sent: Sent) -> Found | None:
    """Return the rule for the nearest lower effort that the server takes, where it lists those."""
    fit = _EFFORT_VALUE.fullmatch(complaint.message) if sent.protocol in CONVERSATIONS else None
    if fit is None or complaint.status not in REJECTED:
        return None
    refused, taken = fit[1] or fit[3], _WORD.findall(fit[2] or fit[4])
    at, effort = changes.find_effort(sent)
    if effort != refused or refused not in EFFORTS:
        return None
    lower = [named for named in EFFORTS[: EFFORTS.index(refused)] if named in taken]
    return Found(f"effort_{refused}_as_{lower[-1]}", format_path(at)) if lower else None


def make_edits(found: Sequence[Found], sent: Sent) -> Edits:
    """Return what a rule changes about a request; `found` has several fields only if they are left out."""
    rule = BY_ID.get(found[0].rule)
    if rule is None or rule.edit is None or sent.protocol not in rule.protocols:
        return changes.NOTHING
    paths = [parse_path(each.path) for each in found]
    return changes.drop_fields(sent, paths) if len(paths) > 1 else rule.edit(sent, paths[0])


def list_free(found: Iterable[Found]) -> tuple[Found, ...]:
    """Return those that cost a client nothing."""
    return tuple(each for each in found if (rule := BY_ID.get(each.rule)) is not None and rule.is_free)


def list_quirks(found: Iterable[Found]) -> frozenset[str]:
    """Return the quirks with which requests are built where these rules are known.

    A name that is no rule is a quirk itself, from a capture of an earlier version.
    """
    return frozenset(each.rule if each.rule not in BY_ID else BY_ID[each.rule].quirk for each in found) - {""}
