"""Remove everything that looks like a credential from text (`redact`) and from bytes (`mask`).

Text for people gets a short mask. Bytes of a capture keep their length and their structure: a frame stays a frame, JSON
stays JSON, and a masked secret is still recognised by its form.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import AnyStr

MASK = "***"
SHORTEST = 8  # a shorter word is not a secret, and would be found everywhere
_KNOWN_PREFIX = re.compile(
    rb"(?:sk|pk|rk)-|(?:dgm|dga|ksk|ghp|gho|ghu|ghs|ghr|github_pat|hf|gsk|xai)_|AIza|AKIA|xox[abps]-|ao[ar]|eyJ"
)
_MASK_CHARACTERS = (
    bytes(
        ord("0" if character.isdigit() else "X" if character.isupper() else "x" if character.isalpha() else character)
        if character.isalnum() or character in "-_.=+/"
        else ord("*")
        for character in map(chr, range(128))
    )
    + b"*" * 128
)

_BY_FORM = r"""(?<![A-Za-z0-9])(?:
            (?:sk|pk|rk)-[A-Za-z0-9_-]{8,}
          | (?:dgm|dga|ksk|ghp|gho|ghu|ghs|ghr|github_pat|hf|gsk|xai)_[A-Za-z0-9_-]{8,}
          | AIza[A-Za-z0-9_-]{20,}
          | AKIA[A-Z0-9]{16}
          | xox[abps]-[A-Za-z0-9-]{8,}
          | ao[ar][A-Za-z0-9_-]{20,}
          | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?
        )"""
SECRET = re.compile(_BY_FORM, re.VERBOSE)
_PROSE = r"(?-i:[a-z]+\x20[a-z])"  # plain words: a message about a setting of that name
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

# In bodies a label alone proves nothing: a tool may have a parameter called `password`. A value must follow.
_LABELS = r"""(?:x-)?(?:goog-)?api[-_]?key | authorization | (?:proxy|x)-authorization | password | passphrase
          | (?:refresh|access|auth|authorization|api|bearer|session|security|id)[-_]?token | client[-_]?secret
          | secret[-_]?(?:access[-_]?)?key | private[-_]?key"""
# Searched in lower case. Every branch begins with a character, so that the search can skip most of a text.
_LABELLED = re.compile(
    rf"""(?:bearer|basic)\x20+(?=[^\s"'\\]*[0-9=])(?P<scheme>[a-z0-9._~+/=-]{{8,}})
      | ["'](?:{_LABELS})\\?["']\s*:\s*\\?["'](?:(?:bearer|basic)\x20+)?(?P<field>[^"'\\\s]{{6,}})
      | [?&](?:key|{_LABELS}|token|sig|signature|x-amz-signature|x-amz-credential)=(?P<query>[^\s"'&\\\#]{{6,}})
      | (?:api[-_]?key|token|secret|password)=(?=[^\s"'\\]*[0-9])(?P<set>[^\s"'&,;\\)]{{8,}})
      | ://[^\s/:@"'\\]+:(?P<url>[^\s/@"'\\]+)@
      | -----begin\ [a-z\ ]*private\ key-----(?P<pem>[a-z0-9+/=\s\\]{{16,4000}}?)-----end""".encode(),
    re.VERBOSE,
)
_BY_FORM_BYTES = re.compile(_BY_FORM.encode(), re.VERBOSE)
_GROUPS = ("scheme", "field", "query", "set", "url", "pem")

# Parts of secrets and labels, in lower case: a text without any of these needs no further search.
MARKS = (
    *(
        "sk-",
        "pk-",
        "rk-",
        "dgm_",
        "dga_",
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

# Header fields with these names contain a credential, whatever it looks like.
_CREDENTIAL_FIELD = re.compile(
    r"(?:^|[-_])(?:authorization|api-?key|key|token|secret|cookie2?|password|signature)$", re.IGNORECASE
)
_QUERY = re.compile(
    rf"([?&](?:key|{_LABELS}|token|sig|signature|x-amz-signature|x-amz-credential)=)[^&#]*", re.VERBOSE | re.IGNORECASE
)

MAX_PATH = 100  # characters of a path in a log line
_PATH_VALUE = re.compile(rf"((?:^|[/?&;])(?:key|{_LABELS}|token|sig|signature)=)[^/?&;\#]+", re.VERBOSE | re.IGNORECASE)
# Letters and digits mixed, as in no word. Ids have a prefix and an underscore before them, names of models hyphens.
_RANDOM_WORD = re.compile(r"(?<![A-Za-z0-9_])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{20,}")

# A long text is searched in windows, so that other threads can run in between.
WINDOW = 16 * 1024
OVERLAP = 4 * 1024

Field = tuple[str, str]


def redact(text: str) -> str:
    """Return the text without secrets. Escapes of ASCII characters are resolved only where they hide a secret."""
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
    """Return as many bytes, with `x` or `0` for each letter or digit of what is, or looks like, a secret."""
    secrets = tuple(secrets)
    spans = sorted({*find_all(data, secrets), *_find_by_form(data)})
    if MARK_BYTES in data:
        spans = sorted({*spans, *_find_escaped(data, secrets)})
    if not spans:
        return data
    out = bytearray(data)
    for start, end in spans:
        out[start:end] = _mask_secret(data[start:end])
    return bytes(out)


def mask_text(text: str, secrets: Iterable[bytes] = ()) -> str:
    """Return as many characters; the same object if there is nothing to mask."""
    data = text.encode(errors="surrogatepass")
    masked = mask(data, secrets)
    return text if masked == data else masked.decode(errors="replace")


def mask_lines(lines: Sequence[str], secrets: Iterable[bytes] = ()) -> list[str]:
    """Mask texts without line breaks in one pass, which is faster than one pass for each."""
    text = "\n".join(lines)
    masked = mask_text(text, secrets)
    return list(lines) if masked is text else masked.split("\n")


def names_credential(field: str) -> bool:
    """Return whether header fields of this name contain a credential."""
    return _CREDENTIAL_FIELD.search(field) is not None


def has_secret_parameter(query: str) -> bool:
    """Return whether a query, without its question mark, has a parameter for a credential."""
    return _QUERY.search(f"?{query}") is not None


def mask_fields(fields: Iterable[Field], secrets: Sequence[bytes] = ()) -> tuple[Field, ...]:
    """Mask header fields. Fields that contain a credential, by their name, keep only its scheme."""
    named = [(name, _scheme_of(value) if names_credential(name) else value) for name, value in fields]
    values = mask_lines([value for _, value in named], secrets)
    return tuple((name, value) for (name, _), value in zip(named, values, strict=True))


def mask_url(url: str, secrets: Sequence[bytes] = ()) -> str:
    """Mask a URL, or a query with its question mark."""
    return mask_text(_QUERY.sub(rf"\1{MASK}", url), secrets)


def redact_path(path: str) -> str:
    """Return the path of a request for a log line: without what may be a secret, and not longer than MAX_PATH."""
    shown = _RANDOM_WORD.sub(MASK, redact(_PATH_VALUE.sub(rf"\1{MASK}", path[: 20 * MAX_PATH])))
    return shown if len(shown) <= MAX_PATH else shown[: MAX_PATH - 1] + "…"


def _scheme_of(value: str) -> str:
    scheme, space, _ = value.partition(" ")
    return f"{scheme} {MASK}" if space and scheme.lower() in ("bearer", "basic") else MASK


def _mask_secret(secret: bytes) -> bytes:
    """Mask a secret except for a well-known prefix, which shows what kind of secret it was."""
    prefix = _KNOWN_PREFIX.match(secret)
    start = 0 if prefix is None else prefix.end()
    return secret[:start] + secret[start:].translate(_MASK_CHARACTERS)


def find_all(text: AnyStr, forms: Iterable[AnyStr]) -> Iterator[tuple[int, int]]:
    """Yield where each of the forms stands in the text."""
    for form in forms:
        at = text.find(form)
        while at >= 0:
            yield at, at + len(form)
            at = text.find(form, at + len(form))


def _find_escaped(data: bytes, secrets: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    """Return the spans of secrets that contain escapes of ASCII characters."""
    text, place = unescape_with_places(data.decode("latin-1"))
    plain = text.encode("latin-1")
    for start, end in (*find_all(plain, secrets), *_find_by_form(plain)):
        yield place(start), place(end)


def _has_mark(window: bytes) -> bool:
    for mark in _MARKS_BYTES:  # noqa: SIM110 - half the time of any()
        if mark in window:
            return True
    return False


def _find_by_form(data: bytes) -> Iterator[tuple[int, int]]:
    for start in range(0, len(data), WINDOW):
        end = min(len(data), start + WINDOW + OVERLAP)
        window = data[start:end].lower()
        if not _has_mark(window):
            continue
        for match in _BY_FORM_BYTES.finditer(data, start, end):
            yield match.span()
        for match in _LABELLED.finditer(window):
            for first, last in (match.span(group) for group in _GROUPS if match[group] is not None):
                yield start + first, start + last


SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


MAX_LINE_BYTES = 4096
CUT_MARK = "… (cut)"


def cut_text(text: str, most_bytes: int) -> str:
    """Return the text, truncated to a number of bytes of UTF-8, with a mark at its end if it was longer."""
    if len(text) * 4 <= most_bytes:
        return text
    data = text[:most_bytes].encode(errors="backslashreplace")
    if len(data) <= most_bytes and len(text) <= most_bytes:
        return text
    return data[: most_bytes - len(CUT_MARK.encode())].decode(errors="ignore") + CUT_MARK


def one_line(text: str) -> str:
    """Return the text as one printable line without secrets.

    A line break in a log record would let a client forge log lines.
    """
    text = redact(text)
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape_character(character) for character in text)


def _escape_character(character: str) -> str:
    """Return an escape that is valid inside a JSON string as well."""
    if character in SHORT_ESCAPES:
        return SHORT_ESCAPES[character]
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


# JSON's escapes of ASCII characters: `\\u0073` is an `s`. Hardly any writer of JSON uses them, but they hide a
# word from a search. The backslashes of JSON inside a JSON string are doubled; any number of them is recognised.
MARK = "\\u00"  # a text without this contains no such escape
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
