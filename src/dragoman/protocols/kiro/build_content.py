"""Build Kiro's image blocks and the text of documents."""

import base64
import binascii
import re

from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Document, FileId, Image, Inline, Link, Part
from dragoman.protocols.kiro.wire import IMAGE_FORMATS, MAX_IMAGE_BYTES, ImageBlock, ImageSource

_DATA_URL = re.compile(r"data:([\w.+/-]*)[^,]*?;base64,")
_SPACE = re.compile(r"\s")
_TEXT_TYPES = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml"}
    | {"application/javascript", "application/x-sh", "application/sql"}
)


def needs_inline(part: Part) -> bool:
    """Return whether a part is linked media, which Kiro does not fetch."""
    return isinstance(part, Image | Document) and isinstance(part.source, Link)


def build_image(part: Image) -> ImageBlock:
    match part.source:
        case Link(url=url):
            raise BadRequest(part.at, f"Kiro takes no image by URL ({url[:80]}). Send its data, or enable [fetch].")
        case FileId():
            raise BadRequest(part.at, "Kiro takes no image by file id. Send its data.")
        case Inline(media_type=media_type, data=data):
            return _build_block(media_type, data, part.at)


def _build_block(media_type: str, data: str, at: str) -> ImageBlock:
    if (prefix := _DATA_URL.match(data)) is not None:
        media_type, data = prefix[1] or media_type, data[prefix.end() :]
    kind = media_type.partition(";")[0].strip().lower()
    if kind not in IMAGE_FORMATS:
        raise BadRequest(
            at, f"Kiro takes PNG, JPEG, GIF and WebP images, not {media_type or 'one without a media type'}."
        )
    if any(character in data for character in "\n\r\t "):
        data = _SPACE.sub("", data)
    size = len(data) * 3 // 4
    if size > MAX_IMAGE_BYTES:
        raise BadRequest(at, f"Kiro takes images of at most {MAX_IMAGE_BYTES} bytes, got {size}.")
    return ImageBlock(IMAGE_FORMATS[kind], ImageSource(data))


def build_document_text(part: Document, ledger: Ledger) -> str:
    """Return a text document as tagged text; raises BadRequest for other documents."""
    text = _read_text(part)
    ledger.note_approximated(part.at, "a document is sent as text")
    title = f' title="{part.title}"' if part.title else ""
    return f"<document{title}>\n{text}\n</document>"


def _read_text(part: Document) -> str:
    match part.source:
        case str():
            return part.source
        case Link():
            raise BadRequest(part.at, "Kiro takes no document by URL. Send its text, or enable [fetch].")
        case FileId():
            raise BadRequest(part.at, "Kiro takes no document by file id. Send its text.")
        case Inline(media_type=media_type, data=data):
            kind = media_type.partition(";")[0].strip().lower()
            if not kind.startswith("text/") and kind not in _TEXT_TYPES:
                raise BadRequest(part.at, f"Kiro takes text documents, not {media_type}.")
            try:
                return base64.b64decode(data, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError) as error:
                raise BadRequest(part.at, f"The document is not base64 of UTF-8 text: {error}.") from error
