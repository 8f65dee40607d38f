"""A stanza comes in; the addresses of its GitHub go out, a tenant's never mixed with the public ones."""

from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.config.settings import CopilotProviderConfig

PUBLIC = "github.com"


class Addresses(Struct, frozen=True):
    login: str
    exchange: str
    api: str
    trusted: str  # the domain that an answer may name another API host in


def addresses(config: CopilotProviderConfig) -> Addresses:
    domain = config.domain
    if domain == PUBLIC:
        usual = Addresses(
            f"https://{PUBLIC}", f"https://api.{PUBLIC}", "https://api.githubcopilot.com", "githubcopilot.com"
        )
    else:
        usual = Addresses(f"https://{domain}", f"https://api.{domain}", f"https://copilot-api.{domain}", domain)
    return Addresses(
        login=config.auth_endpoint or usual.login,
        exchange=config.control_endpoint or usual.exchange,
        api=config.endpoint or usual.api,
        trusted=usual.trusted,
    )


def is_trusted(url: str, domain: str) -> bool:
    """Whether a token may be sent there: by TLS, to that domain or below it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return parts.scheme == "https" and (host == domain or host.endswith(f".{domain}"))
