"""What can be set for a key: its fields, how they are checked, and what becomes of them."""

import time
from collections.abc import Mapping
from typing import Annotated, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins

from dragoman.config.limit_sections import find_name_problem
from dragoman.config.limits import NO_LIMITS, InvalidLimit, Limits, LimitValues, to_limits, to_values
from dragoman.config.problems import suggest
from dragoman.config.settings import DefaultThinking, parse_thinking
from dragoman.operate import InvalidArgument
from dragoman.store.client_keys import KeyChange, KeyId, KeyRow
from dragoman.tenancy.keys import TEAM_SCOPES, Grant, KeyRole
from dragoman.tenancy.policies import CaptureSetting, KeySettings, Policies, encode_settings, read_settings

MAX_EXPIRY = 253_402_300_799  # the end of the year 9999
MAX_OUTPUT_TOKENS = 10_000_000
MAX_METADATA = 16  # pairs

ModelGlob = Annotated[str, Meta(min_length=1, max_length=200)]
Globs = Annotated[tuple[ModelGlob, ...], Meta(max_length=100)]
MetadataKey = Annotated[str, Meta(min_length=1, max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=MAX_METADATA)]
T = TypeVar("T")


class KeyFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set for a key. null resets a field; an absent field stays as it is."""

    expires_at: int | UnsetType | None = UNSET  # Unix seconds
    default_thinking: str | int | UnsetType | None = UNSET  # low, medium, high, or a budget in tokens
    user: str | UnsetType | None = UNSET
    team: str | UnsetType | None = UNSET
    models: Globs | UnsetType | None = UNSET  # over the requested name and provider/model
    providers: Globs | UnsetType | None = UNSET
    default_model: Annotated[str, Meta(max_length=200)] | UnsetType | None = UNSET  # where a request names none
    strict: bool | UnsetType | None = UNSET  # as if each request said x-dragoman-strict: 1
    capture: CaptureSetting | UnsetType | None = UNSET  # at most this much is captured
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)] | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET
    limits: LimitValues | UnsetType | None = UNSET


# Those that an admin token has, which makes no model requests.
FIELDS_OF_TOKENS = frozenset({"expires_at", "team"})


def make_grant(policies: Policies, role: KeyRole, fields: KeyFields) -> Grant:
    """Return what a new key is given, without scopes; raises InvalidArgument."""
    row = KeyRow(KeyId(""), "", "", "", 0, None, None, role=role.value)
    change = make_change(policies, row, fields)
    return Grant(
        role=role,
        expires_at=change.expires_at,
        default_thinking=None if change.default_thinking is None else _parse_thinking(change.default_thinking),
        user=change.user,
        team=change.team,
        settings=read_settings(change.settings),
        limits=change.limits or NO_LIMITS,
    )


def make_change(policies: Policies, row: KeyRow, fields: KeyFields) -> KeyChange:
    """Return how a key is to be after a change of some fields; raises InvalidArgument, which names the field."""
    _check_role(row, fields)
    expires_at = pick(fields.expires_at, row.expires_at)
    if isinstance(fields.expires_at, int) and not time.time() < fields.expires_at <= MAX_EXPIRY:
        raise InvalidArgument("expires_at must be a time in the future, in Unix seconds.", "expires_at")
    thinking = pick(fields.default_thinking, row.default_thinking)
    if thinking is not None and fields.default_thinking is not UNSET:
        thinking = str(_parse_thinking(thinking))
    user, team = pick(fields.user, row.user) or "", pick(fields.team, row.team) or ""
    if (fields.user, fields.team) != (UNSET, UNSET):
        check_membership(policies, user, team, row.id)
    return KeyChange(
        expires_at=expires_at,
        default_thinking=None if thinking is None else str(thinking),
        user=user,
        team=team,
        settings=encode_settings(_change_settings(read_settings(row.settings), fields)),
        limits=_read_limits(fields),
    )


def check_grant(policies: Policies, grant: Grant) -> None:
    """Raise InvalidArgument if user, team and scopes of a new key do not fit."""
    check_membership(policies, grant.user, grant.team)
    wide = sorted(grant.scopes - TEAM_SCOPES)
    if grant.team and wide:
        message = f"An admin token of one team cannot have {', '.join(wide)}, which is about all teams."
        raise InvalidArgument(message, "scopes")


def check_membership(policies: Policies, user: str, team: str, key: str = "") -> None:
    """Raise InvalidArgument if there is no such team, or if the user, or another of the user's keys, is in another one.

    `key` is the id of the key that is changed.
    """
    problem = find_name_problem(user) if user else None
    if problem is not None:
        raise InvalidArgument(f"user: {problem}", "user")
    if team and team not in policies.teams:
        advice = suggest(team, list(policies.teams)) or "; `dragoman teams list` shows all"
        raise InvalidArgument(f'There is no team "{team}"{advice}.', "team")
    of_user = policies.find_membership(user)
    if team and of_user and team != of_user:
        raise InvalidArgument(
            f'The user "{user}" is in the team "{of_user}", so the key cannot be in "{team}".', "team"
        )
    for other in policies.keys if user and team else ():
        if other.user == user and other.id != key and other.team not in ("", team):
            message = (
                f'The key "{other.name}" of the user "{user}" is in the team "{other.team}", and a user is in one team '
                f'only, so this key cannot be in "{team}". Change that key first, or choose another user.'
            )
            raise InvalidArgument(message, "team")


def describe_grant(grant: Grant) -> dict[str, object]:
    """Return what a key is given, by the names of the admin API; it has no secret."""
    return {
        "role": grant.role.value,
        "scopes": sorted(grant.scopes),
        "expires_at": grant.expires_at,
        "default_thinking": grant.default_thinking,
        "user": grant.user,
        "team": grant.team,
        **to_builtins(grant.settings),
        "limits": to_values(grant.limits),
    }


def describe_fields(fields: KeyFields) -> dict[str, object]:
    """Return the fields that are given."""
    given: Mapping[str, object] = to_builtins(fields)
    return dict(given)


def _check_role(row: KeyRow, fields: KeyFields) -> None:
    given = [name for name in KeyFields.__struct_fields__ if getattr(fields, name) not in (UNSET, None)]
    wrong = [name for name in given if name not in FIELDS_OF_TOKENS]
    if row.role == KeyRole.ADMIN and wrong:
        raise InvalidArgument(f"An admin token makes no model requests: leave {wrong[0]} out.", wrong[0])


def _change_settings(old: KeySettings, fields: KeyFields) -> KeySettings:
    none = KeySettings()
    for name in ("default_model", "metadata"):
        _check_printable(name, getattr(fields, name))
    return KeySettings(
        models=pick(fields.models, old.models) or none.models,
        providers=pick(fields.providers, old.providers) or none.providers,
        default_model=pick(fields.default_model, old.default_model) or none.default_model,
        strict=pick(fields.strict, old.strict) or none.strict,
        capture=pick(fields.capture, old.capture) or none.capture,
        max_output_tokens=pick(fields.max_output_tokens, old.max_output_tokens),
        metadata=pick(fields.metadata, old.metadata) or none.metadata,
    )


def _check_printable(name: str, value: object) -> None:
    words = [*value, *value.values()] if isinstance(value, dict) else [value] if isinstance(value, str) else []
    if not all(word.isprintable() for word in words):
        raise InvalidArgument(f"{name} must be printable.", name)


def _read_limits(fields: KeyFields) -> Limits | None:
    if isinstance(fields.limits, UnsetType):
        return None
    return NO_LIMITS if fields.limits is None else check_values(fields.limits, "limits.")


def check_values(values: LimitValues, prefix: str = "") -> Limits:
    """Return limits as amounts; raises InvalidArgument, which names the limit."""
    try:
        return to_limits(values)
    except InvalidLimit as wrong:
        name = f"{prefix}{wrong.name.value}"
        raise InvalidArgument(f"{name}: {wrong}", name) from wrong


def pick(given: T | UnsetType | None, old: T) -> T | None:
    """Return what is given, or else what there was."""
    return old if isinstance(given, UnsetType) else given


def _parse_thinking(given: str | int) -> DefaultThinking:
    try:
        return parse_thinking(given)
    except ValueError as wrong:
        raise InvalidArgument(f"default_thinking: {wrong}", "default_thinking") from wrong
