"""A model's name as clients write it comes in; the id that Kiro knows goes out."""

import re
from collections.abc import Collection
from functools import lru_cache

from dragoman.providers.provider import ModelInfo

_FAMILIES = "opus|sonnet|haiku|fable|mythos"
_TAIL = re.compile(r"(?:-20\d{6}|-latest|-v\d+(?::\d+)?|@[\w.-]+|\[[^\]]*\])$")
_EFFORT = re.compile(r"-(?:minimal|low|medium|high|xhigh|max|thinking|fast)$")
_INVERTED = re.compile(rf"claude-([4-9](?:\.\d+)?)-({_FAMILIES})$")
_DASHED = re.compile(r"^((?:claude-(?:[a-z]+-)?|gpt-|deepseek-|glm-|minimax-m|kimi-k)\d+)-(\d{1,2})(?=$|-)")
_KNOWN = re.compile(rf"(?:claude-(?:{_FAMILIES})-|gpt-|deepseek-|glm-|minimax-m|kimi-k)\d")
_WIDE = re.compile(r"\[1m\]$")

# What Kiro called its models before they had short names.
_LEGACY = {
    "claude-sonnet-4": "CLAUDE_SONNET_4_20250514_V1_0",
    "claude-sonnet-4.5": "CLAUDE_SONNET_4_5_20250929_V1_0",
    "claude-3.7-sonnet": "CLAUDE_3_7_SONNET_20250219_V1_0",
}
_SHORT = {legacy: short for short, legacy in _LEGACY.items()}
_ONLY_LEGACY = {"claude-3.7-sonnet": _LEGACY["claude-3.7-sonnet"]}  # it never had a short one

NAMES = {
    "auto": "Auto",
    "claude-sonnet-4": "Claude Sonnet 4",
    "claude-sonnet-4.5": "Claude Sonnet 4.5",
    "claude-sonnet-4.6": "Claude Sonnet 4.6",
    "claude-sonnet-5": "Claude Sonnet 5",
    "claude-haiku-4.5": "Claude Haiku 4.5",
    "claude-opus-4.5": "Claude Opus 4.5",
    "claude-opus-4.6": "Claude Opus 4.6",
    "claude-opus-4.7": "Claude Opus 4.7",
    "claude-opus-4.8": "Claude Opus 4.8",
    "claude-opus-5": "Claude Opus 5",
    "deepseek-3.2": "DeepSeek 3.2",
    "glm-5": "GLM 5",
    "minimax-m2.1": "MiniMax M2.1",
    "minimax-m2.5": "MiniMax M2.5",
    "qwen3-coder-next": "Qwen3 Coder Next",
}


def fallback(window: int) -> tuple[ModelInfo, ...]:
    """What is served while Kiro has not been asked, or does not answer."""
    return tuple(ModelInfo(id, name, owned_by="kiro", max_input=window) for id, name in NAMES.items())


@lru_cache(maxsize=512)
def normalise(name: str) -> str:
    """One spelling for all: `claude-sonnet-4-5-20250929` and `claude-4.5-sonnet-high` are `claude-sonnet-4.5`.

    A name that is none of Kiro's families comes back as it is.
    """
    asked = name.strip().rpartition("/")[2]
    if asked in _SHORT:
        return _ONLY_LEGACY.get(_SHORT[asked], _SHORT[asked])
    plain = asked.lower().removeprefix("anthropic.")
    while (shorter := _TAIL.sub("", plain)) != plain:
        plain = shorter
    plain = _DASHED.sub(r"\1.\2", plain)
    bare = _EFFORT.sub("", plain)
    plain = _INVERTED.sub(r"claude-\2-\1", bare) if _INVERTED.match(bare) else plain
    if plain in _ONLY_LEGACY:
        return _ONLY_LEGACY[plain]
    return plain if plain in NAMES or _KNOWN.match(plain) else asked


def resolve(name: str, listed: Collection[str]) -> str:
    """The listed id that a name means; its normal spelling where nothing like it is listed."""
    if name in listed:
        return name
    plain = normalise(name)
    wide = f"{plain}-1m" if _WIDE.search(name) else plain
    for candidate in (wide, plain, _LEGACY.get(plain), _SHORT.get(plain)):
        if candidate is not None and candidate in listed:
            return candidate
    return plain
