"""Host names in the letters of any language, and in the ASCII form that DNS knows."""

MAX_HOST = 253  # characters, by DNS; Python's codec takes quadratic time, and does not look at the length first


def encode_host(name: str) -> str:
    """Return a name in ASCII. Raises UnicodeError."""
    _check_length(name)
    return name.encode("idna").decode("ascii")


def decode_host(name: str) -> str:
    """Return a name in letters. Raises UnicodeError."""
    _check_length(name)
    return name.encode("ascii").decode("idna")


def _check_length(name: str) -> None:
    if len(name) > MAX_HOST:
        raise UnicodeError("longer than a host name can be")
