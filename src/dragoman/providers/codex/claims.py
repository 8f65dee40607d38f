"""A token that is a JWT comes in; what it claims goes out, unverified: its issuer judges it, not we."""

import base64
import binascii

import msgspec

from dragoman.accounts.credential_files import Table, read_table, read_text

NAMESPACE = "https://api.openai.com/auth"

_claims = msgspec.json.Decoder(dict[str, object])


def claims(token: str) -> Table:
    """Nothing where it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        return _claims.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return {}


def expiry(token: str) -> float | None:
    match claims(token).get("exp"):
        case bool():
            return None
        case int() | float() as moment:
            return float(moment)
        case _:
            return None


def about(claimed: Table) -> Table:
    """What OpenAI says of the account."""
    return read_table(claimed, NAMESPACE)


def account_of(claimed: Table) -> str:
    """The account's id, wherever it stands."""
    named = read_text(about(claimed), "chatgpt_account_id") or read_text(claimed, "chatgpt_account_id")
    if named:
        return named
    organizations = claimed.get("organizations")
    first = organizations[0] if isinstance(organizations, list) and organizations else None
    return read_text(first, "id") if isinstance(first, dict) else ""
