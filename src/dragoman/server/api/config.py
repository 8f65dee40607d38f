"""The configuration: of the gateway, with each value's origin and the file, which can be edited; and of its clients."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from dragoman.config.problems import ConfigError
from dragoman.config.settings import Config
from dragoman.net.headers import Header
from dragoman.operate.clients.connecting import RECIPES, Recipe
from dragoman.operate.clients.launching import choose_model, find_window
from dragoman.operate.configuration.change import check_extent, hide_in_message, read_changed
from dragoman.operate.configuration.config_file import (
    CannotShow,
    ShownFile,
    check_secrets,
    config_path,
    describe_change,
    plan_write,
    show_file,
)
from dragoman.operate.configuration.effective import EffectiveSetting, GatewayTarget, describe_source, list_settings
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.runtime import list_known_models
from dragoman.server.api.operations import AdminAudit, EveryWorker
from dragoman.server.api.wire import IF_MATCH, Operation, Write, convert_errors, respond
from dragoman.server.models import list_windows
from dragoman.server.routes import RoutedRequest
from dragoman.translate.framing.redaction import redact
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.upstreams.routing import list_names


class NewText(Struct, frozen=True, forbid_unknown_fields=True):
    """A text of the file, made from what was shown: `<hidden N>` stands for a secret."""

    text: str


class FoundProblem(Struct, frozen=True):
    line: int | None
    key: str
    message: str


class CheckedText(Struct, frozen=True):
    """What a reload would report, and the change as a unified diff."""

    ok: bool
    problems: list[FoundProblem]
    warnings: list[str]
    diff: str


class ConfigText(Struct, frozen=True):
    """The configuration file; each secret in it is replaced by `<hidden N>`."""

    path: str
    text: str
    exists: bool
    writable: bool


class WrittenText(ConfigText, frozen=True):
    """The file as it is now, the name of the copy of the old one, if there was one, and the change."""

    backup: str | None
    diff: str


class SettingList(Struct, frozen=True):
    """What is in effect; secrets are masked."""

    source: str
    settings: list[EffectiveSetting]
    warnings: list[str]


class ClientLines(Struct, frozen=True, kw_only=True):
    """How to point a client at this gateway: `lines` to paste, or the text of its settings file."""

    name: str
    title: str
    protocol: str
    lines: list[str]
    writes: bool  # `dragoman connect --write` can write them
    is_file: bool
    notes: list[str]


class ClientList(Struct, frozen=True):
    clients: list[ClientLines]


LIST_SETTINGS = Operation("List the settings in effect, each with its origin.", (SettingList,))
READ_FILE = Operation("Read the configuration file that is in use.", (ConfigText,), versioning="sent")
CHECK_TEXT = Write(
    "Report what a reload would find, and the change, without making it.",
    (CheckedText,),
    versioning="sent",
    body=NewText,
)
WRITE_FILE = Write(
    "Write a text that passes the check, keep a backup, and use it from the next request on.",
    (WrittenText,),
    versioning="required",
    refusals={422: CheckedText},
    body=NewText,
)
LIST_CLIENTS = Operation("List the clients, and the lines to paste for each.", (ClientList,))


class ConfigApi:
    """Describes the configuration in effect."""

    def __init__(self, gateway: Gateway, environ: Mapping[str, str]) -> None:
        self._gateway = gateway
        self._environ = environ

    @LIST_SETTINGS.handled_by
    async def list_settings(self, request: RoutedRequest) -> None:
        LIST_SETTINGS.read_query(request)
        config = self._gateway.runtime.config
        settings = list(list_settings(config, self._environ))
        warnings = [str(warning) for warning in config.warnings]
        LIST_SETTINGS.respond(request, SettingList(describe_source(config), settings, warnings))


class ConfigFileApi:
    """Edits the configuration file that is in use, and no other."""

    def __init__(self, gateway: Gateway, environ: Mapping[str, str], workers: EveryWorker, audit: AdminAudit) -> None:
        self._gateway = gateway
        self._environ = environ
        self._workers = workers
        self._audit = audit
        self._writing = asyncio.Lock()
        self._checking = asyncio.Lock()  # one check at a time: a long text takes a thread for seconds

    @READ_FILE.handled_by
    async def read_file(self, request: RoutedRequest) -> None:
        READ_FILE.read_query(request)
        shown = await self._show()
        body = ConfigText(str(shown.path), shown.text, shown.exists, shown.is_writable)
        READ_FILE.respond(request, body, [_etag(shown)])

    @CHECK_TEXT.handled_by
    async def check_text(self, request: RoutedRequest) -> None:
        new = await CHECK_TEXT.read_body(request)
        shown = await self._show()
        CHECK_TEXT.respond(request, await self._check_in_thread(shown, new.text), [_etag(shown)])

    @WRITE_FILE.handled_by
    async def write_file(self, request: RoutedRequest) -> None:
        new = await WRITE_FILE.read_body(request)
        async with self._writing:
            shown = await self._show()
            _check_version(request, shown)
            checked = await self._check_in_thread(shown, new.text)
            if not checked.ok:
                respond(request, checked, [_etag(shown)], status=422)
                return
            if not shown.is_writable:
                message = f"{shown.path} cannot be written by the gateway. Change its mode, or edit it by hand."
                raise RequestError(Failure(Kind.CONFLICT, message, code="not_writable"))
            await self._audit.record(request, "config.write", str(shown.path), {"diff": checked.diff})
            edit = plan_write(shown, new.text)
            backup = await asyncio.to_thread(edit.apply)
            await self._workers.reload()
        now = await self._show()
        written = WrittenText(
            str(now.path), now.text, now.exists, now.is_writable, backup.name if backup else None, checked.diff
        )
        WRITE_FILE.respond(request, written, [_etag(now)])

    async def _show(self) -> ShownFile:
        path = config_path(self._gateway.runtime.config, self._environ, Path.home())
        try:
            return await asyncio.to_thread(show_file, path, self._read)
        except CannotShow as error:
            raise RequestError(Failure(Kind.CONFLICT, str(error), code="cannot_show")) from None

    def _read(self, text: str) -> Config:
        assert self._workers.settings is not None  # requests are answered after it was set
        return self._workers.settings.read(text=text)

    async def _check_in_thread(self, shown: ShownFile, text: str) -> CheckedText:
        with convert_errors("text"):
            check_extent(text)
        async with self._checking:
            return await asyncio.to_thread(self._check, shown, text)

    def _check(self, shown: ShownFile, text: str) -> CheckedText:
        diff = describe_change(shown, text)
        try:
            with convert_errors("text"):
                config = read_changed(shown, text, self._read)
                check_secrets(config, self._gateway.runtime.config, self._environ)
        except ConfigError as error:
            problems = [FoundProblem(one.line, one.key, _hide(one.message, shown)) for one in error.problems]
            return CheckedText(ok=False, problems=problems, warnings=[], diff=diff)
        return CheckedText(ok=True, problems=[], warnings=[_hide(one, shown) for one in config.warnings], diff=diff)


def _hide(message: str, shown: ShownFile) -> str:
    return redact(hide_in_message(message, shown.hidden))


def _etag(shown: ShownFile) -> Header:
    return b"etag", f'"{shown.version}"'.encode()


def _check_version(request: RoutedRequest, shown: ShownFile) -> None:
    given = request.http.headers.get(b"if-match")
    if given is None:
        message = "Send the ETag of the file that you have read as If-Match."
        raise RequestError(Failure(Kind.BAD_REQUEST, message, code="version_required", at=f"/{IF_MATCH}"))
    if given.strip() != _etag(shown)[1]:
        message = "The file was changed since you read it: read it again, and repeat your change."
        raise RequestError(Failure(Kind.CONFLICT, message, code="version_mismatch", at=f"/{IF_MATCH}"))


class ClientsApi:
    """Describes how clients are pointed at this gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @LIST_CLIENTS.handled_by
    async def list_clients(self, request: RoutedRequest) -> None:
        LIST_CLIENTS.read_query(request)
        headers = request.http.headers
        scheme = "https" if headers.get(b"x-forwarded-proto") == b"https" else "http"
        root = f"{scheme}://{(headers.get(b'host') or b'').decode('latin-1')}"
        runtime = self._gateway.runtime
        models = list_names(runtime.config.models, list_known_models(runtime))
        served = ServedModels(runtime.config, models, list_windows(runtime))
        clients = [_describe_client(name, served.choose(RECIPES[name], root)) for name in RECIPES]
        LIST_CLIENTS.respond(request, ClientList(clients))


class ServedModels(Struct, frozen=True):
    """The models that this gateway serves: those it is configured for, and those that it lists."""

    config: Config
    names: Sequence[str]
    windows: Mapping[str, int]

    def choose(self, recipe: Recipe, root: str) -> GatewayTarget:
        """Return the gateway at this address with the model that suits a client best."""
        model = choose_model(recipe, self.config, None, lambda: self.names)
        return GatewayTarget(root, model, None if model is None else find_window(self.config, model, self.windows))


def _describe_client(name: str, target: GatewayTarget) -> ClientLines:
    recipe = RECIPES[name]
    return ClientLines(
        name=name,
        title=recipe.title,
        protocol=recipe.protocol,
        lines=recipe.lines(target),
        writes=recipe.file is not None,
        is_file=recipe.lines_are_file,
        notes=[*recipe.notes, *(recipe.notes_on_file if recipe.lines_are_file else ())],
    )
