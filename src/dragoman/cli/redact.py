"""Text for a person or a log comes in; the same without anything that looks like a credential goes out."""

import re

MASK = "***"

SECRET = re.compile(
    r"""(?<![A-Za-z0-9])(?:
            (?:sk|pk|rk)-[A-Za-z0-9_-]{8,}
          | (?:dgm|ksk|ghp|gho|ghu|ghs|ghr|github_pat|hf|gsk|xai)_[A-Za-z0-9_-]{8,}
          | AIza[A-Za-z0-9_-]{20,}
          | ao[ar][A-Za-z0-9_-]{20,}
          | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?
        )""",
    re.VERBOSE,
)
CARRIED = re.compile(
    r"""(?P<before>\b(?:bearer|basic)\s+
          | \b(?:x-)?(?:goog-)?api[-_]?key["']?\s*[:=]\s*["']?
          | \b(?:authorization|refresh_?token|access_?token|client_?secret|password)["']?\s*[:=]\s*["']?(?!bearer|basic)
          | [?&]key=
          | (?<=://)[^\s/:@]+:(?=[^\s/@]+@)
        )(?P<secret>[^\s"'&,;@]+)""",
    re.VERBOSE | re.IGNORECASE,
)


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
    ),
    *("aiza", "aoa", "aor", "eyj", "bearer", "basic", "key", "authorization", "token", "secret", "password", "://"),
)
ANY_MARK = re.compile("|".join(map(re.escape, MARKS)))


def redacted(text: str) -> str:
    if not ANY_MARK.search(text.lower()):
        return text
    return CARRIED.sub(rf"\g<before>{MASK}", SECRET.sub(MASK, text))
