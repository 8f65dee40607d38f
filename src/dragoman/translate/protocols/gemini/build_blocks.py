"""Read the prompt of a Gemini request as Google does."""

from dragoman.translate.caching.rendering import make_content, make_list, make_settings, read_object
from dragoman.translate.hub.caching import BlockGroup, BodyFields
from dragoman.translate.hub.ports import PromptReader
from dragoman.translate.hub.profile import Profile

_SETTINGS = ("thinkingConfig", "responseMimeType", "responseSchema", "responseJsonSchema")
_LIFE_S = 3600.0  # nothing is promised


def list_groups(fields: BodyFields) -> list[BlockGroup]:
    groups = [make_list("tools", fields, "tools")]
    for name in ("systemInstruction", "system_instruction"):
        if name in fields:
            groups.append(make_content("system", f"/{name}", fields[name]))
    groups.append(make_settings(fields, ("toolConfig",)))
    if "generationConfig" in fields:
        groups.append(make_settings(read_object(fields["generationConfig"]), _SETTINGS, "/generationConfig"))
    return [*groups, make_list("messages", fields, "contents")]


def find_life_s(fields: BodyFields, profile: Profile) -> float:
    return _LIFE_S


PROMPTS = PromptReader(list_groups, find_life_s)
