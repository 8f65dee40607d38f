"""Text or bytes come in; the same without anything that looks like a credential goes out.

Text for a person gets a short mask. Bytes that are kept for later keep their length and their shape: a frame stays a
frame, JSON stays JSON, and what a secret's shape would make of it still happens.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

MASK = "***"
SHORTEST = 8  # a shorter word is no secret, and would be found everywhere
_OPENING = re.compile(
    rb"(?:sk|pk|rk)-|(?:dgm|ksk|ghp|gho|ghu|ghs|ghr|github_pat|hf|gsk|xai)_|AIza|AKIA|xox[abps]-|ao[ar]|eyJ"
)
_COVER = (
    bytes(
        ord("0" if character.isdigit() else "X" if character.isupper() else "x" if character.isalpha() else character)
        if character.isalnum() or character in "-_.=+/"
        else ord("*")
        for character in map(chr, range(128))
    )
    + b"*" * 128
)

_SHAPED = r"""(?<![A-Za-z0-9])(?:
            (?:sk|pk|rk)-[A-Za-z0-9_-]{8,}
          | (?:dgm|ksk|ghp|gho|ghu|ghs|ghr|github_pat|hf|gsk|xai)_[A-Za-z0-9_-]{8,}
          | AIza[A-Za-z0-9_-]{20,}
          | AKIA[A-Z0-9]{16}
          | xox[abps]-[A-Za-z0-9-]{8,}
          | ao[ar][A-Za-z0-9_-]{20,}
          | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?
        )"""
SECRET = re.compile(_SHAPED, re.VERBOSE)
_PROSE = r"(?-i:[a-z]+\x20[a-z])"  # plain words: what is wrong with a setting of that name
CARRIED = re.compile(
    rf"""(?P<before>\b(?:bearer|basic)\s+
          | \b(?:x-)?(?:goog-)?api[-_]?key["']?\s*[:=]\s*["']?(?!{_PROSE})
          | \bauthorization["']?\s*[:=]\s*["']?(?!bearer|basic|{_PROSE})
          | \b(?:refresh_?token|access_?token|client_?secret|password)["']?\s*[:=]\s*["']?(?!bearer|basic)
          | [?&]key=
          | (?<=://)[^\s/:@]+:(?=[^\s/@]+@)
        )(?P<secret>[^\s"'&,;@]+)""",
    re.VERBOSE | re.IGNORECASE,
)

# In bodies a label alone proves nothing: a tool may well have a parameter called `password`. A value must follow.
_LABELS = r"""(?:x-)?(?:goog-)?api[-_]?key | authorization | (?:proxy|x)-authorization | password | passphrase
          | (?:refresh|access|auth|authorization|api|bearer|session|security|id)[-_]?token | client[-_]?secret
          | secret[-_]?(?:access[-_]?)?key | private[-_]?key"""
# Searched in lower case, and every branch begins with a character: that lets the search skip most of a text.
_HELD = re.compile(
    rf"""(?:bearer|basic)\x20+(?=[^\s"'\\]*[0-9=])(?P<scheme>[a-z0-9._~+/=-]{{8,}})
      | ["'](?:{_LABELS})\\?["']\s*:\s*\\?["'](?:(?:bearer|basic)\x20+)?(?P<field>[^"'\\\s]{{6,}})
      | [?&](?:key|{_LABELS}|token|sig|signature|x-amz-signature|x-amz-credential)=(?P<query>[^\s"'&\\\#]{{6,}})
      | (?:api[-_]?key|token|secret|password)=(?=[^\s"'\\]*[0-9])(?P<set>[^\s"'&,;\\)]{{8,}})
      | ://[^\s/:@"'\\]+:(?P<url>[^\s/@"'\\]+)@
      | -----begin\ [a-z\ ]*private\ key-----(?P<pem>[a-z0-9+/=\s\\]{{16,4000}}?)-----end""".encode(),
    re.VERBOSE,
)
_SHAPED_BYTES = re.compile(_SHAPED.encode(), re.VERBOSE)
_GROUPS = ("scheme", "field", "query", "set", "url", "pem")

# What a secret or its label holds, in lower case: a text without any of these needs no closer look.
MARKS = (
    *(
        "sk-",
        "pk-",
        "rk-",
        "dgm_",
        "ksk_",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "hf_",
        "gsk_",
        "xai_",
        "xox",
    ),
    *("aiza", "akia", "aoa", "aor", "eyj", "bearer", "basic", "key", "authorization", "token", "secret", "password"),
    *("passphrase", "sig=", "signature", "://"),
)
ANY_MARK = re.compile("|".join(map(re.escape, MARKS)))
_MARKS_BYTES = tuple(mark.encode() for mark in MARKS)

# By their names: what these carry is a credential, whatever it looks like.
_TELLING = re.compile(
    r"(?:^|[-_])(?:authorization|api-?key|key|token|secret|cookie2?|password|signature)$", re.IGNORECASE
)
_QUERY = re.compile(
    rf"([?&](?:key|{_LABELS}|token|sig|signature|x-amz-signature|x-amz-credential)=)[^&#]*", re.VERBOSE | re.IGNORECASE
)

# A long text is searched in windows, so that other threads get their turn.
WINDOW = 16 * 1024
OVERLAP = 4 * 1024

Field = tuple[str, str]


def redact(text: str) -> str:
    """Return the text with secrets masked; escapes of ASCII characters are resolved only where they hide one."""
    direct = _mask_secrets(text)
    if MARK not in text:
        return direct
    plain = unescape(text)
    resolved = _mask_secrets(plain)
    return direct if resolved == plain else resolved


def _mask_secrets(text: str) -> str:
    if not ANY_MARK.search(text.lower()):
        return text
    return CARRIED.sub(rf"\g<before>{MASK}", SECRET.sub(MASK, text))


def mask(data: bytes, secrets: Iterable[bytes] = ()) -> bytes:
    """The same number of bytes; an `x` or `0` stands for each letter or digit of what is, or looks like, a secret."""
    secrets = tuple(secrets)
    spans = sorted({*_known(data, secrets), *_found(data)})
    if MARK_BYTES in data:
        spans = sorted({*spans, *_escaped(data, secrets)})
    if not spans:
        return data
    out = bytearray(data)
    for start, end in spans:
        out[start:end] = _covered(data[start:end])
    return bytes(out)


def mask_text(text: str, secrets: Iterable[bytes] = ()) -> str:
    """As many characters; where there is nothing to hide, the very same text."""
    said = text.encode(errors="surrogatepass")
    hidden = mask(said, secrets)
    return text if hidden == said else hidden.decode(errors="replace")


def mask_lines(lines: Sequence[str], secrets: Iterable[bytes] = ()) -> list[str]:
    """Texts without line breaks, looked at as one: a look costs more than most texts are long."""
    text = "\n".join(lines)
    hidden = mask_text(text, secrets)
    return list(lines) if hidden is text else hidden.split("\n")


def mask_fields(fields: Iterable[Field], secrets: Sequence[bytes] = ()) -> tuple[Field, ...]:
    """Header fields; one whose name tells that it is a credential keeps only its scheme."""
    named = [(name, _scheme_of(value) if _TELLING.search(name) else value) for name, value in fields]
    values = mask_lines([value for _, value in named], secrets)
    return tuple((name, value) for (name, _), value in zip(named, values, strict=True))


def mask_url(url: str, secrets: Sequence[bytes] = ()) -> str:
    """A URL, or the query of one with its question mark."""
    return mask_text(_QUERY.sub(rf"\1{MASK}", url), secrets)


def _scheme_of(value: str) -> str:
    scheme, space, _ = value.partition(" ")
    return f"{scheme} {MASK}" if space and scheme.lower() in ("bearer", "basic") else MASK


def _covered(secret: bytes) -> bytes:
    """What a secret opens with is no secret, and tells what it was."""
    opening = _OPENING.match(secret)
    start = 0 if opening is None else opening.end()
    return secret[:start] + secret[start:].translate(_COVER)


def _known(data: bytes, secrets: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    for secret in secrets:
        at = data.find(secret)
        while at >= 0:
            yield at, at + len(secret)
            at = data.find(secret, at + len(secret))


def _escaped(data: bytes, secrets: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    """What is a secret once the escapes of ASCII characters are resolved."""
    text, place = unescape_with_places(data.decode("latin-1"))
    plain = text.encode("latin-1")
    for start, end in (*_known(plain, secrets), *_found(plain)):
        yield place(start), place(end)


def _is_marked(window: bytes) -> bool:
    for mark in _MARKS_BYTES:  # noqa: SIM110 - half the time of any()
        if mark in window:
            return True
    return False


def _found(data: bytes) -> Iterator[tuple[int, int]]:
    for start in range(0, len(data), WINDOW):
        end = min(len(data), start + WINDOW + OVERLAP)
        window = data[start:end].lower()
        if not _is_marked(window):
            continue
        for match in _SHAPED_BYTES.finditer(data, start, end):
            yield match.span()
        for match in _HELD.finditer(window):
            for first, last in (match.span(group) for group in _GROUPS if match[group] is not None):
                yield start + first, start + last


SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


MAX_LINE_BYTES = 4096
CUT_MARK = "… (cut)"


def cut_text(text: str, most_bytes: int) -> str:
    """The text, cut where it is longer than so many bytes of UTF-8, with a mark at its end."""
    if len(text) * 4 <= most_bytes:
        return text
    data = text[:most_bytes].encode(errors="backslashreplace")
    if len(data) <= most_bytes and len(text) <= most_bytes:
        return text
    return data[: most_bytes - len(CUT_MARK.encode())].decode(errors="ignore") + CUT_MARK


def one_line(text: str) -> str:
    """A line break in a record would let a client write log lines of its own."""
    text = redact(text)
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape_character(character) for character in text)


def _escape_character(character: str) -> str:
    """Valid inside a JSON string too."""
    if character in SHORT:
        return SHORT[character]
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


MARK = "\\u00"  # a text without this holds no such escape
MARK_BYTES = MARK.encode()

_ESCAPE = re.compile(r"\\+(?:u00([2-6][0-9A-Fa-f]|7[0-9A-Ea-e])|([/\"]))")


def unescape(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def unescape_with_places(text: str) -> tuple[str, Callable[[int], int]]:
    """Return the text without escapes, and a function that maps a place in it to the place in the original."""
    places: list[int] = []  # of each escape, in the text without escapes
    longer: list[int] = []  # by how much the original is longer, up to and including that escape
    extra = 0
    for match in _ESCAPE.finditer(text):
        places.append(match.start() - extra)
        extra += match.end() - match.start() - 1
        longer.append(extra)

    def place(at: int) -> int:
        before = bisect_left(places, at)
        return at + (longer[before - 1] if before else 0)

    return unescape(text), place


def _character(match: re.Match[str]) -> str:
    return match[2] or chr(int(match[1], 16))
