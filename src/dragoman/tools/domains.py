"""Which web addresses a request allows: its lists of allowed and blocked domains."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from msgspec import Struct


class DomainRules(Struct, frozen=True):
    """The domains of one tool declaration; at most one of the two lists is given."""

    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def permits(self, url: str) -> bool:
        if self.allowed and not _matches_any(url, self.allowed):
            return False
        return not _matches_any(url, self.blocked)


def _matches_any(url: str, entries: Iterable[str]) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return host is not None and any(_matches(_ascii(host), parts.path, entry) for entry in entries)


def _matches(host: str, path: str, entry: str) -> bool:
    """Match a host or its subdomains; an entry with a path also needs the path to begin like that."""
    address = entry.strip().partition("://")[2] or entry.strip()
    domain, slash, prefix = address.partition("/")
    domain = _ascii(domain.removeprefix("*."))
    if not domain or not (host == domain or host.endswith(f".{domain}")):
        return False
    prefix = prefix.rstrip("/*")
    return not slash or not prefix or path == f"/{prefix}" or path.startswith(f"/{prefix}/")


def _ascii(host: str) -> str:
    """Return a host name in lower case and punycode, so that both spellings of a name are equal."""
    host = host.rstrip(".").lower()
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return host
