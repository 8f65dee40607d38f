"""Any text comes in; one printable line without anything that looks like a credential goes out."""

from dragoman.framing.redact import redact

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
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    """Valid inside a JSON string too."""
    if character in SHORT:
        return SHORT[character]
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
