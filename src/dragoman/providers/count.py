"""A request or a text comes in; about how many tokens it is goes out, counted here and never asked of anyone.

The vocabulary ships in the splintr wheel, so nothing is downloaded. See docs/adr/0006-token-counting.md.
"""

from functools import cache

import msgspec
import splintr

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

VOCABULARY = "cl100k_base"  # of those in the wheel the smallest in memory; o200k_base takes half as much again
CLAUDE_CORRECTION = 1.15  # Claude's own vocabulary makes more tokens of the same text
TURN_TOKENS = 4  # the role and the marks around a turn
TOOL_TOKENS = 8  # the marks around a tool's definition

# Both vendors scale large images down: Anthropic to about 1,600 tokens, OpenAI to 85 in low detail.
IMAGE_TOKENS = 1600
LOW_DETAIL_IMAGE_TOKENS = 85
# Anthropic states 1,500 to 3,000 tokens for a page of PDF; such a page is often about 75 KB.
PAGE_TOKENS = 2250
PAGE_BYTES = 75_000
AUDIO_BYTES_PER_TOKEN = 1600  # ten tokens for a second at 128 kbit/s

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
    count = count_request(request)
    return round(count * CLAUDE_CORRECTION) if "claude" in model.lower() else count


def count_request(request: Request) -> int:
    """The request in tokens of our vocabulary, images and documents approximated."""
    pieces: list[str] = []
    extra = 0
    for turn in request.turns:
        extra += TURN_TOKENS
        for part in turn.parts:
            extra += _add(part, pieces)
    for tool in request.tools:
        extra += TOOL_TOKENS
        pieces.append(_definition(tool))
    if request.format is not None and request.format.schema is not None:
        pieces.append(_json(request.format.schema))
    return extra + count_text("\n".join(pieces))


def _add(part: Part, pieces: list[str]) -> int:
    """Adds the part's text to the pieces; returns the tokens of what is no text."""
    match part:
        case Text(text=text) | Refusal(text=text) | Thinking(text=text):
            pieces.append(text)
        case ToolCall(name=name, arguments=arguments):
            pieces += (name, arguments)
        case ToolResult(content=content):
            return sum(_add(held, pieces) for held in content)
        case Foreign(raw=raw):
            pieces.append(_json(raw))
        case Document(source=str() as text):
            pieces.append(text)
        case Document(source=source):
            return PAGE_TOKENS * max(1, _size(source) // PAGE_BYTES)
        case Image(detail=detail):
            return LOW_DETAIL_IMAGE_TOKENS if detail == "low" else IMAGE_TOKENS
        case Audio(source=source):
            return _size(source) // AUDIO_BYTES_PER_TOKEN
    return 0


def _size(source: object) -> int:
    return len(source.data) * 3 // 4 if isinstance(source, Inline) else 0


def _definition(tool: Tool) -> str:
    if isinstance(tool, Function):
        return "\n".join((tool.name, tool.description or "", _json(tool.parameters or {})))
    if isinstance(tool, Custom):
        return "\n".join((tool.name, tool.description or "", tool.grammar.definition if tool.grammar else ""))
    return _json(tool.raw)


def _json(value: Json) -> str:
    return msgspec.json.encode(value).decode()
