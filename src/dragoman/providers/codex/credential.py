"""A credential of a ChatGPT account, in the file that `codex login` and `dragoman login codex` write."""

from msgspec import Struct

from dragoman.accounts.credential import InFile, Unusable, is_sendable
from dragoman.accounts.credential_files import Table, encode_table, load_table, read_table, read_text, replace_file
from dragoman.accounts.timestamps import format_timestamp, parse_timestamp
from dragoman.providers.codex.claims import about, account_of, claims, expiry

REMEDY = "`codex login`, or `dragoman login codex`"
UNREADABLE_LIFE_S = 8 * 86_400.0  # of a token that does not say when it ends, from its last renewal

OTHER_MODES = {
    "apikey": 'an API key: that is for a provider of kind "openai"',
    "personalAccessToken": "a personal access token",
    "agentIdentity": "an agent's identity",
    "bedrockApiKey": "a key for Bedrock",
    "headers": "headers of a managed set-up",
}


class Credential(Struct, frozen=True):
    access_token: str = ""
    refresh_token: str = ""
    id_token: str = ""
    expires_at: float = 0.0
    renewed_at: float = 0.0
    account: str = ""
    plan: str = ""
    fedramp: bool = False
    residency: str = ""  # where its data must stay

    def __repr__(self) -> str:
        return f"Credential({self.plan})"


class AuthFile(InFile):
    """Codex keeps no lock of its own and writes in place: what it is about to write wins over what we would."""

    def read(self) -> Credential:
        _, table = load_table(self.path, REMEDY)
        credential = credential_of(
            read_table(table, "tokens"), parse_timestamp(read_text(table, "last_refresh")) or 0.0
        )
        if not credential.access_token and not credential.refresh_token:
            raise Unusable(f"{self.where} {_instead(table)}: {REMEDY}")
        if not is_sendable(credential.access_token + credential.refresh_token + credential.account):
            raise Unusable(f"{self.where} holds a token with characters that no token has: {REMEDY}")
        return credential

    def write(self, consumed: Credential, fresh: Credential) -> bool:
        content, table = load_table(self.path, REMEDY)
        tokens = read_table(table, "tokens")
        if read_text(tokens, "refresh_token") != consumed.refresh_token:
            return False
        renewed = {"tokens": {**tokens, **tokens_of(fresh)}, "last_refresh": format_timestamp(fresh.renewed_at)}
        return replace_file(self.path, encode_table({**table, **renewed}), content)


class Nowhere:
    """Nothing is configured, and no tool has left anything."""

    where = "no credential"
    lock = None

    def read(self) -> Credential:
        keyring = "where Codex keeps its own in a keyring, only the latter helps"
        raise Unusable(f"it has no credential: {REMEDY} makes one ({keyring}), or `credentials` names one")

    def write(self, consumed: Credential, fresh: Credential) -> bool:
        return False


def credential_of(tokens: Table, renewed_at: float) -> Credential:
    access, identity = read_text(tokens, "access_token"), read_text(tokens, "id_token")
    claimed = claims(identity) or claims(access)
    told = about(claimed)
    residency = read_text(told, "chatgpt_compute_residency")
    unreadable = renewed_at + UNREADABLE_LIFE_S if renewed_at else 0.0
    return Credential(
        access_token=access,
        refresh_token=read_text(tokens, "refresh_token"),
        id_token=identity,
        expires_at=expiry(access) or unreadable,
        renewed_at=renewed_at,
        account=read_text(tokens, "account_id") or account_of(claimed),
        plan=read_text(told, "chatgpt_plan_type"),
        fedramp=told.get("chatgpt_account_is_fedramp") is True,
        residency="" if residency == "no_constraint" else residency,
    )


def tokens_of(credential: Credential) -> Table:
    """As they stand in the file."""
    return {
        "id_token": credential.id_token,
        "access_token": credential.access_token,
        "refresh_token": credential.refresh_token,
    }


def _instead(table: Table) -> str:
    mode = read_text(table, "auth_mode") or ("apikey" if read_text(table, "OPENAI_API_KEY") else "")
    return f"holds {OTHER_MODES[mode]}" if mode in OTHER_MODES else "holds no token"
