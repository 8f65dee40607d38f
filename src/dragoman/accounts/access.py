"""What a caller of the gateway may do: the owner everything, an admin token its scopes, a client key its own."""

from enum import StrEnum

from msgspec import Struct


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
    CONFIG_READ = "config:read"
    CONFIG_WRITE = "config:write"
    DOCTOR_RUN = "doctor:run"
    AUDIT_READ = "audit:read"


class KeyRole(StrEnum):
    OWNER = "owner"  # the environment's key, and the one that the first start makes
    ADMIN = "admin"  # an admin token: its scopes, and no model requests
    CLIENT = "client"  # model requests, its own usage and requests


class Access(Struct, frozen=True):
    """The rights of a key."""

    role: KeyRole
    scopes: frozenset[Scope] = frozenset()

    def may(self, scope: Scope | None) -> bool:
        """Return whether everything in a part of the admin API may be used, not only what belongs to the key."""
        return self.role is KeyRole.OWNER or scope in self.scopes


OWNER = Access(KeyRole.OWNER)
CLIENT = Access(KeyRole.CLIENT)


def parse_access(role: str, scopes: str) -> Access:
    """Return the rights that the store has for a key; scopes that this version does not know are left out."""
    known = frozenset(scope for scope in Scope if scope in scopes.split())
    return Access(KeyRole.ADMIN, known) if role == KeyRole.ADMIN else OWNER if role == KeyRole.OWNER else CLIENT
