"""A configuration, an address and perhaps a new key come in; what a person wants to see at the start goes out."""

from msgspec import Struct

from dragoman import __version__
from dragoman.admin.clients import KEY_VARIABLE, Target
from dragoman.config import Config, ProviderConfig, Secret
from dragoman.providers import lacking


class Keys(Struct, frozen=True):
    """The client keys at the start: the one made just now, how many the store has, and whether one is set outside."""

    made: Secret | None
    stored: int
    outside: bool


def banner(config: Config, target: Target, keys: Keys) -> str:
    parts = [
        f"dragoman {__version__} listens on {target.root}",
        _section("Configuration", [str(config.source) if config.source else "none found: defaults and environment"]),
        _section("Providers", _providers(config)),
        _section(_key_title(keys), _key_lines(keys)),
        _section("To paste" if keys.made is None else "To paste, after the line above", _clients(target)),
    ]
    return "\n\n".join(parts) + "\n"


def key_line(key: Secret) -> str:
    return f"export {KEY_VARIABLE}={key.reveal()}"


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _providers(config: Config) -> list[str]:
    rows = [(name, *_described(name, provider, config)) for name, provider in config.providers.items()]
    name_width = max(len(row[0]) for row in rows)
    place_width = max(len(row[1]) for row in rows)
    return [f"{name.ljust(name_width)}  {place.ljust(place_width)}  {origin}".rstrip() for name, place, origin in rows]


def _described(name: str, provider: ProviderConfig, config: Config) -> tuple[str, str]:
    origins = config.origins
    origin = origins.get(f"providers.{name}.api_key") or origins.get(f"providers.{name}.kind")
    from_where = f"from {origin}" if origin else ""
    if (lack := lacking(provider)) is not None:
        return lack, "not in this version yet, left out"
    if provider.kind == "echo":
        return "built in, answers without an account", from_where
    return provider.endpoint or provider.kind, from_where


def _key_title(keys: Keys) -> str:
    return "Client key, made now and shown only this once" if keys.made is not None else "Client keys"


def _key_lines(keys: Keys) -> list[str]:
    if keys.made is not None:
        return [key_line(keys.made)]
    lines = [f"the one in ${KEY_VARIABLE}"] if keys.outside else []
    if keys.stored:
        lines.append(f"{keys.stored} in the store; a lost one is not shown again, `dragoman keys create` makes another")
    return lines or ["none: nobody is let in until `dragoman keys create` has made one"]


def _clients(target: Target) -> list[str]:
    root, api, key = target.root, target.api, f"${KEY_VARIABLE}"
    model = target.model_or_placeholder
    provider = f'{{name="dragoman",base_url="{api}",env_key="{KEY_VARIABLE}",wire_api="responses"}}'
    lines = {
        "Claude Code": f"ANTHROPIC_BASE_URL={root} ANTHROPIC_AUTH_TOKEN={key} claude --model {model}",
        "Codex": f"codex -m {model} -c model_provider=dragoman -c 'model_providers.dragoman={provider}'",
        "OpenAI SDK": f"export OPENAI_BASE_URL={api} OPENAI_API_KEY={key}",
        "Anthropic SDK": f"export ANTHROPIC_BASE_URL={root} ANTHROPIC_API_KEY={key}",
        "aider": f"OPENAI_API_BASE={api} OPENAI_API_KEY={key} aider --model openai/{model}",
    }
    advice = "`dragoman connect CLIENT --write` puts this into the client's own settings."
    if target.model is None:
        advice += " `dragoman models` lists what MODEL may be."
    return [*(f"{client.ljust(15)}{line}" for client, line in lines.items()), advice]
