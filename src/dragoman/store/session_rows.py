"""Sessions of the web console, as they are stored: digests of secrets, never the secrets."""

from msgspec import Struct


class SessionRow(Struct, frozen=True):
    """A session, or a link that makes one. Times are Unix seconds."""

    digest: bytes  # of the cookie, or of the link's token
    header_digest: bytes  # of the token that requests carry in a header; empty for a link
    id: str  # names the session in lists
    key: str  # the id of the client key whose rights it has
    created_at: int
    used_at: int
    expires_at: int
    address: str  # of the browser, or of the reverse proxy in front
    browser: str  # its user agent


SESSION_COLUMNS = tuple(SessionRow.__struct_fields__)
