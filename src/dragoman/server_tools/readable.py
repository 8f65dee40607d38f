"""Turn a web page into text that a model can read: headings, paragraphs, lists, code and links as Markdown.

A page may come from anyone, so reading it must take linear time whatever it contains. Tree builders do not: their rules
about open elements cost quadratic time on deep nesting. Only tags and text are needed here, so no tree is built.

No step works on more than a few pieces of `STEP` bytes at once. Between two steps other threads run, and the time that
is left is checked.
"""

import codecs
import re
import time
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import urljoin

from msgspec import Struct

from dragoman.server_tools.charsets import UTF_8, find_codec, find_mark

SKIPPED = frozenset(
    (
        *("head", "script", "style", "noscript", "template", "svg", "canvas", "iframe", "object"),
        *("nav", "footer", "form", "button", "select", "textarea", "dialog"),
    )
)
BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt", "fieldset"),
        *("figcaption", "figure", "header", "hr", "main", "ol", "p", "section", "summary"),
        *("table", "tbody", "tfoot", "thead", "ul"),
    )
)
HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
MAX_LINK = 2048
STEP = 32 * 1024
_LONGEST_REFERENCE = 40  # of a character, such as &amp;
_LONGEST_MARK = 16  # that is searched for in steps, such as </textarea

_RAW_TEXT = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style", "textarea", "title")}
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9:-]{0,40})")
_TAG_DELIMITER = re.compile(r"[>\"']")
_HREF = re.compile(r"\shref\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,500})", re.IGNORECASE)
_MAIN = re.compile(r"<main[\s>]", re.IGNORECASE)
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset=[\"']?([\w:.-]{1,40})", re.IGNORECASE)
_HEADER_CHARSET = re.compile(r"charset=[\"']?([\w:.-]{1,40})", re.IGNORECASE)
_BLANKS_AT_END = re.compile(r"(?<![ \t])[ \t]+\n")  # without the lookbehind, each blank of a long run begins a search


class TooSlow(Exception):
    """Reading a page has taken longer than it may."""


class TimeLimit:
    """How many seconds of the processor one page may take."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def check(self) -> None:
        """Raises TooSlow."""
        if self._clock() > self._end:
            raise TooSlow


def check_nothing() -> None:
    """Let reading take any time."""


Check = Callable[[], None]  # raises TooSlow


class Readable(Struct, frozen=True):
    title: str
    text: str
    truncated: bool


class Tag(Struct, frozen=True):
    name: str
    closes: bool
    attributes: str  # as they are written


def read_html(page: str, url: str, max_chars: int, check: Check = check_nothing) -> Readable:
    """Return a page's title and readable text; links become absolute. At most `max_chars` characters."""
    title = _TITLE.search(page, 0, 200_000)
    text, truncated = "", False
    main = _search(_MAIN, page, 0, check)
    if main is not None:
        text, truncated = _write(split_tags(page, main, check), url, max_chars, until="main")
    if not text:
        text, truncated = _write(split_tags(page, 0, check), url, max_chars)
    return Readable(re.sub(r"\s+", " ", _unescape(title.group(1))).strip() if title else "", text, truncated)


def decode_text(body: bytes, content_type: str, check: Check = check_nothing, max_chars: int | None = None) -> str:
    """Decode by the byte order mark, the header's charset, the page's own, or else as UTF-8; never fails.

    With `max_chars`, decoding stops soon after that number of characters.
    """
    decoder = codecs.getincrementaldecoder(_choose_codec(body, content_type))("replace")
    pieces: list[str] = []
    size = 0
    for start in range(0, len(body), STEP):
        check()
        pieces.append(decoder.decode(body[start : start + STEP]))
        size += len(pieces[-1])
        if max_chars is not None and size > max_chars:
            return "".join(pieces)
    pieces.append(decoder.decode(b"", True))
    return "".join(pieces)


def _choose_codec(body: bytes, content_type: str) -> str:
    if marked := find_mark(body):
        return marked
    if named := _HEADER_CHARSET.search(content_type):
        return find_codec(named.group(1))
    inside = _META_CHARSET.search(body, 0, 4096)
    codec = find_codec(inside.group(1).decode("ascii", "replace")) if inside else UTF_8
    return UTF_8 if codec.startswith("utf-16") else codec  # in UTF-16 the page could not have been searched for it


def _search(pattern: re.Pattern[str], page: str, start: int, check: Check) -> int | None:
    """Return where the pattern is found; it is searched for in steps."""
    for begin in range(start, len(page), STEP):
        check()
        if found := pattern.search(page, begin, begin + STEP + _LONGEST_MARK):
            return found.start()
    return None


def split_tags(page: str, start: int, check: Check) -> Iterator[Tag | str]:
    """Split a page into tags and the text between them; comments and declarations are left out."""
    position = start
    while position < len(page):
        check()
        place = page.find("<", position)
        yield from _split_text(page, position, len(page) if place < 0 else place)
        if place < 0:
            return
        if page.startswith("<!--", place):
            position = _after(page, "-->", place + 4)
        elif page.startswith(("<!", "<?"), place):
            position = _after(page, ">", place + 2)
        elif match := _TAG.match(page, place):
            end = _end_of_tag(page, match.end(), check)
            name = match.group(2).lower()
            yield Tag(name, bool(match.group(1)), page[match.end() : end - 1])
            position = end
            if name in _RAW_TEXT and not match.group(1):
                closing = _search(_RAW_TEXT[name], page, end, check)
                position = len(page) if closing is None else closing
        else:
            yield "<"
            position = place + 1


def _split_text(page: str, position: int, end: int) -> Iterator[str]:
    """Split a text into pieces that are short enough to be worked on, none of them inside a character reference."""
    while end - position > STEP:
        cut = position + STEP
        reference = page.rfind("&", cut - _LONGEST_REFERENCE, cut)
        cut = cut if reference < 0 else reference
        yield page[position:cut]
        position = cut
    if end > position:
        yield page[position:end]


def _after(page: str, mark: str, position: int) -> int:
    place = page.find(mark, position)
    return len(page) if place < 0 else place + len(mark)


def _end_of_tag(page: str, position: int, check: Check) -> int:
    """Return the place behind a tag's `>`, which may also stand inside a quoted value."""
    while delimiter := _TAG_DELIMITER.search(page, position):
        check()
        place = delimiter.start()
        if delimiter.group() == ">":
            return place + 1
        begins_value = page[max(0, place - 8) : place].rstrip().endswith("=")
        position = _after(page, delimiter.group(), place + 1) if begins_value else place + 1
    return len(page)


def _write(items: Iterable[str | Tag], url: str, max_chars: int, until: str | None = None) -> tuple[str, bool]:
    writer = _Writer(url)
    for item in items:
        if isinstance(item, str):
            writer.add_text(item)
        elif item.closes and item.name == until:
            break
        else:
            writer.add_tag(item)
        if writer.size > 2 * max_chars:  # blanks are removed at the end
            break
    text = writer.text()
    return text[:max_chars], len(text) > max_chars


class _Writer:
    def __init__(self, url: str) -> None:
        self._url = url
        self._pieces: list[str] = []
        self._preformatted = 0
        self._skipped = ""  # the element whose content is left out
        self._skip_depth = 0
        self._links: list[str | None] = []  # of the open <a> elements
        self.size = 0

    def text(self) -> str:
        text = _BLANKS_AT_END.sub("\n", "".join(self._pieces))
        return re.sub(r"\n{3,}", "\n\n", text).strip()

    def add_text(self, text: str) -> None:
        if self._skipped:
            return
        text = _unescape(text)
        if not self._preformatted:
            text = re.sub(r"\s+", " ", text)
            if text.startswith(" ") and (not self._pieces or self._pieces[-1].endswith((" ", "\n"))):
                text = text[1:]
        self._add(text)

    def add_tag(self, tag: Tag) -> None:
        if self._skipped:
            if tag.name == self._skipped:
                self._skip_depth += -1 if tag.closes else 1
                self._skipped = self._skipped if self._skip_depth else ""
        elif tag.name in SKIPPED:
            if not tag.closes and not tag.attributes.endswith("/"):
                self._skipped, self._skip_depth = tag.name, 1
        elif tag.closes:
            self._close(tag.name)
        else:
            self._open(tag)

    def _open(self, tag: Tag) -> None:
        match tag.name:
            case "pre":
                self._preformatted += 1
                self._add("\n\n```\n")
            case "li":
                self._add("\n- ")
            case "br" | "tr":
                self._add("\n")
            case "td" | "th":
                self._add(" | ")
            case "a":
                link = self._absolute(tag.attributes)
                self._links.append(link)
                self._add("[" if link else "")
            case name if name in HEADINGS:
                self._add("\n\n" + HEADINGS[name])
            case name if name in BLOCKS:
                self._add("\n\n")

    def _close(self, name: str) -> None:
        if name == "pre":
            self._preformatted = max(0, self._preformatted - 1)
            self._add("\n```\n\n")
        elif name == "a":
            link = self._links.pop() if self._links else None
            self._add(f"]({link})" if link else "")
        elif name in HEADINGS or name in BLOCKS:
            self._add("\n\n")

    def _absolute(self, attributes: str) -> str | None:
        found = _HREF.search(attributes, 0, 2 * MAX_LINK)
        href = _unescape(found.group(1) or found.group(2) or found.group(3) or "").strip() if found else ""
        if not href or href.startswith("#"):
            return None
        try:
            link = urljoin(self._url, href)
        except ValueError:
            return None
        return link if link.startswith(("http://", "https://")) and len(link) <= MAX_LINK else None

    def _add(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self.size += len(text)


def _unescape(text: str) -> str:
    try:
        import html  # with two thousand names of characters: 1.5 MB

        return html.unescape(text)
    except ValueError:  # a character reference with thousands of digits
        return text
