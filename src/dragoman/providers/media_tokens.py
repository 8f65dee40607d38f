"""How many tokens an image, a document or a recording is, by its kind and size and never by its base64 as text.

Images follow the vendors' published formulas, from the dimensions in the file's header. What has no readable header
gets a constant. Every estimate uses these functions: token counts, usage of translated and of passed-through replies.
"""

import binascii
import re
from collections.abc import Iterator
from math import ceil

from dragoman.framing.media_header import Media, Size, image_size, media_kind, pdf_pages, wav_seconds

IMAGE_TOKENS = 1600  # of unknown size: what Anthropic makes of a large one
LOW_DETAIL_IMAGE_TOKENS = 85
# Anthropic: width x height / 750, after scaling down to 1,568 pixels on the long edge.
_CLAUDE_EDGE = 1568
_CLAUDE_PIXELS = 750
# OpenAI: fit into 2,048 square, then 768 on the short edge; 85 and 170 for each tile of 512.
_OPENAI_EDGE, _OPENAI_SHORT, _OPENAI_TILE = 2048, 768, 512
# Gemini: 258 for a small image, else for each tile of 768.
_GEMINI_SMALL, _GEMINI_TILE, _GEMINI_TOKENS = 384, 768, 258
# Anthropic states 1,500 to 3,000 tokens for a page of PDF; such a page is often about 75 KB.
PAGE_TOKENS = 2250
PAGE_BYTES = 75_000
MAX_PAGES = 2000
AUDIO_TOKENS_PER_SECOND = 10  # OpenAI's; Gemini has 32
AUDIO_BYTES_PER_TOKEN = 1600  # ten tokens for a second at 128 kbit/s
BYTES_PER_TOKEN = 4  # of text, roughly, where nobody has counted

_HEAD = 8 * 1024  # characters of base64: the size of nearly every image is told in them
_LONG_HEAD = 1024 * 1024  # a JPEG may begin with previews and colour profiles
_TAIL = 256 * 1024
MIN_MEDIA = 256  # shorter values are not worth a look
_MARKERS = (b";base64,", b'"data":"', b'"data": "')
_BASE64 = re.compile(rb"[A-Za-z0-9+/_\\-]{64}")
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


def media_tokens(base64: bytes, model: str, detail: str | None = None, kind: Media = Media.UNKNOWN) -> int:
    """Return the tokens of a file given as base64; `kind` is what it is said to be, its own header decides."""
    head = _decode(base64[:_HEAD])
    found = media_kind(head)
    size = len(base64) * 3 // 4
    match kind if found is Media.UNKNOWN else found:
        case Media.IMAGE:
            return image_tokens(image_size(head) or image_size(_decode(base64[:_LONG_HEAD])), model, detail)
        case Media.AUDIO:
            return audio_tokens(head, size)
        case _:
            pages = pdf_pages(head, _decode_end(base64)) if found is Media.PDF else None
            return PAGE_TOKENS * min(MAX_PAGES, max(1, size // PAGE_BYTES if pages is None else pages))


def image_tokens(size: Size | None, model: str, detail: str | None = None) -> int:
    """Return the tokens of an image of these dimensions, by the formula of the model's vendor."""
    if detail == "low":
        return LOW_DETAIL_IMAGE_TOKENS
    if size is None:
        return IMAGE_TOKENS
    name = model.lower()
    if "claude" in name:
        width, height = _fit(size, _CLAUDE_EDGE)
        return min(IMAGE_TOKENS, max(1, ceil(width * height / _CLAUDE_PIXELS)))
    if "gemini" in name:
        tiles = 1 if max(size) <= _GEMINI_SMALL else ceil(size[0] / _GEMINI_TILE) * ceil(size[1] / _GEMINI_TILE)
        return _GEMINI_TOKENS * min(tiles, 100)
    width, height = _fit(size, _OPENAI_EDGE)
    shrink = min(1.0, _OPENAI_SHORT / min(width, height))
    tiles = ceil(width * shrink / _OPENAI_TILE) * ceil(height * shrink / _OPENAI_TILE)
    return 85 + 170 * tiles


def audio_tokens(head: bytes, size: int) -> int:
    seconds = wav_seconds(head, size)
    return size // AUDIO_BYTES_PER_TOKEN if seconds is None else ceil(min(seconds, size) * AUDIO_TOKENS_PER_SECOND)


def guess_tokens(body: bytes, model: str) -> int:
    """Return about how many tokens a request body is, from the size of its text and the media in it."""
    text, tokens = len(body), 0
    for start, end in _media_in(body):
        text -= end - start
        tokens += media_tokens(body[start:end], model)
    return tokens + text // BYTES_PER_TOKEN


def data_url_tokens(text: str, model: str) -> int | None:
    """Return the tokens of a string that is a data URL, or nothing but base64; None where it is a text."""
    if len(text) < MIN_MEDIA:
        return None
    found = _DATA_URL.match(text)
    start = found.end() if found else 0
    data = text[start:].encode(errors="replace")
    return media_tokens(data, model) if found or _is_file(data) else None


def _media_in(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the base64 of each file in a JSON body begins and ends."""
    found: dict[int, int] = {}  # end -> begin: a data URL under `data` has two markers
    for marker in _MARKERS:
        at = body.find(marker)
        while at >= 0:
            start = at + len(marker)
            end = body.find(b'"', start)
            end = len(body) if end < 0 else end
            if end - start >= MIN_MEDIA and _BASE64.match(body, start):
                found.setdefault(end, start)
            at = body.find(marker, max(start, end))
    for end, start in found.items():
        yield start, end


def _is_file(data: bytes) -> bool:
    return _BASE64.match(data) is not None and media_kind(_decode(data[:64])) is not Media.UNKNOWN


def _fit(size: Size, edge: int) -> tuple[float, float]:
    shrink = min(1.0, edge / max(size))
    return max(1.0, size[0] * shrink), max(1.0, size[1] * shrink)


def _decode(base64: bytes) -> bytes:
    """Return what whole groups of base64 give, as far as they are base64; an escaped slash is a slash."""
    text = base64.replace(b"\\/", b"/").replace(b"-", b"+").replace(b"_", b"/")
    try:
        return binascii.a2b_base64(text[: len(text) // 4 * 4])
    except binascii.Error:
        return b""


def _decode_end(base64: bytes) -> bytes:
    return _decode(base64[len(base64) // 4 * 4 - min(_TAIL, len(base64) // 4 * 4) :])
