"""The dragoman.toml that is being made: providers, model names, other settings, and the variables of its secrets."""

import re
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from dragoman.config.providers import PICKER_NAME
from dragoman.operate.importing.source_values import SourceValue

CLIENT_KEY = "DRAGOMAN_API_KEY"
REFERENCE = re.compile(r"(?:os\.environ/|env\.|env:)([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie", re.IGNORECASE)
OTHER_KEYS = "the environment holds one client key; `dragoman keys create` makes others, and clients get the new ones"

Section = dict[str, object]


class Export(Struct, frozen=True):
    """A variable to set where the gateway starts. `field` holds its value; empty: it was a variable already."""

    name: str
    field: str


class Unresolved(Exception):
    """A value is needed that only a variable holds; the message names both."""


class Draft:
    """What is known of the new file so far. It holds secrets only to tell equal ones from others."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.providers: dict[str, Section] = {}
        self.routes: dict[str, list[str]] = {}
        self.settings: dict[str, Section] = {}
        self._exports: dict[str, Export] = {}
        self._values: dict[str, str] = {}

    def list_exports(self) -> tuple[Export, ...]:
        return tuple(self._exports.values())

    def add_provider(self, name: str, section: Section) -> str:
        """Add a provider and return its name, which another one with the same settings shares."""
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "provider"
        base = f"{base}-2" if base == PICKER_NAME else base
        chosen, number = base, 1
        while self.providers.setdefault(chosen, section) != section:
            number += 1
            chosen = f"{base}-{number}"
        return chosen

    def read_value(self, place: SourceValue) -> str:
        """Return a text that is no secret; a variable that it names must be set here. Raises Unresolved."""
        match = REFERENCE.fullmatch(place.text())
        if match is None:
            return place.text()
        name = match[1] or match[2] or match[3]
        if not self._environ.get(name):
            raise Unresolved(f"{place} is ${name}, which is not set here: set it, and import again")
        return self._environ[name]

    def drop(self, setting: str) -> bool:
        """Remove a setting; return whether it was there."""
        for start, section in (
            *((f"providers.{name}.", section) for name, section in self.providers.items()),
            *((f"{name}.", section) for name, section in self.settings.items()),
        ):
            if setting.startswith(start) and section.pop(setting.removeprefix(start).split(".")[0], None) is not None:
                return True
        return False

    def add_target(self, name: str, target: str) -> None:
        """Make a model name mean this target, after those that it means already."""
        targets = self.routes.setdefault(name, [])
        if target not in targets:
            targets.append(target)

    def set(self, place: SourceValue, section: str, key: str, value: object, reason: str = "") -> None:
        """Set a key of a section that is no provider."""
        if place:
            self.settings.setdefault(section, {})[key] = value
            place.map(f"{section}.{key}", reason)

    def set_attempts(self, place: SourceValue) -> None:
        """Set the attempts from a number of retries."""
        retries = place.number()
        if retries is not None:
            self.set(place, "retry", "attempts", max(1, min(20, int(retries) + 1)), "retries, and the first attempt")

    def take_secret(self, place: SourceValue, variable: str) -> str:
        """Return `env:NAME` for a secret: the variable that it names, or a new one for a literal value."""
        text = place.text()
        match = REFERENCE.fullmatch(text)
        if match is not None:
            name = match[1] or match[2] or match[3]
            self._exports.setdefault(name, Export(name, ""))
            return f"env:{name}"
        variable = re.sub(r"\W+", "_", variable).strip("_").upper()
        variable = f"KEY_{variable}" if not variable or variable[0].isdigit() else variable
        chosen, number = variable, 1
        while chosen in self._exports and self._values.get(chosen) != text:
            number += 1
            chosen = f"{variable}_{number}"
        self._values[chosen] = text
        self._exports.setdefault(chosen, Export(chosen, str(place)))
        return f"env:{chosen}"

    def take_keys(self, places: Iterable[SourceValue], variable: str, section: Section) -> None:
        """Set the key of a provider, or its keys, which are used in turn."""
        sources = list(dict.fromkeys(self.take_secret(place, variable) for place in places if place))
        if sources:
            section["api_key"] = sources[0] if len(sources) == 1 else sources

    def take_client_key(self, *places: SourceValue) -> None:
        """Use the first key of the other gateway's clients as the environment's."""
        used = False
        for place in filter(None, places):
            if used:
                place.skip(OTHER_KEYS)
                continue
            used = True
            match = REFERENCE.fullmatch(place.text())
            named = f"${match[1] or match[2] or match[3]}" if match else str(place)
            self._exports.setdefault(CLIENT_KEY, Export(CLIENT_KEY, named))
            place.map(f"${CLIENT_KEY}", "clients keep their key")

    def take_headers(self, place: SourceValue, provider: str) -> dict[str, str]:
        """Return headers for upstreams, with variables in place of secrets."""
        headers = {}
        for name, member in place.members().items():
            is_secret = SECRET_HEADER.search(name) or REFERENCE.fullmatch(member.text())
            headers[name] = self.take_secret(member, f"{provider}_{name}") if is_secret else member.text()
            member.map(f"providers.{provider}.headers.{name}")
        return headers

    def take_proxy(self, place: SourceValue, provider: str) -> str:
        """Return the proxy of a provider; an address with a password becomes a variable."""
        place.map("providers.*.proxy")
        address = place.text()
        return self.take_secret(place, f"{provider}_PROXY") if "@" in address else address

    def render(self, origin: str) -> str:
        """Return the text of the new file."""
        import tomlkit

        document: dict[str, object] = {**self.settings}
        document["providers"] = self.providers
        document["models"] = [{"name": name, "to": targets} for name, targets in self._order_routes().items()]
        content = {key: value for key, value in document.items() if value}
        shown = msgspec.json.encode(origin).decode()  # a file's name may contain anything
        return f"# Made by `dragoman import` from {shown}.\n\n{tomlkit.dumps(content).rstrip()}\n"

    def _order_routes(self) -> Mapping[str, list[str]]:
        """Return the routes, exact names before globs and long globs before short ones: the first match wins."""
        return dict(
            sorted(self.routes.items(), key=lambda route: (("*" in route[0]), -len(route[0]) if "*" in route[0] else 0))
        )
