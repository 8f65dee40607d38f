"""A request or a text comes in; about how many tokens it is goes out, counted here and never asked of anyone.

The vocabulary ships in the splintr wheel, so nothing is downloaded. See docs/adr/0006-token-counting.md.
"""

from functools import cache

import msgspec
import splintr

from dragoman.framing.media_header import Media
from dragoman.hub.request import (
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
from dragoman.providers.media_tokens import BYTES_PER_TOKEN, PAGE_TOKENS, data_url_tokens, image_tokens, media_tokens

VOCABULARY = "cl100k_base"  # of those in the wheel the smallest in memory; o200k_base takes half as much again
CLAUDE_CORRECTION = 1.15  # Claude's own vocabulary makes more tokens of the same text
TURN_TOKENS = 4  # the role and the marks around a turn
TOOL_TOKENS = 8  # the marks around a tool's definition

# The tokenizer holds the interpreter while it works, and makes a list of all tokens: short slices keep the
# event loop alive beside a counting thread, and the list small. A slice's edge costs at most one token.
SLICE_CHARACTERS = 16 * 1024
# Of a longer text so many slices, evenly spread, stand for the whole: its count is bounded in time, and still within
# a few per cent, which is closer than one vendor's vocabulary is to another's.
MOST_SLICES = 32
_MOST_CACHED_WORDS = 20_000  # splintr remembers words: 65,000 of them take 20 MB


@cache
def _tokenizer() -> splintr.AnyTokenizer:
    return splintr.Tokenizer.from_pretrained(VOCABULARY)


def count_text(text: str) -> int:
    """The tokens of a text; of more than half a million characters, an estimate from evenly spread samples."""
    if not text:
        return 0
    tokenizer = _tokenizer()
    slices = -(-len(text) // SLICE_CHARACTERS)
    if slices <= MOST_SLICES:
        starts = range(0, len(text), SLICE_CHARACTERS)
        return sum(_count_slice(tokenizer, text[start : start + SLICE_CHARACTERS]) for start in starts)
    starts = range(0, len(text) - SLICE_CHARACTERS, len(text) // MOST_SLICES)
    sampled = sum(_count_slice(tokenizer, text[start : start + SLICE_CHARACTERS]) for start in starts)
    return round(sampled * len(text) / (len(starts) * SLICE_CHARACTERS))


def _count_slice(tokenizer: splintr.AnyTokenizer, text: str) -> int:
    try:
        count = len(tokenizer.encode_ordinary(text))
    except UnicodeEncodeError:  # half a surrogate pair
        count = len(tokenizer.encode_ordinary(text.encode(errors="replace").decode()))
    if tokenizer.cache_len > _MOST_CACHED_WORDS:
        tokenizer.clear_cache()
    return count


def estimate(request: Request, model: str) -> int:
    """The input tokens of a request to that model. Pure, but slow for large ones: run it in a thread above 64 KB."""
    return _Count(request, model).tokens(CLAUDE_CORRECTION if "claude" in model.lower() else 1.0)


def count_request(request: Request) -> int:
    """The request in tokens of our vocabulary, images and documents approximated."""
    return _Count(request, request.model).tokens(1.0)


class _Count:
    """What a request holds: text, which is counted, and media, which are estimated by their kind and size."""

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

    def tokens(self, correction: float) -> int:
        return round((self._marks + count_text("\n".join(self._pieces))) * correction) + self._media

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
                self._media += self._file(source, Media.IMAGE, detail) or image_tokens(None, self._model, detail)
            case Audio(source=source):
                self._media += self._file(source, Media.AUDIO, None)

    def _file(self, source: object, kind: Media, detail: str | None) -> int:
        """The tokens of a file that the request carries; 0 for one that it only names."""
        if not isinstance(source, Inline):
            return 0
        return media_tokens(source.data.encode(errors="replace"), self._model, detail, kind)

    def _without_media(self, value: Json) -> Json:
        """The value with its files taken out, which are counted apart."""
        if isinstance(value, dict):
            return {key: self._without_media(held) for key, held in value.items()}
        if isinstance(value, list):
            return [self._without_media(held) for held in value]
        tokens = data_url_tokens(value, self._model) if isinstance(value, str) else None
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
