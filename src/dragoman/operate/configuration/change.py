"""Check an edit of dragoman.toml that comes over HTTP: it starts no program, opens no file and moves no secret.

The settings themselves say which of them are protected (`HttpRule` in config/settings.py). The first check compares the
two texts as they were shown, before anything in the new one is opened or put in the place of `<hidden N>`. The second
one compares what both configure, where defaults, presets and the environment count as well.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields

from dragoman.config.problems import ConfigError, Key, Problem, format_key
from dragoman.config.providers import SECTION_TYPES
from dragoman.config.secret import SecretSource
from dragoman.config.settings import Config, HttpRule, ProviderConfig
from dragoman.config.tree import key_lines, line_of
from dragoman.operate import InvalidArgument
from dragoman.operate.configuration.config_file import (
    HIDDEN,
    CannotShow,
    ShownFile,
    find_literals,
    hide_secrets,
    plan_write,
)
from dragoman.upstreams.credentials.credential import PATH_ENDS, PATH_STARTS

REFERENCES = ("env:", "file:", "command:", "exec:", "store:")  # a secret is elsewhere, and this names the place
PROVIDER_TYPES: tuple[type[ProviderConfig], ...] = (ProviderConfig, *SECTION_TYPES.values())
CHOICE = "kind"  # an address by itself, but always the vendor's own
EDIT = "edit the file on the gateway's machine"
MOVED = (
    f"A stored credential would be sent to another address. Write the secret itself in this section again, or {EDIT}."
)

MOST_CHARACTERS = 256 * 1024
MOST_PARTS = 32  # of a key, as a.b.c has three
DEEP_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}""")

Values = Mapping[Key, object]


class SettingType(Struct, frozen=True):
    """What the settings say about one key. `section` is how much of the key names a section of the user's own."""

    rules: frozenset[HttpRule]
    is_known: bool
    is_secret: bool
    section: int


class TextChange(Struct, frozen=True):
    """The values of both texts, by their keys, with `<hidden N>` in the place of secrets."""

    old: Values
    new: Values
    new_tree: Mapping[str, object]


def check_extent(text: str) -> None:
    """Raise InvalidArgument for a text that would take very long to read."""
    if len(text) > MOST_CHARACTERS:
        raise InvalidArgument(f"The text has {len(text)} characters; over HTTP it may have {MOST_CHARACTERS}.", "text")
    if DEEP_KEY.search(text):
        raise InvalidArgument(f"The text has a key of more than {MOST_PARTS} parts.", "text")


def read_changed(shown: ShownFile, text: str, read: Callable[[str], Config]) -> Config:
    """Return the configuration of a text that was made from what was shown.

    Raises ConfigError if it is invalid or changes what HTTP cannot change, and InvalidArgument for a `<hidden N>` that
    the file did not have.
    """
    new_text = plan_write(shown, text).new
    change = _compare(shown, text, new_text, read)
    _raise(shown, text, find_protected_keys(change))
    old = read(plan_write(shown, shown.text).new)
    new = read(new_text)
    _raise(shown, text, [*find_exposed_credentials(old, new, change), *find_revealed(shown, text, new_text, new)])
    return new


def _compare(shown: ShownFile, text: str, new_text: str, read: Callable[[str], Config]) -> TextChange:
    try:
        new_tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        read(text)  # it raises the problem with its line; no secret was put back
        raise
    except RecursionError:
        message = "The text has too many lists and tables within each other."
        raise ConfigError([Problem(str(shown.path), None, "", message)]) from None
    try:
        old_tree = tomllib.loads(shown.text)
        is_same = _restore(new_tree, shown.hidden) == tomllib.loads(new_text)
    except tomllib.TOMLDecodeError:
        is_same = False
    if not is_same:
        message = f"A secret cannot be put back into this text. Edit {shown.path} on the gateway's machine."
        raise ConfigError([Problem(str(shown.path), None, "", message)])
    return TextChange(dict(_flatten(old_tree)), dict(_flatten(new_tree)), new_tree)


def _restore(value: object, hidden: tuple[str, ...]) -> object:
    """Return a value with its secrets, as reading the text in which they were put back should give it."""
    match value:
        case str():
            return HIDDEN.sub(lambda match: hidden[int(match[1]) - 1], value)
        case dict():
            return {_restore(name, hidden): _restore(inner, hidden) for name, inner in value.items()}
        case list():
            return [_restore(inner, hidden) for inner in value]
        case _:
            return value


def _flatten(value: object, at: Key = ()) -> Iterator[tuple[Key, object]]:
    """Yield every value that is not a table, and every empty table; a list without tables is one value."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flatten(inner, (*at, name))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _flatten(item, (*at, index))
    else:
        yield at, value


def _raise(shown: ShownFile, text: str, found: Iterable[tuple[Key, str]]) -> None:
    lines = key_lines(text)
    problems = [Problem(str(shown.path), line_of(lines, key), format_key(key), message) for key, message in found]
    if problems:
        raise ConfigError(problems)


def find_protected_keys(change: TextChange) -> Iterator[tuple[Key, str]]:
    """Yield the keys that a text changes and may not, with the reason."""
    for key in dict.fromkeys((*change.old, *change.new)):
        before, after = change.old.get(key), change.new.get(key)
        if before == after:
            continue
        setting = find_setting(key)
        known = set(_list_strings(before))
        added = [text for text in _list_strings(after) if text not in known]
        locked = next((rule for rule in (HttpRule.FILE_ONLY, HttpRule.ACCOUNT) if rule in setting.rules), None)
        if any(HIDDEN.search(text) for text in (*added, *_list_names(key, change.old))):
            yield key, f"A hidden value cannot be moved. Write the secret itself here, or {EDIT}."
        elif locked is not None and not _is_removed_section(key, setting, change.new_tree):
            yield key, f"This cannot be changed over HTTP, because {locked.value}: {EDIT}."
        elif setting.is_secret and any(names_other_place(text) for text in added):
            places = f"{', '.join(REFERENCES)} or a path"
            yield key, f"Over HTTP, a secret is written as it is, not as {places}; or {EDIT}."


def _list_names(key: Key, old: Values) -> Iterator[str]:
    """Yield the parts of a key that the old text does not have."""
    if key not in old:
        yield from (part for part in key if isinstance(part, str))


def _list_strings(value: object) -> Iterator[str]:
    for item in value if isinstance(value, list) else (value,):
        if isinstance(item, str):
            yield item


def _is_removed_section(key: Key, setting: SettingType, tree: Mapping[str, object]) -> bool:
    return setting.section > 0 and _find(tree, key[: setting.section]) is None


def _find(tree: object, key: Key) -> object:
    for part in key:
        tree = tree.get(part) if isinstance(tree, dict) and isinstance(part, str) else None
    return tree


def names_other_place(text: str) -> bool:
    """Return whether a setting for a secret names where the secret is."""
    return text.strip().startswith((*REFERENCES, *PATH_STARTS)) or text.strip().lower().endswith(PATH_ENDS)


def find_exposed_credentials(old: Config, new: Config, change: TextChange) -> Iterator[tuple[Key, str]]:
    """Yield the addresses that would get a stored credential which they did not get before."""
    before = dict(list_addressed_sections(old))
    for key, section in list_addressed_sections(new):
        former = before.get(key)
        changed = [name for name, value in _addresses(section) if getattr(former, name, None) != value]
        if former is not None and not changed:
            stored = set(_list_references(former))
            if not stored.issuperset(_list_references(section)):
                yield key, f"This would use a secret that is stored elsewhere: {EDIT}."
            continue
        table = _find(change.new_tree, key)
        own = list(_list_own_addresses(section, table if isinstance(table, dict) else {}))
        if table is None or (former is None and not own):
            continue  # the vendor's own address, or a provider that is found without a section
        if has_stored_credential(key, section, change.new):
            yield (*key, own[0] if former is None else changed[0]), MOVED


def list_addressed_sections(config: Config) -> Iterator[tuple[Key, Struct]]:
    """Yield every section with a setting that decides where credentials are sent."""
    yield from _walk_sections((), config)


def _walk_sections(key: Key, value: object) -> Iterator[tuple[Key, Struct]]:
    if isinstance(value, Struct):
        if any(True for _ in _addresses(value)):
            yield key, value
        for info in fields(value):
            yield from _walk_sections((*key, info.encode_name), getattr(value, info.name))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk_sections((*key, name), inner)
    elif isinstance(value, tuple):
        for index, inner in enumerate(value):
            yield from _walk_sections((*key, index), inner)


def _addresses(section: Struct) -> Iterator[tuple[str, object]]:
    for info in fields(section):
        if HttpRule.ADDRESS in find_rules(info.type):
            yield info.encode_name, getattr(section, info.name)


def _list_own_addresses(section: Struct, table: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of a section that name an address. A key that is no setting fills in the address of a preset."""
    known = {info.encode_name: find_rules(info.type) for info in fields(section)}
    for name in table:
        if name != CHOICE and (name not in known or HttpRule.ADDRESS in known[name]):
            yield name


def has_stored_credential(key: Key, section: Struct, values: Values) -> bool:
    """Return whether a section uses a credential that its text does not give as it is."""
    if any(HttpRule.ACCOUNT in find_rules(info.type) for info in fields(section)) or any(_list_references(section)):
        return True
    for at, value in values.items():
        setting = find_setting(at)
        is_credential = setting.is_secret and HttpRule.ADDRESS not in setting.rules
        if at[: len(key)] == key and is_credential and any(HIDDEN.search(text) for text in _list_strings(value)):
            return True
    return False


def _list_references(section: Struct) -> Iterator[str]:
    """Yield the credentials of a section that name where the secret is."""
    for info in fields(section):
        if HttpRule.ADDRESS in find_rules(info.type):
            continue
        value: object = getattr(section, info.name)
        for source in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,):
            if isinstance(source, SecretSource) and names_other_place(source.text):
                yield source.text


def find_revealed(shown: ShownFile, text: str, new_text: str, new: Config) -> Iterator[tuple[Key, str]]:
    """Yield that a secret, left in a comment for example, would be shown once no setting has it."""
    try:
        reshown, _ = hide_secrets(new_text, find_literals(new, str(shown.path)))
    except CannotShow:
        return  # so nothing of it is shown
    for number in dict.fromkeys(int(found[1]) for found in HIDDEN.finditer(text)):
        if shown.hidden[number - 1] in reshown:
            yield (), f"<hidden {number}> would be shown, because no setting has it now. Remove it everywhere."


def hide_in_message(message: str, hidden: tuple[str, ...]) -> str:
    """Return a message about a text without the secrets that were hidden in it."""
    for number, secret in sorted(enumerate(hidden, 1), key=lambda item: -len(item[1])):
        message = message.replace(secret, f"<hidden {number}>")
    return message


def find_setting(key: Key) -> SettingType:
    """Return what the settings say about a key; a provider's section may be of any kind."""
    rules: set[HttpRule] = set()
    section = 0
    types: list[object] = [Config]
    for depth, part in enumerate(key, 1):
        following: list[object] = []
        for kind in types:
            for inner in _enter(kind, part):
                rules |= find_rules(inner)
                following.append(inner)
            if _is_table_of_sections(kind):
                section = depth
        types = following
    return SettingType(frozenset(rules), bool(types), any(map(holds_secret, types)), section)


def _enter(kind: object, part: str | int) -> Iterator[object]:
    """Yield the types that a part of a key may have in a value of this type."""
    for one in _list_alternatives(kind):
        inner = get_args(one)
        if isinstance(one, type) and issubclass(one, Struct):
            yield from (info.type for info in fields(one) if info.encode_name == part)
        elif get_origin(one) is dict:
            yield from PROVIDER_TYPES if inner[1] is ProviderConfig else inner[1:]
        elif get_origin(one) is tuple and isinstance(part, int):
            yield inner[0]


def _is_table_of_sections(kind: object) -> bool:
    return any(
        get_origin(one) is dict and isinstance(get_args(one)[1], type) and issubclass(get_args(one)[1], Struct)
        for one in _list_alternatives(kind)
    )


def _list_alternatives(kind: object) -> Iterator[object]:
    """Yield the types that a type stands for, without what annotates it."""
    if get_origin(kind) is Annotated:
        yield from _list_alternatives(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from _list_alternatives(one)
    else:
        yield kind


def find_rules(kind: object) -> frozenset[HttpRule]:
    """Return the rules that annotate a type."""
    if get_origin(kind) is not Annotated:
        return frozenset()
    inner, *notes = get_args(kind)
    return frozenset(note for note in notes if isinstance(note, HttpRule)) | find_rules(inner)


def holds_secret(kind: object) -> bool:
    """Return whether a value of this type is a secret, or holds some."""
    return kind is SecretSource or any(holds_secret(inner) for inner in get_args(kind))
