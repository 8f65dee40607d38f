"""Find out whether a text contains a web address: a model may fetch only addresses from other sources."""

import re

# What may stand before and after an address in prose, Markdown, HTML and JSON.
_BEFORE = r"(?<![A-Za-z0-9._@/-])(?:https?://)?"
_AFTER = r"(?=/?[.,;:!?]*(?:[^!-~]|[<>\"'`()\[\]{}|\\*]|$)|#)"


def is_named(url: str, text: str) -> bool:
    """Whether the address stands in the text by itself, not as the beginning of a longer one.

    The scheme may be missing or differ (a user writes `example.com`), and so may a fragment or the last slash.
    """
    bare = url.partition("#")[0].rstrip("/")
    scheme, separator, rest = bare.partition("://")
    if separator and scheme in ("http", "https"):
        bare = rest
    if not bare or bare not in text:
        return False
    return re.search(_BEFORE + re.escape(bare) + _AFTER, text) is not None
