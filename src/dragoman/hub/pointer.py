"""A key comes in and goes out as it stands in a JSON pointer (RFC 6901), and back."""


def escape_key(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def unescape_key(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def split_pointer(pointer: str) -> list[str]:
    """The keys on the way from the root; none for the root itself, nor for what does not begin with a slash."""
    return [unescape_key(token) for token in pointer.split("/")[1:]]
