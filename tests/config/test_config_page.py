"""docs/configuration.md names every key that there is, in its own section, with its default; and every variable."""

import re
from pathlib import Path

import msgspec

from dragoman.config import settings
from dragoman.config.discovery import VARIABLE
from dragoman.config.environment import API_KEYS, CLIENT_KEYS, GENERAL_NAMES, KIRO_CREDENTIALS, KIRO_NAMES
from dragoman.config.settings import CONSOLE_VARIABLE
from tables import each_row

PAGE = (Path(__file__).parent.parent.parent / "docs" / "configuration.md").read_text()
ROW = re.compile(r"\| `(\w+)` \| (.*?) \| .*\|$", re.MULTILINE)
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "## `[server]`": settings.ServerSettings,
    "## `[retry]`": settings.Retry,
    "## `[debug]`": settings.Debug,
    "## `[console]`": settings.ConsoleSettings,
    "## `[store]`": settings.StoreSettings,
    "## `[responses]`": settings.ResponsesSettings,
    "## `[fetch]`": settings.Fetch,
    "## `[tools.web_search]`": settings.WebSearch,
    "## `[tools.web_fetch]`": settings.WebFetch,
    "## `[effort]`": settings.Effort,
    "## `[providers.NAME]`": settings.ProviderConfig,
    "### Kind `kiro`": settings.KiroProviderConfig,
    "### Kind `codex`": settings.CodexProviderConfig,
    "### Kind `copilot`": settings.CopilotProviderConfig,
    "### Kind `gemini`": settings.GeminiProviderConfig,
    "## `[[models]]`": settings.ModelRoute,
    "## `[[prices]]`": settings.PriceOverride,
    "## `[limits]`": settings.LimitSettings,
    "## `[[limits.providers]]`": settings.ProviderLimits,
    "## `[[teams]]`": settings.TeamSettings,
}
KINDS = (
    settings.KiroProviderConfig,
    settings.CodexProviderConfig,
    settings.CopilotProviderConfig,
    settings.GeminiProviderConfig,
)
# Of a provider: its table's own name, what its lists hold beyond the first, and the vendor that `kind` named.
NO_KEYS = ("name", "extra_credentials", "preset")


def read_documented(heading: str) -> dict[str, str]:
    """Key -> default, as the page has them."""
    section = re.split(r"^##", PAGE.partition(f"{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return dict(ROW.findall(section))


def keys(model: type[msgspec.Struct]) -> dict[str, object]:
    """Key -> default; of a kind of provider only what it does not share with all."""
    found = {field.encode_name: field.default for field in msgspec.structs.fields(model)}
    if issubclass(model, settings.ProviderConfig):
        for name in NO_KEYS:
            del found[name]
    common = keys(settings.ProviderConfig) if model in KINDS else {}
    return dict(found.items() - common.items())


def show_default(default: bool | int | float | str | Path) -> str:
    return msgspec.json.encode(str(default) if isinstance(default, Path) else default).decode()


@each_row("heading", SECTIONS)
def test_each_section_of_the_page_has_the_keys_and_defaults_of_its_table(heading: str) -> None:
    written, there = read_documented(heading), keys(SECTIONS[heading])
    assert written.keys() == there.keys()
    for name, default in there.items():
        if isinstance(default, bool | int | float | str | Path) and name != "client_id":
            assert written[name] == f"`{show_default(default)}`"


def test_every_variable_is_on_the_page() -> None:
    pairs = [name for _, *names in API_KEYS for name in names]
    for name in (*CLIENT_KEYS, *GENERAL_NAMES, *KIRO_NAMES, *KIRO_CREDENTIALS, *pairs, VARIABLE, CONSOLE_VARIABLE):
        assert f"`{name}`" in PAGE
