"""The routes of the admin API, each with its role and scope."""

from collections.abc import Iterator, Mapping

from dragoman.accounts.access import Scope
from dragoman.accounts.keys import Keyring
from dragoman.accounts.usage_writer import UsageWriter
from dragoman.flow.gateway import Gateway
from dragoman.http.api.audit import AuditLog
from dragoman.http.api.captures import CapturesApi
from dragoman.http.api.config import ConfigApi, ConfigControl, ConfigFileApi
from dragoman.http.api.keys import KeysApi
from dragoman.http.api.requests import RequestsApi
from dragoman.http.api.responses import PREFIX
from dragoman.http.api.sign_in import SignInApi
from dragoman.http.api.state import StateApi
from dragoman.http.api.usage import UsageApi
from dragoman.http.routes import Handler, Role, Route

OLD_USAGE_PATH = "/api/usage"


class AdminApi:
    """Everything below /api/v1/. Without a store there is no audit log, so nothing that needs one."""

    def __init__(
        self,
        gateway: Gateway,
        keyring: Keyring,
        environ: Mapping[str, str],
        writer: UsageWriter | None,
        control: ConfigControl,
    ) -> None:
        self._gateway = gateway
        self._keyring = keyring
        self._environ = environ
        self._writer = writer
        self._control = control

    def routes(self) -> Iterator[Route]:
        state = StateApi(self._gateway, self._environ, self._writer)
        yield _route("GET", "models", state.list_models, Scope.MODELS_READ)
        yield _route("GET", "accounts", state.list_accounts, Scope.ACCOUNTS_READ)
        yield _route("GET", "accounts/quotas", state.read_quotas, Scope.ACCOUNTS_READ)
        config = ConfigApi(self._gateway, self._environ)
        yield _route("GET", "config", config.list_settings, Scope.CONFIG_READ)
        yield _route("GET", "doctor", state.examine, Scope.DOCTOR_RUN)
        if self._writer is not None:
            yield from self._stored_routes(self._writer)

    def _stored_routes(self, writer: UsageWriter) -> Iterator[Route]:
        usage = UsageApi(self._gateway, writer)
        yield _route("GET", "usage", usage.report_usage, Scope.USAGE_READ, Role.OWN)
        yield _route("GET", "usage/speed", usage.report_speed, Scope.USAGE_READ, Role.OWN)
        yield Route("GET", OLD_USAGE_PATH, Role.OWN, usage.report_usage, scope=Scope.USAGE_READ)
        requests = RequestsApi(self._gateway, writer)
        yield _route("GET", "requests", requests.list_requests, Scope.REQUESTS_READ, Role.OWN)
        yield _route("GET", "requests/export", requests.export_requests, Scope.REQUESTS_READ, Role.OWN)
        audit = AuditLog(writer)
        captures = CapturesApi(self._gateway, audit)
        yield _route("GET", "captures", captures.list_captures, Scope.CAPTURES_READ)
        yield _route("GET", "captures/{id}", captures.read_capture, Scope.CAPTURES_READ)
        yield _route("POST", "captures/{id}/replay", captures.replay_capture, Scope.CAPTURES_READ)
        yield _route("POST", "captures/{id}/fixture", captures.make_fixture, Scope.CAPTURES_READ)
        keys = KeysApi(self._keyring, audit)
        yield _route("GET", "keys", keys.list_keys, Scope.KEYS_READ)
        yield _route("POST", "keys", keys.create_key, Scope.KEYS_WRITE)
        yield _route("GET", "keys/{id}", keys.read_key, Scope.KEYS_READ)
        yield _route("DELETE", "keys/{id}", keys.revoke_key, Scope.KEYS_WRITE)
        yield _route("POST", "keys/{id}/rotate", keys.rotate_key, Scope.KEYS_WRITE)
        file = ConfigFileApi(self._gateway, self._environ, self._control, audit)
        yield _route("GET", "config/file", file.read_file, Scope.CONFIG_READ)
        yield _route("PUT", "config/file", file.write_file, Scope.CONFIG_WRITE)
        yield _route("POST", "config/check", file.check_text, Scope.CONFIG_WRITE)
        sign_in = SignInApi(self._gateway, self._control, audit)
        yield _route("POST", "accounts/sign-in", sign_in.sign_in, Scope.ACCOUNTS_WRITE)
        yield _route("DELETE", "accounts/{id}/cooldowns", sign_in.end_cooldowns, Scope.ACCOUNTS_WRITE)
        yield _route("GET", "audit", audit.list_rows, Scope.AUDIT_READ)


def _route(method: str, path: str, handler: Handler, scope: Scope, role: Role = Role.ADMIN) -> Route:
    return Route(method, PREFIX + path, role, handler, scope=scope)
