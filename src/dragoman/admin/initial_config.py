"""Write a first dragoman.toml, with comments, from what was found on this machine and what the user adds."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from dragoman.admin.configuration import ConfigSource
from dragoman.config import Config
from dragoman.config.load import FILE_NAME, user_config_file
from dragoman.config.presets import load_presets

HEAD = """\
# Configuration of dragoman. `dragoman config check` checks it, `dragoman config show` shows what is in effect.
# Edits take effect within a second, except host and port. docs/configuration.md describes every setting.

[server]
host = "127.0.0.1"      # only this machine; "0.0.0.0" lets others in, who then need a client key
port = {port}

[debug]
capture = "{capture}"{padding}# keep exchanges to inspect them with `dragoman capture`: off, errors or all

"""

TAIL = """\
# Names of your own for models, tried in this order:
#
# [[models]]
# name = "fast"
# to = [{examples}]
"""

NO_PROVIDER = """\
# No provider yet: `dragoman providers add openrouter` adds one, `dragoman providers presets` lists the vendors.
# Until then, accounts and servers that are found on this machine are used, or the built-in `echo`.

"""


class Choice(Struct, frozen=True):
    """A provider that the file is to have. `origin` is where it was found; empty if the user named it."""

    name: str
    section: dict[str, object]
    title: str = ""
    origin: str = ""


def new_file_path(source: ConfigSource, *, in_directory: bool) -> Path:
    """Return where the file is to be written."""
    if source.file is not None:
        return Path(source.file).expanduser()
    return source.directory / FILE_NAME if in_directory else user_config_file(source.environ, source.home)


def find_choices(config: Config) -> list[Choice]:
    """Return a choice for each provider that was found without a file."""
    return [
        Choice(name, _section_of(config, name), _title_of(provider.preset or provider.kind), _origin_of(config, name))
        for name, provider in config.providers.items()
        if provider.kind != "echo"
    ]


def make_choice(kind: str, parameters: Mapping[str, str]) -> Choice:
    return Choice(kind, {"kind": kind, **parameters}, _title_of(kind))


def render_config(choices: Iterable[Choice], port: int, capture: str) -> str:
    """Return the text of the file."""
    chosen = list(choices)
    text = HEAD.format(port=port, capture=capture, padding=" " * (12 - len(capture)))
    text += "".join(map(_render_section, chosen)) or NO_PROVIDER
    names = [choice.name for choice in chosen][:2] or ["openrouter"]
    return text + TAIL.format(examples=", ".join(f'"{name}/MODEL"' for name in names))


def _render_section(choice: Choice) -> str:
    comment = choice.title + (f", found at: {choice.origin}" if choice.origin else "")
    lines = [f"# {comment}"] if comment else []
    lines.append(f"[providers.{choice.name}]")
    lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in choice.section.items()]
    return "\n".join(lines) + "\n\n"


def _section_of(config: Config, name: str) -> dict[str, object]:
    """Return the settings that make the same provider without its discovery."""
    provider = config.providers[name]
    if provider.preset:
        return {"kind": provider.preset}
    section: dict[str, object] = {"kind": provider.kind}
    origins = config.origins
    if f"providers.{name}.endpoint" in origins:
        section["endpoint"] = provider.endpoint
    if provider.quirks:
        section["quirks"] = list(provider.quirks)
    if provider.api_key is not None and str(provider.api_key) != "***":
        section["api_key"] = str(provider.api_key)
    return section


def _title_of(kind: str) -> str:
    preset = load_presets().get(kind)
    return kind if preset is None else preset.title


def _origin_of(config: Config, name: str) -> str:
    return config.origins.get(f"providers.{name}.kind", "")
