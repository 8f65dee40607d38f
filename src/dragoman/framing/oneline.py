"""Any text comes in; one printable line without anything that looks like a credential goes out."""

from dragoman.framing.redact import redacted

SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def one_line(text: str) -> str:
    """A line break in a record would let a client write log lines of its own."""
    text = redacted(text)
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    """Valid inside a JSON string too."""
    if character in SHORT:
        return SHORT[character]
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
