"""Split URLs that may contain a password, a key or a signature."""

from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

# The standard library remembers the last URLs that it has split, with all that is in them.
_split: Callable[[str], SplitResult] = getattr(urlsplit, "__wrapped__", urlsplit)


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL, which is not remembered; raises ValueError as `urlsplit` does."""
    return _split(url)
