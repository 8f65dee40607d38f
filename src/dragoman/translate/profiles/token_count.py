"""Estimates of how many tokens a request, a text or a file is.

Text is counted with the vocabulary of cl100k_base, which is part of this package, so nothing is downloaded (see
docs/adr/0006-token-counting.md). A word that the vocabulary contains is one token, as it is for a tokenizer. Any other
word is split into the longest tokens from its start, where a tokenizer merges pairs of them: the counts differ by less
than one per cent for prose, code and JSON, and by a few per cent for languages with few whole words in the vocabulary
(docs/adr/0057-size.md). Images follow the vendors' published formulas, from the dimensions in the file's header; what
has no readable header gets a constant. Base64 is never counted as text.
"""

import binascii
import re
import struct
import zlib
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import chain
from math import ceil

import msgspec

from dragoman.translate.framing.media_header import Media, Size, image_size, media_kind, pdf_pages, wav_seconds
from dragoman.translate.hub.request import (
    Audio,
    Custom,
    Document,
    Foreign,
    Function,
    Image,
    Inline,
    Json,
    Part,
    Refusal,
    Request,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from dragoman.translate.profiles.shipped_data import read_shipped

IMAGE_TOKENS = 1600  # of unknown size: Anthropic's count for a large one
LOW_DETAIL_IMAGE_TOKENS = 85
# Anthropic: width x height / 750, after scaling down to 1,568 pixels on the long edge.
_CLAUDE_EDGE = 1568
_CLAUDE_PIXELS = 750
# OpenAI: scaled into a square of 2,048, then to 768 on the short edge; 85, plus 170 for each tile of 512.
_OPENAI_EDGE, _OPENAI_SHORT, _OPENAI_TILE = 2048, 768, 512
# Gemini: 258 for a small image, else for each tile of 768.
_GEMINI_SMALL, _GEMINI_TILE, _GEMINI_TOKENS = 384, 768, 258
# Anthropic states 1,500 to 3,000 tokens for a page of PDF; such a page is often about 75 KB.
PAGE_TOKENS = 2250
PAGE_BYTES = 75_000
MAX_PAGES = 2000
AUDIO_TOKENS_PER_SECOND = 10  # OpenAI's; Gemini has 32
AUDIO_BYTES_PER_TOKEN = 1600  # ten tokens for a second at 128 kbit/s
BYTES_PER_TOKEN = 4  # of text, as a rough estimate

_HEAD = 8 * 1024  # characters of base64 that contain the size of nearly every image
_LONG_HEAD = 1024 * 1024  # a JPEG may begin with previews and colour profiles
_TAIL = 256 * 1024
MIN_MEDIA = 256  # shorter values are not examined
_MARKERS = (b";base64,", b'"data":"', b'"data": "')
_BASE64 = re.compile(rb"[A-Za-z0-9+/_\\-]{64}")
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


def count_media_tokens(base64: bytes, model: str, detail: str | None = None, kind: Media = Media.UNKNOWN) -> int:
    """Return the tokens of a file given as base64; the file's own header takes precedence over `kind`."""
    head = _decode(base64[:_HEAD])
    found = media_kind(head)
    size = len(base64) * 3 // 4
    match kind if found is Media.UNKNOWN else found:
        case Media.IMAGE:
            return count_image_tokens(image_size(head) or image_size(_decode(base64[:_LONG_HEAD])), model, detail)
        case Media.AUDIO:
            return count_audio_tokens(head, size)
        case _:
            pages = pdf_pages(head, _decode_end(base64)) if found is Media.PDF else None
            return PAGE_TOKENS * min(MAX_PAGES, max(1, size // PAGE_BYTES if pages is None else pages))


def count_image_tokens(size: Size | None, model: str, detail: str | None = None) -> int:
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


def count_audio_tokens(head: bytes, size: int) -> int:
    seconds = wav_seconds(head, size)
    return size // AUDIO_BYTES_PER_TOKEN if seconds is None else ceil(min(seconds, size) * AUDIO_TOKENS_PER_SECOND)


def estimate_body_tokens(body: bytes, model: str) -> int:
    """Return about how many tokens a request body is, from the size of its text and the media in it."""
    text, tokens = len(body), 0
    for start, end in _find_media(body):
        text -= end - start
        tokens += count_media_tokens(body[start:end], model)
    return tokens + text // BYTES_PER_TOKEN


def count_data_url_tokens(text: str, model: str) -> int | None:
    """Return the tokens of a string that is a data URL, or only base64; None if it is text."""
    if len(text) < MIN_MEDIA:
        return None
    found = _DATA_URL.match(text)
    start = found.end() if found else 0
    data = text[start:].encode(errors="replace")
    return count_media_tokens(data, model) if found or _is_file(data) else None


def _find_media(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the base64 of each file in a JSON body begins and ends."""
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
    """Decode complete groups of base64, as far as they are valid; an escaped slash counts as a slash."""
    text = base64.replace(b"\\/", b"/").replace(b"-", b"+").replace(b"_", b"/")
    try:
        return binascii.a2b_base64(text[: len(text) // 4 * 4])
    except binascii.Error:
        return b""


def _decode_end(base64: bytes) -> bytes:
    return _decode(base64[len(base64) // 4 * 4 - min(_TAIL, len(base64) // 4 * 4) :])


CLAUDE_CORRECTION = 1.15  # Claude's own vocabulary needs more tokens for the same text
TURN_TOKENS = 4  # the role and delimiters of a turn
TOOL_TOKENS = 8  # the delimiters of a tool's definition

# A list of all words of a text is made: short slices keep it small, and let the event loop run beside a counting
# thread. Each boundary between slices costs at most one token.
SLICE_CHARACTERS = 16 * 1024
# A longer text is estimated from this many evenly spread slices: that bounds the time, and is still exact to a few per
# cent, which is less than the difference between two vendors' vocabularies.
MOST_SLICES = 32
SHORT_SLICE = 2 * 1024  # where the event loop itself counts: the worst text takes 20 ms


def count_text(text: str, slice_characters: int = SLICE_CHARACTERS) -> int:
    """Return the tokens of a text; of one with more than 32 slices, an estimate from evenly spread ones."""
    if not text:
        return 0
    slices = -(-len(text) // slice_characters)
    if slices <= MOST_SLICES:
        starts = range(0, len(text), SLICE_CHARACTERS)
        return sum(_count_slice(text[start : start + SLICE_CHARACTERS]) for start in starts)
    starts = range(0, len(text) - slice_characters, len(text) // MOST_SLICES)
    sampled = sum(_count_slice(text[start : start + slice_characters]) for start in starts)
    return round(sampled * len(text) / (len(starts) * slice_characters))


def estimate_text_tokens(text: str, model: str) -> int:
    """Return about how many tokens of its own vocabulary a model needs for a text."""
    return _correct_count(count_text(text), model)


def estimate_written_tokens(size: int, model: str) -> int:
    """Return about how many tokens a model has written, from the size of the text in bytes."""
    return _correct_count(size // BYTES_PER_TOKEN, model)


def _correct_count(tokens: int, model: str) -> int:
    return round(tokens * _find_correction(model))


def _find_correction(model: str) -> float:
    return CLAUDE_CORRECTION if "claude" in model.lower() else 1.0


def _count_slice(text: str) -> int:
    try:
        return count_tokens(text)
    except UnicodeEncodeError:  # half a surrogate pair
        return count_tokens(text.encode(errors="replace").decode())


def estimate_request_tokens(request: Request, model: str, slice_characters: int = SLICE_CHARACTERS) -> int:
    """Return the input tokens of a request to that model. Slow for large ones: run it in a thread above 64 KB.

    With slices of `SHORT_SLICE` it is fast enough for the event loop, and less exact.
    """
    return _RequestCount(request, model).tokens(_find_correction(model), slice_characters)


class _RequestCount:
    """The contents of a request: text, which is counted, and media, which are estimated by kind and size."""

    def __init__(self, request: Request, model: str) -> None:
        self._model = model
        self._pieces: list[str] = []
        self._marks = TURN_TOKENS * len(request.turns) + TOOL_TOKENS * len(request.tools)
        self._media = 0
        for turn in request.turns:
            for part in turn.parts:
                self._add(part)
        self._pieces += map(_definition, request.tools)
        if request.format is not None and request.format.schema is not None:
            self._pieces.append(_json(request.format.schema))

    def tokens(self, correction: float, slice_characters: int) -> int:
        words = count_text("\n".join(self._pieces), slice_characters)
        return round((self._marks + words) * correction) + self._media

    def _add(self, part: Part) -> None:
        match part:
            case Text(text=text) | Refusal(text=text) | Thinking(text=text):
                self._pieces.append(text)
            case ToolCall(name=name, arguments=arguments):
                self._pieces += (name, arguments)
            case ToolResult(content=content):
                for held in content:
                    self._add(held)
            case Foreign(raw=raw):
                self._pieces.append(_json(self._without_media(raw)))
            case Document(source=str() as text):
                self._pieces.append(text)
            case Document(source=Inline(media_type=media_type, data=data)) if media_type.startswith("text/"):
                self._marks += len(data) * 3 // 4 // BYTES_PER_TOKEN
            case Document(source=source):
                self._media += self._file(source, Media.PDF, None) or PAGE_TOKENS
            case Image(source=source, detail=detail):
                self._media += self._file(source, Media.IMAGE, detail) or count_image_tokens(None, self._model, detail)
            case Audio(source=source):
                self._media += self._file(source, Media.AUDIO, None)

    def _file(self, source: object, kind: Media, detail: str | None) -> int:
        """Return the tokens of a file in the request; 0 for one that it only refers to."""
        if not isinstance(source, Inline):
            return 0
        return count_media_tokens(source.data.encode(errors="replace"), self._model, detail, kind)

    def _without_media(self, value: Json) -> Json:
        """Return the value without its files, which are counted separately."""
        if isinstance(value, dict):
            return {key: self._without_media(held) for key, held in value.items()}
        if isinstance(value, list):
            return [self._without_media(held) for held in value]
        tokens = count_data_url_tokens(value, self._model) if isinstance(value, str) else None
        if tokens is None:
            return value
        self._media += tokens
        return ""


def _definition(tool: Tool) -> str:
    if isinstance(tool, Function):
        return "\n".join((tool.name, tool.description or "", _json(tool.parameters or {})))
    if isinstance(tool, Custom):
        return "\n".join((tool.name, tool.description or "", tool.grammar.definition if tool.grammar else ""))
    return _json(tool.raw)


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()


MAX_CACHED_WORDS = 20_000
_LONGEST = 16  # bytes of a token inside a word; longer ones are whole words, or runs of one character
_START = 2  # bytes that decide how long the tokens are that begin with them

# Words with the space or sign before them, digits by threes, signs, and white space, as cl100k_base divides a text. The
# length of a run is bounded, so that a word can be kept and no text takes quadratic time.
_WORDS = re.compile(
    r"'(?i:s|t|re|ve|m|ll|d)|(?:[^\r\n\w]|_)?[^\W\d_]{1,64}|\d{1,3}| ?(?:[^\s\w]|_){1,64}[\r\n]{0,64}"
    r"|\s{0,64}[\r\n]{1,64}|\s{1,64}(?!\S)|\s{1,64}"
)


def count_tokens(text: str) -> int:
    """Return about how many tokens a text is; raises UnicodeEncodeError for half a surrogate pair."""
    return sum(map(_count_word, _WORDS.findall(text)))


@lru_cache(maxsize=MAX_CACHED_WORDS)
def _count_word(word: str) -> int:
    tokens, longest = load_vocabulary()
    data = word.encode()
    if data in tokens:
        return 1
    count = at = 0
    while at < len(data):
        end = min(len(data), at + longest.get(data[at : at + _START], 1))
        while end > at + 1 and data[at:end] not in tokens:
            end -= 1
        count += 1
        at = end
    return count


@cache
def load_vocabulary() -> tuple[frozenset[bytes], dict[bytes, int]]:
    """Return all tokens, and for the start of each the length of the longest one that may stand inside a word."""
    by_length = unpack_vocabulary(read_shipped("cl100k_base.bin"))
    longest: dict[bytes, int] = {}
    for length in range(_START, _LONGEST + 1):
        longest |= dict.fromkeys({token[:_START] for token in by_length.get(length, ())}, length)
    return frozenset(chain.from_iterable(by_length.values())), longest


def unpack_vocabulary(packed: bytes) -> dict[int, list[bytes]]:
    """Return the tokens that `tools/write_vocabulary.py` packed, by length."""
    data = zlib.decompress(packed)
    at = 1 + 5 * data[0]
    by_length: dict[int, list[bytes]] = {}
    for length, count in struct.iter_unpack(">BI", data[1:at]):
        end = at + length * count
        by_length[length] = [data[start : start + length] for start in range(at, end, length)]
        at = end
    return by_length
