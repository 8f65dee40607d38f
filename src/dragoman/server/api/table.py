"""The routes of the admin API, each with its role and scope, and the method that serves it, with its operation."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.operate.usage.usage_writer import UsageWriter
from dragoman.server.api.operations import AdminAudit, EveryWorker
from dragoman.server.api.wire import PREFIX, DescribedHandler
from dragoman.server.routes import AccessRole, Handler, HttpRoute, RoutedRequest
from dragoman.tenancy.keys import Scope

if TYPE_CHECKING:
    from dragoman.server.api.captures import CapturesApi
    from dragoman.server.api.config import ConfigApi, ConfigFileApi
    from dragoman.server.api.keys import KeysApi
    from dragoman.server.api.limits import LimitsApi
    from dragoman.server.api.openapi import ApiDocument
    from dragoman.server.api.providers import StateApi
    from dragoman.server.api.quirks import QuirksApi
    from dragoman.server.api.requests import RequestsApi, UsageApi
    from dragoman.server.api.sign_in import SignInApi
    from dragoman.server.api.teams import TeamsApi

OLD_USAGE_PATH = "/api/usage"


class AdminApi:
    """Everything below /api/v1/. Without a store there is no audit log, so nothing that needs one.

    Each part is imported and made at the first request for it: many gateways never get one.
    """

    def __init__(self, workers: EveryWorker, environ: Mapping[str, str], writer: UsageWriter | None) -> None:
        self._gateway = workers.gateway
        self._environ = environ
        self._writer = writer
        self._workers = workers

    def routes(self, list_served: Callable[[], Iterable[HttpRoute]]) -> Iterator[HttpRoute]:
        """Return the routes; `list_served` returns all that are served with them, which one of them describes."""
        served = _Served(list_served)
        yield make_route("GET", "openapi.json", lambda: served.document.read_document, None)
        yield make_route("GET", "models", lambda: self._state.list_models, Scope.MODELS_READ)
        yield make_route("GET", "accounts", lambda: self._state.list_accounts, Scope.ACCOUNTS_READ)
        yield make_route("GET", "accounts/quotas", lambda: self._state.read_quotas, Scope.ACCOUNTS_READ)
        yield make_route("GET", "config", lambda: self._config.list_settings, Scope.CONFIG_READ)
        yield make_route("GET", "doctor", lambda: self._state.examine, Scope.DOCTOR_RUN)
        if self._writer is not None:
            yield from _StoredParts(self._workers, self._environ, self._writer).routes()

    @cached_property
    def _state(self) -> "StateApi":
        from dragoman.server.api.providers import StateApi

        return StateApi(self._gateway, self._environ, self._writer, self._workers)

    @cached_property
    def _config(self) -> "ConfigApi":
        from dragoman.server.api.config import ConfigApi

        return ConfigApi(self._gateway, self._environ)


class _Served:
    """The description of the routes that are served, made at the first request for it."""

    def __init__(self, list_routes: Callable[[], Iterable[HttpRoute]]) -> None:
        self._list_routes = list_routes

    @cached_property
    def document(self) -> "ApiDocument":
        from dragoman.server.api.openapi import ApiDocument

        return ApiDocument(self._list_routes())


class _StoredParts:
    """The parts that need a store."""

    def __init__(self, workers: EveryWorker, environ: Mapping[str, str], writer: UsageWriter) -> None:
        self._gateway = workers.gateway
        self._environ = environ
        self._writer = writer
        self._workers = workers
        self._audit = AdminAudit(writer)

    def routes(self) -> Iterator[HttpRoute]:
        yield make_own_route("GET", "usage", lambda: self._usage.report_usage, Scope.USAGE_READ)
        yield make_own_route("GET", "usage/speed", lambda: self._usage.report_speed, Scope.USAGE_READ)
        old_usage = _call(lambda: self._usage.report_usage)
        yield HttpRoute("GET", OLD_USAGE_PATH, AccessRole.OWN, old_usage, scope=Scope.USAGE_READ)
        yield make_own_route("GET", "requests", lambda: self._requests.list_requests, Scope.REQUESTS_READ)
        yield make_own_route("GET", "requests/export", lambda: self._requests.export_requests, Scope.REQUESTS_READ)
        yield make_route("GET", "requests/{id}/cache", lambda: self._captures.explain_cache, Scope.CAPTURES_READ)
        yield make_route("GET", "captures", lambda: self._captures.list_captures, Scope.CAPTURES_READ)
        yield make_route("GET", "captures/{id}", lambda: self._captures.read_capture, Scope.CAPTURES_READ)
        yield make_route("POST", "captures/{id}/replay", lambda: self._captures.replay_capture, Scope.CAPTURES_READ)
        yield make_route("POST", "captures/{id}/fixture", lambda: self._captures.make_fixture, Scope.CAPTURES_READ)
        yield make_route("GET", "keys", lambda: self._keys.list_keys, Scope.KEYS_READ)
        yield make_route("POST", "keys", lambda: self._keys.create_key, Scope.KEYS_WRITE)
        yield make_route("GET", "keys/{id}", lambda: self._keys.read_key, Scope.KEYS_READ)
        yield make_route("DELETE", "keys/{id}", lambda: self._keys.revoke_key, Scope.KEYS_WRITE)
        yield make_route("PATCH", "keys/{id}", lambda: self._keys.change_key, Scope.KEYS_WRITE)
        yield make_route("POST", "keys/{id}/rotate", lambda: self._keys.rotate_key, Scope.KEYS_WRITE)
        yield make_route("GET", "teams", lambda: self._teams.list_teams, Scope.TEAMS_READ)
        yield make_route("POST", "teams", lambda: self._teams.create_team, Scope.TEAMS_WRITE)
        yield make_route("GET", "teams/{id}", lambda: self._teams.read_team, Scope.TEAMS_READ)
        yield make_route("PATCH", "teams/{id}", lambda: self._teams.change_team, Scope.TEAMS_WRITE)
        yield make_route("DELETE", "teams/{id}", lambda: self._teams.remove_team, Scope.TEAMS_WRITE)
        yield make_route("GET", "limits", lambda: self._limits.list_limits, Scope.LIMITS_READ)
        yield make_route("GET", "limits/{scope}/{name}", lambda: self._limits.read_limits, Scope.LIMITS_READ)
        yield make_route("PUT", "limits/{scope}/{name}", lambda: self._limits.set_limits, Scope.LIMITS_WRITE)
        yield make_route("DELETE", "limits/{scope}/{name}", lambda: self._limits.remove_limits, Scope.LIMITS_WRITE)
        yield make_route("POST", "limits/{scope}/{name}/forgive", lambda: self._limits.forgive, Scope.LIMITS_WRITE)
        yield make_route("GET", "config/file", lambda: self._file.read_file, Scope.CONFIG_READ)
        yield make_route("PUT", "config/file", lambda: self._file.write_file, Scope.CONFIG_WRITE)
        yield make_route("POST", "config/check", lambda: self._file.check_text, Scope.CONFIG_WRITE)
        yield make_route("POST", "accounts/sign-in", lambda: self._sign_in.sign_in, Scope.ACCOUNTS_WRITE)
        yield make_route("DELETE", "accounts/{id}/cooldowns", lambda: self._sign_in.end_cooldowns, Scope.ACCOUNTS_WRITE)
        yield make_route("GET", "quirks", lambda: self._quirks.list_rules, Scope.ACCOUNTS_READ)
        yield make_route("DELETE", "quirks", lambda: self._quirks.forget_rules, Scope.ACCOUNTS_WRITE)
        yield make_route("DELETE", "quirks/{id}", lambda: self._quirks.forget_rules_of_provider, Scope.ACCOUNTS_WRITE)
        yield make_route("GET", "audit", lambda: self._audit.list_audit, Scope.AUDIT_READ)
        yield make_route("GET", "audit/verify", lambda: self._audit.verify_audit, Scope.AUDIT_READ)

    @cached_property
    def _usage(self) -> "UsageApi":
        from dragoman.server.api.requests import UsageApi

        return UsageApi(self._gateway, self._writer)

    @cached_property
    def _requests(self) -> "RequestsApi":
        from dragoman.server.api.requests import RequestsApi

        return RequestsApi(self._gateway, self._writer)

    @cached_property
    def _captures(self) -> "CapturesApi":
        from dragoman.server.api.captures import CapturesApi

        return CapturesApi(self._gateway, self._audit, self._writer)

    @cached_property
    def _keys(self) -> "KeysApi":
        from dragoman.server.api.keys import KeysApi

        return KeysApi(self._workers, self._audit)

    @cached_property
    def _teams(self) -> "TeamsApi":
        from dragoman.server.api.teams import TeamsApi

        return TeamsApi(self._workers, self._audit)

    @cached_property
    def _limits(self) -> "LimitsApi":
        from dragoman.server.api.limits import LimitsApi

        return LimitsApi(self._workers, self._audit)

    @cached_property
    def _file(self) -> "ConfigFileApi":
        from dragoman.server.api.config import ConfigFileApi

        return ConfigFileApi(self._gateway, self._environ, self._workers, self._audit)

    @cached_property
    def _quirks(self) -> "QuirksApi":
        from dragoman.server.api.quirks import QuirksApi

        return QuirksApi(self._gateway, self._writer, self._audit)

    @cached_property
    def _sign_in(self) -> "SignInApi":
        from dragoman.server.api.sign_in import SignInApi

        return SignInApi(self._gateway, self._workers, self._audit)


def make_route(method: str, path: str, find: Callable[[], DescribedHandler], scope: Scope | None) -> HttpRoute:
    """Return a route below PREFIX; `find` is called at each request, so that its part is made at the first."""
    return HttpRoute(method, PREFIX + path, AccessRole.ADMIN, _call(find), scope=scope, described=find)


def make_own_route(method: str, path: str, find: Callable[[], DescribedHandler], scope: Scope) -> HttpRoute:
    """Return the same for a path that shows a client key what is its own."""
    return replace(make_route(method, path, find, scope), role=AccessRole.OWN)


def _call(find: Callable[[], DescribedHandler]) -> Handler:
    async def handle(request: RoutedRequest) -> None:
        await find().handle(request)

    return handle
