"""Client keys: what each may do, and creating, checking and revoking them."""

import asyncio
import hashlib
import hmac
import logging
import secrets
import string
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.limits import NO_LIMITS, Limits
from dragoman.config.secret import Secret, is_placeholder
from dragoman.config.settings import DefaultThinking, parse_thinking
from dragoman.store import Store, StoreError
from dragoman.store.audit import AuditRow, make_audit_row
from dragoman.store.client_keys import KeyChange, LiveKey, Rotation
from dragoman.store.client_keys import KeyId as KeyId
from dragoman.store.client_keys import KeyRow as KeyRow
from dragoman.store.client_keys import NameTaken as NameTaken
from dragoman.tenancy.policies import ENVIRONMENT_KEY as ENVIRONMENT_KEY
from dragoman.tenancy.policies import KeySettings, Policies, add_end, encode_settings, has_end
from dragoman.translate.hub.failure import describe_cause


class Scope(StrEnum):
    """A part of the admin API that an admin token can be made for."""

    REQUESTS_READ = "requests:read"
    REQUESTS_END = "requests:end"
    USAGE_READ = "usage:read"
    CAPTURES_READ = "captures:read"
    MODELS_READ = "models:read"
    ACCOUNTS_READ = "accounts:read"
    ACCOUNTS_WRITE = "accounts:write"
    KEYS_READ = "keys:read"
    KEYS_WRITE = "keys:write"
    TEAMS_READ = "teams:read"
    TEAMS_WRITE = "teams:write"
    LIMITS_READ = "limits:read"
    LIMITS_WRITE = "limits:write"
    CONFIG_READ = "config:read"
    CONFIG_WRITE = "config:write"
    DOCTOR_RUN = "doctor:run"
    AUDIT_READ = "audit:read"


# Those of an admin token that is limited to one team: all that they show or change belongs to some team.
TEAM_SCOPES = frozenset(
    {
        *(Scope.KEYS_READ, Scope.KEYS_WRITE, Scope.TEAMS_READ, Scope.TEAMS_WRITE),
        *(Scope.LIMITS_READ, Scope.LIMITS_WRITE, Scope.USAGE_READ, Scope.MODELS_READ),
    }
)


class KeyRole(StrEnum):
    OWNER = "owner"  # the environment's key, and the one that the first start makes
    ADMIN = "admin"  # an admin token: its scopes, and no model requests
    CLIENT = "client"  # model requests, its own usage and requests


class Access(Struct, frozen=True):
    """The rights of a key, and what is set for its requests."""

    role: KeyRole
    scopes: frozenset[Scope] = frozenset()
    default_thinking: DefaultThinking | None = None  # requested where a request asks for nothing
    team: str = ""  # of an admin token: the only team that it sees and changes

    def may(self, scope: Scope | None) -> bool:
        """Return whether everything in a part of the admin API may be used, not only what belongs to the key."""
        return self.role is KeyRole.OWNER or scope in self.scopes


OWNER = Access(KeyRole.OWNER)
CLIENT = Access(KeyRole.CLIENT)


def parse_access(role: str, scopes: str, team: str = "") -> Access:
    """Return the rights that the store has for a key; scopes that this version does not know are left out."""
    if role != KeyRole.ADMIN:
        return OWNER if role == KeyRole.OWNER else CLIENT
    known = frozenset(scope for scope in Scope if scope in scopes.split())
    return Access(KeyRole.ADMIN, known & TEAM_SCOPES if team else known, team=team)


def read_thinking(stored: str | None) -> DefaultThinking | None:
    """Return what the store has as the default of a key; one that this version does not know counts as none."""
    try:
        return None if stored is None else parse_thinking(stored)
    except ValueError:
        return None


PREFIXES = {KeyRole.OWNER: "dgm_", KeyRole.CLIENT: "dgm_", KeyRole.ADMIN: "dga_"}
ALPHABET = string.ascii_letters + string.digits
RANDOM_CHARACTERS = 43  # 62 ** 43 > 2 ** 256
PREFIX_LENGTH = 8
MAX_PRESENTED_BYTES = 1024
FIRST_NAME = "first"
MAX_NAME = 100
TENANT_SALT = b"tenant of the client key "  # so that a tenant's id differs from the digest of its key
POLL_S = 2.0
LOOKUPS_PER_S = 20  # of unknown keys, in the store
TOUCH_S = 60.0
ENDED_S = 3600  # since a revocation, for which it is looked at: other machines' clocks differ

log = logging.getLogger(__name__)


class CreatedKey(Struct, frozen=True):
    """A new key; `secret` is shown once and not stored."""

    row: KeyRow
    secret: Secret


class Grant(Struct, frozen=True):
    """What a new key may do, until when, in Unix seconds, and what is set for its requests."""

    role: KeyRole = KeyRole.CLIENT
    scopes: frozenset[Scope] = frozenset()
    expires_at: int | None = None
    default_thinking: DefaultThinking | None = None
    user: str = ""
    team: str = ""
    settings: KeySettings = KeySettings()
    limits: Limits = NO_LIMITS


CLIENT_GRANT = Grant()


class UnknownKey(Exception):
    """There is no valid key with this id or name, or none with the version that was expected."""


class Keyring:
    """The valid keys, in memory. The store is read in the background; during a request, for an unknown key only."""

    def __init__(
        self,
        store: Store | None,
        environment_key: Secret | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if environment_key is not None and is_placeholder(environment_key.reveal()):
            raise ValueError("an empty or sample value cannot be a client key")
        self._store = store
        self._clock = clock
        self.policies = Policies()  # of the keys: what they may use, and their limits
        self._fixed: dict[bytes, KeyId] = {}
        self._environment_tenant = ""
        self.environment_key_revoked = False  # it is also stored, and was revoked there, which takes precedence
        if environment_key is not None:
            digest = _digest(environment_key.reveal().encode())
            self._fixed[digest] = ENVIRONMENT_KEY
            self._environment_tenant = f"{ENVIRONMENT_KEY}:{_digest(TENANT_SALT + digest).hex()[:32]}"
        self._live: dict[bytes, LiveKey] = {}  # by digest
        self._stored: Sequence[LiveKey] = ()  # one that is in the environment too is valid by both ids
        self._valid_until: dict[KeyId, int | None] | None = None  # None: it was not asked for since they were read
        self._access: dict[KeyId, Access] = {}  # of keys that are not plain client keys without settings
        self._used: set[KeyId] = set()
        self._lookups = 0
        self._lookups_since = 0.0
        self.is_store_out = False  # its changes could not be read the last time
        self._reads = self._used_read = 0  # of keys and policies: begun, and the last one that is in use
        self.on_ended: Callable[[Collection[KeyId]], None] | None = None  # whose requests are to be ended
        self._publish(())

    @property
    def is_empty(self) -> bool:
        """Whether no key at all is valid."""
        return not self._live

    @property
    def has_fixed_key(self) -> bool:
        """Whether the environment's key is valid."""
        return bool(self._fixed) and not self.environment_key_revoked

    def check(self, presented: bytes | None) -> KeyId | None:
        """Return the id of the key, or None if it is not valid. Any bytes may be passed."""
        digests = digest_presented((presented,)) if presented else []
        return self.find_valid(digests[0]) if digests else None

    def find_valid(self, digest: bytes) -> KeyId | None:
        """Return the id of the key with this digest, or None if there is none, or it is no longer valid."""
        found = self._live.get(digest)
        if found is None or not hmac.compare_digest(found.digest, digest):
            return None
        if found.expires_at is not None and self._clock() >= found.expires_at:
            return None
        self._used.add(found.id)
        return found.id

    async def look_up(self, digest: bytes) -> KeyId | None:
        """Return the id of a valid key that this process does not know yet, since another one has just made it.

        None beyond LOOKUPS_PER_S keys a second, and while the store does not answer.
        """
        now = self._clock()
        if not 0 <= now - self._lookups_since < 1.0:
            self._lookups, self._lookups_since = 0, now
        if self._store is None or self.is_store_out or self._lookups >= LOOKUPS_PER_S:
            return None
        self._lookups += 1
        try:
            async with asyncio.timeout(self._store.database.patience_s):
                row = await self._store.find_key(digest)
                if row is not None and row.revoked_at is None:
                    await self.refresh()
        except (StoreError, TimeoutError) as error:
            log.debug("an unknown client key cannot be looked up now: %s", error)
        return self.find_valid(digest)

    def access(self, key: KeyId) -> Access:
        """Return what a valid key may do."""
        return self._access.get(key, CLIENT)

    def is_valid(self, key: KeyId) -> bool:
        """Return whether a key that was valid before still is."""
        if self._valid_until is None:
            self._valid_until = _find_ends((*self._stored, *self._live.values()))
        until = self._valid_until.get(key, 0)
        return until is None or self._clock() < until

    def owner_key(self) -> KeyId | None:
        """Return a valid key that has all rights: a stored one, else the environment's; None if there is none."""
        owners = [key for key, access in self._access.items() if access.role is KeyRole.OWNER]
        return next((key for key in sorted(owners, key=lambda key: key == ENVIRONMENT_KEY) if self.is_valid(key)), None)

    def tenant(self, key: KeyId) -> str:
        """Return the id under which a key's state is kept; it is the same as long as the key exists.

        Gateways with different keys in their environments may share a store, so the name `environment` is not enough.
        """
        return self._environment_tenant if key == ENVIRONMENT_KEY else key

    async def create(self, name: str, grant: Grant = CLIENT_GRANT, audit: AuditRow | None = None) -> CreatedKey:
        """Make a key and store its digest; NameTaken if a live key has the name."""
        created, digest = self._make(name, grant)
        await self._open_store().add_key(created.row, digest, grant.limits, audit)
        await self.refresh()
        return created

    async def create_first(self) -> CreatedKey | None:
        """Make the first key if there has never been one and none is set in the environment."""
        if self._fixed:
            return None
        created, digest = self._make(FIRST_NAME, Grant(KeyRole.OWNER))
        audit = make_audit_row("keys.create", FIRST_NAME, {"role": KeyRole.OWNER})
        is_new = await self._open_store().add_first_key(created.row, digest, audit)
        await self.refresh()
        return created if is_new else None

    async def list(self) -> tuple[KeyRow, ...]:
        """Return all keys of the store, including revoked ones."""
        return await self._open_store().list_keys()

    async def change(self, row: KeyRow, change: KeyChange, audit: AuditRow | None = None) -> KeyRow:
        """Change a key that is still as in `row`; raises UnknownKey if it is not."""
        changed = await self._open_store().change_key(row.id, row.version, change, audit)
        await self.refresh()
        if changed is None:
            raise UnknownKey(row.id)
        return changed

    async def revoke(
        self, which: str, version: int | None = None, audit: AuditRow | None = None, *, ends_requests: bool = False
    ) -> KeyRow:
        """Revoke a key by id or name, at once in this process and within seconds in others.

        `ends_requests`: also end its running requests.
        """
        now, settings = int(self._clock()), None
        if ends_requests:
            found = [row for row in await self.list() if row.revoked_at is None and which in (row.id, row.name)]
            chosen = min(found, key=lambda row: row.id != which, default=None)
            settings = None if chosen is None else add_end(chosen.settings)
        row = await self._open_store().revoke_key(which, now, version, audit, settings)
        await self.refresh()
        if row is None:
            raise UnknownKey(which)
        return row

    async def rotate(
        self, row: KeyRow, grace_s: int, version: int | None = None, audit: AuditRow | None = None
    ) -> CreatedKey:
        """Give a key a new secret; the old one is accepted for another `grace_s`, an older one no longer."""
        secret = _make_secret(KeyRole(row.role))
        text = secret.reveal()
        until = int(self._clock()) + grace_s
        rotation = Rotation(_digest(text.encode()), text[:PREFIX_LENGTH], text[-4:], until)
        rotated = await self._open_store().rotate_key(row.id, rotation, version, audit)
        await self.refresh()
        if rotated is None:
            raise UnknownKey(row.id)
        return CreatedKey(rotated, secret)

    async def find(self, secret: Secret) -> KeyRow | None:
        """Return the stored key with this secret, live or revoked."""
        return await self._open_store().find_key(_digest(secret.reveal().encode()))

    async def refresh(self) -> None:
        """Read the valid keys and what is set for them again, and whether the environment's key was revoked there.

        What was read is not used if what another call began to read later is in use already.
        """
        if self._store is None:
            return
        self._reads += 1
        number = self._reads
        live, policies = await self._store.list_live_keys(), await self._store.read_policies()
        rows = [await self._store.find_key(digest) for digest in self._fixed]
        if number < self._used_read:
            return
        self._used_read = number
        self.policies.publish(policies)
        for row in rows:
            self._record_revocation(row is not None and row.revoked_at is not None)
        self._publish(live)
        if self.on_ended is not None:
            revoked = await self._store.list_revoked_keys(int(self._clock()) - ENDED_S)
            self.on_ended({key.id for key in revoked if has_end(key.settings)})

    async def watch(self, poll_s: float = POLL_S) -> None:
        """Follow changes that other processes make, forever. While the store fails, the known keys stay valid."""
        if self._store is None:
            return
        seen = -1
        next_touch = self._clock() + TOUCH_S
        while True:
            try:
                async with asyncio.timeout(self._store.database.patience_s):
                    version = await self._store.version()
                if version != seen:
                    await self.refresh()
                seen = version
                if self._clock() >= next_touch:
                    next_touch = self._clock() + TOUCH_S
                    await self.touch()
                if self.is_store_out:
                    log.info("the client keys can be read again")
                self.is_store_out = False
            except (StoreError, TimeoutError) as error:
                if not self.is_store_out:
                    cause = describe_cause(error, f"no answer within {self._store.database.patience_s:g} s")
                    log.warning("the client keys could not be read; those known stay valid: %s", cause)
                self.is_store_out = True
            await asyncio.sleep(poll_s)

    async def touch(self) -> None:
        """Store which keys were used since the last call."""
        used, self._used = frozenset(self._used - {ENVIRONMENT_KEY}), set()
        if used and self._store is not None:
            await self._store.touch_keys(used, int(self._clock()))

    def _record_revocation(self, revoked: bool) -> None:
        if revoked and not self.environment_key_revoked:
            log.warning("the client key in the environment is revoked, so it is not valid; unset it, or set another")
        self.environment_key_revoked = revoked

    def _publish(self, stored: Sequence[LiveKey]) -> None:
        fixed = {} if self.environment_key_revoked else self._fixed
        live = {one.digest: one for one in stored}
        live |= {digest: LiveKey(digest, key, KeyRole.OWNER, "", None) for digest, key in fixed.items()}
        self._live, self._stored, self._valid_until = live, stored, None
        special = {one.id: _find_access(one) for one in stored if one.role != KeyRole.CLIENT or one.default_thinking}
        self._access = special | {ENVIRONMENT_KEY: OWNER}

    def _make(self, name: str, grant: Grant) -> tuple[CreatedKey, bytes]:
        if not name.strip() or not name.isprintable() or len(name) > MAX_NAME:
            raise ValueError(f"a key's name must be printable, not empty, and have at most {MAX_NAME} characters")
        secret = _make_secret(grant.role)
        text = secret.reveal()
        row = KeyRow(
            id=KeyId(f"key_{secrets.token_hex(4)}"),
            name=name,
            prefix=text[:PREFIX_LENGTH],
            last4=text[-4:],
            created_at=int(self._clock()),
            revoked_at=None,
            last_used_at=None,
            role=grant.role.value,
            scopes=" ".join(sorted(grant.scopes)),
            expires_at=grant.expires_at,
            default_thinking=None if grant.default_thinking is None else str(grant.default_thinking),
            user=grant.user,
            team=grant.team,
            settings=encode_settings(grant.settings),
        )
        return CreatedKey(row, secret), _digest(text.encode())

    @property
    def store(self) -> Store:
        """The store of the keys; raises StoreError if there is none."""
        return self._open_store()

    def _open_store(self) -> Store:
        if self._store is None:
            raise StoreError("there is no store to keep client keys in")
        return self._store


def _find_ends(stored: Iterable[LiveKey]) -> dict[KeyId, int | None]:
    """Return until when each key is valid; one has two secrets for a while after a rotation."""
    ends: dict[KeyId, int | None] = {}
    for one in stored:
        known = ends.get(one.id, 0)
        ends[one.id] = None if known is None or one.expires_at is None else max(known, one.expires_at)
    return ends


def _find_access(key: LiveKey) -> Access:
    access, default = parse_access(key.role, key.scopes, key.team), read_thinking(key.default_thinking)
    return access if default is None else replace(access, default_thinking=default)


def _make_secret(role: KeyRole) -> Secret:
    return Secret(PREFIXES[role] + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_CHARACTERS)))


def digest_presented(keys: Iterable[bytes]) -> list[bytes]:
    """Return the digests by which presented keys are looked up; what is too long to be a key is left out."""
    return [_digest(presented) for presented in keys if 0 < len(presented) <= MAX_PRESENTED_BYTES]


def _digest(presented: bytes) -> bytes:
    return hashlib.sha256(presented).digest()
