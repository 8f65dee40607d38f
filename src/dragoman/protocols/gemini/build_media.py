"""Build the media of a Gemini request: inline data, or files by their address."""

from urllib.parse import urlsplit

from dragoman.hub.failure import BadRequest
from dragoman.hub.loss import Ledger
from dragoman.hub.profile import Target
from dragoman.hub.request import Audio, Cache, Document, FileId, Image, Inline, Link
from dragoman.protocols.gemini.wire import Wire

SEPARATOR = "\n\n"
_IN_RESULTS = frozenset(("image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"))
_TYPES_BY_SUFFIX = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "heic": "image/heic",
    "pdf": "application/pdf",
    "txt": "text/plain",
    "html": "text/html",
    "csv": "text/csv",
}


class MediaBuilder:
    """Builds the media of one request."""

    __slots__ = ("_ledger", "_media_in_results")

    def __init__(self, target: Target, ledger: Ledger) -> None:
        self._media_in_results = target.profile.media_in_results
        self._ledger = ledger

    def fits_in_result(self, part: Image | Document) -> bool:
        """Return whether the result of a call can hold this image or document itself."""
        is_known = isinstance(part.source, Inline) and part.source.media_type in _IN_RESULTS
        return is_known and self._media_in_results

    def build(self, part: Image | Document | Audio) -> list[Wire]:
        if not isinstance(part, Audio):
            self.drop_cache(part.cache)
        if isinstance(part, Image) and part.detail not in (None, "auto"):
            self._ledger.note_dropped(part.detail_at or part.at, "Gemini has no detail for one image")
        title = part.title if isinstance(part, Document) else None
        if title and not isinstance(part.source, str):
            self._ledger.note_approximated(part.at, "Gemini's files have no name")
        match part.source:
            case str(text):
                self._ledger.note_approximated(part.at, "Gemini has no text documents; sent as plain text")
                return [{"text": f"{title}{SEPARATOR}{text}" if title else text}]
            case Inline(media_type=media_type, data=data):
                return [{"inlineData": {"mimeType": media_type, "data": data}}]
            case Link(url=url):
                return [{"fileData": {"mimeType": self._find_type(part, url), "fileUri": url}}]
            case FileId(id=file_id):
                raise BadRequest(part.at, f"The file {file_id!r} is stored at another vendor. Send its data instead.")

    def _find_type(self, part: Image | Document | Audio, url: str) -> str:
        """Return the type of a linked file, which Gemini wants, from its name or by its kind."""
        found = _TYPES_BY_SUFFIX.get(urlsplit(url).path.rpartition(".")[2].lower())
        if found is not None:
            return found
        guessed = "image/jpeg" if isinstance(part, Image) else "application/pdf"
        self._ledger.note_invented(part.at, f"Gemini wants the type of a linked file: {guessed}")
        return guessed

    def drop_cache(self, cache: Cache | None) -> None:
        if cache is not None:
            self._ledger.note_dropped(cache.at, "Gemini has no cache breakpoints")
