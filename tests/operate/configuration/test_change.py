"""Edits of dragoman.toml over HTTP start no program, open no file, and send no secret where it was not sent before."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, get_args, get_origin

import pytest
from msgspec import Struct
from msgspec.structs import fields

from dragoman.config.load import ConfigSource
from dragoman.config.problems import ConfigError
from dragoman.config.settings import Config, HttpRule, ProviderConfig
from dragoman.operate import InvalidArgument
from dragoman.operate.configuration.change import (
    PROVIDER_TYPES,
    find_rules,
    hide_in_message,
    holds_secret,
    read_changed,
)
from dragoman.operate.configuration.config_file import ShownFile, show_file
from laws import assert_linear_function
from tables import each_row

TOML = """\
[store]
url = "sqlite:///./mine.db"
[debug]
directory = "captures"
[tools.web_search]
backend = ["brave"]
api_key = "fake-search-key-0123456789"
[providers.up]
kind = "openai-compatible"
endpoint = "http://127.0.0.1:9/v1"
api_key = "fake-upstream-key-0123456789"
headers = { x-extra = "fake-header-0123456789" }
[providers.other]
kind = "openai"
api_key = "env:OTHER_KEY"
[providers.open]
kind = "openai-compatible"
endpoint = "http://127.0.0.1:10/v1"
[providers.kiro]
kind = "kiro"
credentials = "fake-refresh-token-0123456789"
"""
ENVIRON = {"OTHER_KEY": "fake-other-0123456789", "GROQ_API_KEY": "fake-groq-0123456789"}


class Editor:
    """Edits the text of a file as a browser does."""

    def __init__(self, directory: Path, toml: str = TOML) -> None:
        self.file = directory / "dragoman.toml"
        self.file.write_text(toml)
        self.source = ConfigSource(str(self.file), ENVIRON, directory, directory)
        self.shown: ShownFile = show_file(self.file, self._read)

    def _read(self, text: str) -> Config:
        return self.source.read(text=text)

    def change(self, old: str, new: str) -> Config:
        assert old in self.shown.text
        return read_changed(self.shown, self.shown.text.replace(old, new), self._read)

    def add(self, text: str) -> Config:
        return read_changed(self.shown, f"{self.shown.text}{text}\n", self._read)

    def find_problem(self, old: str, new: str) -> tuple[str, str]:
        """Return key and message of the one problem that a change has."""
        with pytest.raises(ConfigError) as refused:
            self.change(old, new) if old else self.add(new)
        [problem] = refused.value.problems
        return problem.key, problem.message


EDIT = "edit the file on the gateway's machine."
SEARCH = "[tools.web_search]\n"
UP = "[providers.up]\n"
KIRO = "[providers.kiro]\n"


@each_row(
    ("old", "new", "key"),
    [
        (SEARCH, f'{SEARCH}command = ["id"]\n', "tools.web_search.command"),
        (SEARCH, f'[tools.web_fetch]\ncommand = ["id"]\n{SEARCH}', "tools.web_fetch.command"),
        (SEARCH, f'{SEARCH}tool = "delete_everything"\n', "tools.web_search.tool"),
        ("sqlite:///./mine.db", "sqlite:////tmp/other.db", "store.url"),
        ("[store]\n", '[store]\nshared = "valkey://evil.example/0"\n', "store.shared"),
        ('directory = "captures"', 'directory = "/etc"', "debug.directory"),
        ('directory = "captures"\n', "", "debug.directory"),
        (UP, f'{UP}ca_file = "/etc/passwd"\n', "providers.up.ca_file"),
        (KIRO, f'{KIRO}ca_file = "/etc/passwd"\n', "providers.kiro.ca_file"),
        ("", '[providers.new]\nkind = "groq"\nca_file = "/etc/passwd"', "providers.new.ca_file"),
        ("", '[providers.new]\nkind = "gemini"\ncredentials = "command:id"', "providers.new.credentials"),
        ("", '[providers.new]\nkind = "kiro"\ncredentials = "/home/someone/token.json"', "providers.new.credentials"),
        ("", '[providers.new]\nkind = "codex"\ncredentials = ["a.json", "b.json"]', "providers.new.credentials"),
    ],
)
def test_what_names_a_program_a_file_or_an_account_is_changed_in_the_file_only(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
    found, message = Editor(tmp_path).find_problem(old, new)
    assert found == key
    assert message.endswith(EDIT)


@each_row(
    "secret",
    [
        "env:HOME",
        "file:/etc/passwd",
        "file:key.txt",
        "command:id",
        "exec:id",
        "~/key",
        "/etc/passwd",
        "./key",
        "k.json",
    ],
)
def test_a_secret_over_http_names_no_other_place(tmp_path: Path, secret: str) -> None:
    editor = Editor(tmp_path)
    added = f'[providers.new]\nkind = "openai"\napi_key = "{secret}"'
    assert editor.find_problem("", added)[0] == "providers.new.api_key"
    assert (
        editor.find_problem("", added.replace(f'"{secret}"', f'["fake-1", "{secret}"]'))[0] == "providers.new.api_key"
    )
    assert editor.find_problem('"env:OTHER_KEY"', f'"{secret}"')[0] == "providers.other.api_key"
    header = f'{UP}proxy = "{secret}"\n'
    assert editor.find_problem(UP, header)[0] == "providers.up.proxy"
    in_header = editor.find_problem("x-extra =", f'x-more = "{secret}", x-extra =')
    assert in_header[0] == "providers.up.headers.x-more"


def hidden(editor: Editor, key: str) -> str:
    """Return what stands for the secret of a setting."""
    line = next(line for line in editor.shown.text.splitlines() if line.startswith(key) and "<hidden" in line)
    return line[line.index("<hidden") :].partition(">")[0] + ">"


@each_row(
    ("added", "key"),
    [
        ('[providers.new]\nkind = "groq"\napi_key = "{0}"', "providers.new.api_key"),
        ('[providers.new]\nkind = "groq"\nuser_agent = "{0}"', "providers.new.user_agent"),
        ('[providers.new]\nkind = "groq"\nheaders = {{ x-a = "a {0}" }}', "providers.new.headers.x-a"),
        ('[[models]]\nname = "{0}"\nto = ["up/m"]', "models[0].name"),
        ('[[models]]\nname = "a"\nto = ["up/{0}"]', "models[0].to"),
        ('[server]\nhost = "{0}"', "server.host"),
        ('[providers."{0}"]\nkind = "groq"', "providers.{0}.kind"),
        ('[providers."{0}"]', "providers.{0}"),
    ],
)
def test_a_hidden_value_stays_where_it_stood(tmp_path: Path, added: str, key: str) -> None:
    editor = Editor(tmp_path)
    place = hidden(editor, "api_key")
    found, message = editor.find_problem("", added.format(place))
    assert found == key.format(place)
    assert "fake-" not in message


def test_a_hidden_value_that_is_left_in_a_comment_alone_would_be_shown(tmp_path: Path) -> None:
    editor = Editor(tmp_path, f"{TOML}# fake-upstream-key-0123456789 is renewed in May\n")
    place = hidden(editor, "# ")
    _, message = editor.find_problem(f'\napi_key = "{place}"', "")
    assert message.startswith(f"{place} would be shown")
    assert "up" in editor.change("[store]", f"# {place}\n[store]").providers


@each_row(
    ("old", "new", "key"),
    [
        ("127.0.0.1:9/", "evil.example/", "providers.up.endpoint"),
        (UP, f'{UP}proxy = "http://evil.example:3128"\n', "providers.up.proxy"),
        (UP, f'{UP}models_endpoint = "http://evil.example/models"\n', "providers.up.models_endpoint"),
        (UP, f'{UP}endpoints = {{ messages = "http://evil.example/v1" }}\n', "providers.up.endpoints"),
        ('kind = "openai-compatible"\nendpoint = "http://127.0.0.1:9/v1"', 'kind = "groq"', "providers.up.endpoint"),
        ('kind = "openai"', 'kind = "openai"\nendpoint = "http://evil.example/v1"', "providers.other.endpoint"),
        ('kind = "openai"', 'kind = "anthropic"', "providers.other.kind"),
        (KIRO, f'{KIRO}endpoint = "http://evil.example"\n', "providers.kiro.endpoint"),
        (KIRO, f'{KIRO}control_endpoint = "http://evil.example"\n', "providers.kiro.control_endpoint"),
        (KIRO, f'{KIRO}auth_endpoint = "http://evil.example"\n', "providers.kiro.auth_endpoint"),
        (KIRO, f'{KIRO}region = "evil.example/"\n', "providers.kiro.region"),
        (KIRO, f'{KIRO}api_key = "fake-typed-0123456789"\nregion = "evil"\n', "providers.kiro.region"),
        (SEARCH, f'{SEARCH}endpoint = "http://evil.example"\n', "tools.web_search.endpoint"),
        ('["brave"]', '["tavily"]', "tools.web_search.backend"),
        # Credentials that a section need not name: those of the environment, and accounts.
        ("", '[providers.groq]\nkind = "groq"\nendpoint = "http://evil.example/v1"', "providers.groq.endpoint"),
        ("", '[providers.groq]\nkind = "groq"\nproxy = "http://evil.example:1"', "providers.groq.proxy"),
        ("", '[providers.azure]\nkind = "azure-openai"\nresource = "evil.example/"', "providers.azure.resource"),
        ("", '[providers.mine]\nkind = "copilot"\ndomain = "evil.example"', "providers.mine.domain"),
        ("", '[providers.mine]\nkind = "codex"\nauth_endpoint = "http://evil.example"', "providers.mine.auth_endpoint"),
        (
            'kind = "openai-compatible"\nendpoint = "http://127.0.0.1:10',
            'kind = "groq"\nendpoint = "http://127.0.0.1:10',
            "providers.open",
        ),
    ],
)
def test_no_other_address_gets_a_stored_credential(tmp_path: Path, old: str, new: str, key: str) -> None:
    found, message = Editor(tmp_path).find_problem(old, new)
    assert found == key
    assert message.endswith(EDIT)


def test_a_typed_secret_cannot_be_replaced_by_the_one_of_the_environment(tmp_path: Path) -> None:
    typed = 'endpoint = "http://evil.example/v1"\napi_key = "fake-typed-0123456789"\n'
    section = f'[providers.groq]\nkind = "groq"\n{typed}'
    editor = Editor(tmp_path, TOML + section)
    assert editor.find_problem(f'api_key = "{hidden_last(editor)}"\n', "")[0] == "providers.groq"


def hidden_last(editor: Editor) -> str:
    return editor.shown.text[editor.shown.text.rindex("<hidden") :].partition(">")[0] + ">"


def test_other_changes_are_made(tmp_path: Path) -> None:
    editor = Editor(tmp_path)
    typed = 'endpoint = "http://127.0.0.1:11/v1"\napi_key = "fake-typed-0123456789"'
    assert editor.add(f'[providers.new]\nkind = "openai-compatible"\n{typed}').providers["new"].api_key is not None
    assert editor.add('[providers.groq]\nkind = "groq"').providers["groq"].endpoint == "https://api.groq.com/openai/v1"
    assert editor.add('[[models]]\nname = "a"\nto = ["up/m"]').models[0].name == "a"
    assert editor.change("127.0.0.1:10/", "127.0.0.1:12/").providers["open"].endpoint == "http://127.0.0.1:12/v1"
    assert editor.change('"env:OTHER_KEY"', '"fake-typed-0123456789"').providers["other"].api_key is not None
    whole = editor.shown.text[editor.shown.text.index(UP) : editor.shown.text.index("[providers.other]")]
    replaced = f'{UP}kind = "openai-compatible"\n{typed.replace("11", "13")}\n'
    assert editor.change(whole, replaced).providers["up"].endpoint == "http://127.0.0.1:13/v1"
    kiro = editor.shown.text[editor.shown.text.index(KIRO) :]
    assert "kiro" not in editor.change(kiro, "").providers


def test_an_invalid_text_is_reported_without_its_secrets(tmp_path: Path) -> None:
    editor = Editor(tmp_path)
    assert editor.find_problem("[store]", "[store")[1].startswith("not valid TOML")
    assert editor.find_problem("[store]", "[server]\nprot = 1\n[store]")[0] == "server.prot"
    with pytest.raises(InvalidArgument, match="<hidden 99>"):
        editor.add('# "<hidden 99>"')
    [first, *_] = editor.shown.hidden
    assert hide_in_message(f'got "{first}"', editor.shown.hidden) == 'got "<hidden 1>"'


# Texts that name neither a program nor a file, and no address to which credentials are sent.
HARMLESS = {
    "server.host": "the gateway's own address",
    "server.allowed_hosts": "names under which clients reach it",
    "console.trusted_proxies": "addresses of its clients",
    "provider.key_header": "the name of a header to the same address",
    "provider.user_agent": "sent to the same address",
    "provider.models": "names of models",
    "provider.client_id": "a public id, sent to the same address",
    "provider.client_version": "sent to the same address",
    "provider.originator": "sent to the same address",
    "provider.integration_id": "sent to the same address",
    "models.name": "what clients request",
    "models.to": "providers and models of the configuration",
    "prices.model": "a pattern of names",
    "limits.time_zone": "one of those that there are",
    "limits.providers.names": "names of providers of the configuration",
    "teams.name": "a name of its own",
    "teams.members": "names of users",
    "teams.models": "patterns of names",
    "teams.providers": "patterns of names",
}
INTERNAL = ("name", "preset", "extra_credentials")  # of a provider: no keys of the file
NOT_IN_FILE = ("client_key", "source", "origins", "warnings", "has_providers", "found_models")


def list_texts(kind: object, key: str) -> Iterator[tuple[str, object]]:
    """Yield every setting that is a text of any kind, or a path, with its type."""
    if isinstance(kind, type) and issubclass(kind, ProviderConfig):
        for section in PROVIDER_TYPES:
            for info in fields(section):
                if info.name not in INTERNAL:
                    yield from list_texts(info.type, f"provider.{info.encode_name}")
    elif isinstance(kind, type) and issubclass(kind, Struct):
        for info in fields(kind):
            if kind is not Config or info.name not in NOT_IN_FILE:
                yield from list_texts(info.type, f"{key}.{info.encode_name}".lstrip("."))
    elif find_rules(kind) or holds_secret(kind):
        yield key, kind
    elif get_origin(kind) is Annotated:
        yield from list_texts(get_args(kind)[0], key)
    elif get_args(kind):
        for inner in get_args(kind)[1:] if get_origin(kind) is dict else get_args(kind):
            yield from list_texts(inner, key)
    elif kind is str or (isinstance(kind, type) and issubclass(kind, Path)):
        yield key, kind


def test_every_text_among_the_settings_is_protected_or_known_to_be_harmless() -> None:
    found = dict(list_texts(Config, ""))
    open_to_all = {key for key, kind in found.items() if not find_rules(kind) and not holds_secret(kind)}
    assert open_to_all == set(HARMLESS), "mark it with an HttpRule in config/settings.py, or say here why not"
    assert not {key for key, kind in found.items() if Path in get_args(kind) and not find_rules(kind)}
    locked = {key for key, kind in found.items() if find_rules(kind) & {HttpRule.FILE_ONLY, HttpRule.ACCOUNT}}
    assert {"tools.web_search.command", "store.url", "debug.directory", "provider.ca_file"} <= locked


@pytest.mark.parametrize("piece", ["s", "key", "key ", "a_", "# token\n", "x = 1\n"])
def test_a_text_is_checked_in_linear_time(tmp_path: Path, piece: str) -> None:
    editor = Editor(tmp_path)
    assert_linear_function(editor.add, lambda size: "# " + piece.replace("\n", "\n# ") * (size // len(piece)), 1500)
