"""Normalise the base URLs of providers, as people write them."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import SplitResult, urlsplit

VERSIONED: Mapping[str, str] = MappingProxyType(
    {"anthropic": "v1", "openai": "v1", "openai-compatible": "v1", "gemini": "v1beta"}
)
DEFAULT_ENDPOINTS: Mapping[str, str] = MappingProxyType(
    {
        "anthropic": "https://api.anthropic.com/v1",
        "openai": "https://api.openai.com/v1",
        "codex": "https://chatgpt.com/backend-api/codex",
        "gemini": "https://generativelanguage.googleapis.com/v1beta",
    }
)
VERSION_SEGMENT = re.compile(r"v\d")
OPERATIONS = ("/chat/completions", "/responses", "/messages", "/models")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})


def normalise_endpoint(url: str, kind: str) -> str:
    """Return the URL, with the version of the provider's kind added if its path has none; raises ValueError."""
    parts = split_url(url)
    path = parts.path.rstrip("/")
    for operation in OPERATIONS:
        if path.endswith(operation):
            raise ValueError(f"the address must end with the version; remove {operation}")
    version = VERSIONED.get(kind)
    if version and not any(VERSION_SEGMENT.match(segment) for segment in path.split("/")):
        path = f"{path}/{version}"
    return f"{parts.scheme}://{parts.netloc}{path}"


def split_url(url: str) -> SplitResult:
    """Return the parts of an HTTP address without user, query and fragment; raises ValueError for any other."""
    text = url.strip()
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in text):
        raise ValueError("the address contains spaces or control characters")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https"):
        raise ValueError("the address must begin with http:// or https://")
    if not parts.hostname or parts.port == 0:  # reading .port raises ValueError outside 0..65535
        raise ValueError("the address has no host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the address must not contain a user or password; use api_key or headers")
    if parts.query or parts.fragment:
        raise ValueError("the address must not contain a query or fragment")
    return parts


def points_to(url: str, host: str, port: int) -> bool:
    """Return whether a URL is the address that this gateway listens on."""
    try:
        parts = urlsplit(url.strip())
        there = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return False
    return there == port and (parts.hostname == host.lower() or parts.hostname in LOOPBACK_NAMES)
