"""Open the reply of each turn, in the form that the client requested: this is chosen once per call."""

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from dragoman.net.headers import Headers
from dragoman.proxy.call import Call
from dragoman.proxy.decoding import begins_array, begins_document, begins_events, make_source
from dragoman.proxy.ports import PromptMemory
from dragoman.proxy.prepare import prepare
from dragoman.proxy.prepared import Prepared
from dragoman.proxy.replies.passed import PassedDocument, PassedStream
from dragoman.proxy.replies.reply import DocumentReply, ReplyForm, ReplyOrigin, StreamedReply, choose_reply
from dragoman.proxy.replies.translated import Body, TranslatedDocument, TranslatedReply, TranslatedStream
from dragoman.proxy.reply_bounds import ReplyDeadline
from dragoman.proxy.reply_monitor import ReplyMonitor
from dragoman.proxy.response_writer import DocumentWriter, StreamWriter
from dragoman.proxy.runtime import target_settings
from dragoman.proxy.step import Ask
from dragoman.translate.hub.loss import Ledger
from dragoman.upstreams.rejections.rules import Found

W = TypeVar("W")
MakeWatch = Callable[[], ReplyMonitor]
NO_HEADERS = Headers([])
STREAM, DOCUMENT = ReplyForm  # looked up once: on Python 3.11, each look-up of a member is slow


class Replies(Protocol):
    """Prepares the requests of one call, one per turn, and opens the replies to them."""

    @property
    def rules(self) -> tuple[Found, ...]: ...  # that the request was made with
    @property
    def deadline(self) -> type[ReplyDeadline]: ...  # of each request
    def prepare(self, ask: Ask) -> Awaitable[Prepared]: ...  # raises RequestError
    def begin_turn(self, ask: Ask, prepared: Prepared) -> None: ...
    def begin_answer(self, status: int, headers: Headers, *, is_stream: bool) -> bool: ...  # whether events may come
    def reads_events(self, begun: bytes) -> bool: ...  # whether they do, by the first bytes
    def open_stream(self, begun: bytes) -> StreamedReply: ...  # which begins so
    def open_document(self, body: Body) -> DocumentReply: ...
    def open_for_tools(self) -> TranslatedReply: ...  # that run before anything is sent


class _ModelReplies(Generic[W]):
    """What the replies of a model have in common."""

    _form: ReplyForm  # that the client requested
    deadline = ReplyDeadline
    rules: tuple[Found, ...] = ()

    def __init__(self, call: Call, writer: W, make_watch: MakeWatch, prompts: PromptMemory | None = None) -> None:
        self._call = call
        self._prompts = prompts
        self._writer = writer
        self._make_watch = make_watch

    def prepare(self, ask: Ask) -> Awaitable[Prepared]:
        """Choose between a request of the client's own bytes and one that is translated."""
        call = self._call
        settings = target_settings(call.runtime, ask.route, call.tenant, ask.repairs, strict=call.strict)
        self.rules = settings.rules
        return prepare(call, ask, settings, self._prompts)

    def begin_turn(self, ask: Ask, prepared: Prepared) -> None:
        self._ask, self._prepared, self._headers = ask, prepared, NO_HEADERS

    def _make_origin(self, answered: ReplyForm) -> ReplyOrigin:
        why = choose_reply(self._prepared.why, self._form, answered)
        return ReplyOrigin(self._call, self._ask, self._prepared, self._headers, self._make_watch(), why)


class StreamReplies(_ModelReplies[StreamWriter]):
    """Opens the replies to a client that reads a stream."""

    _form = ReplyForm.STREAM

    def begin_turn(self, ask: Ask, prepared: Prepared) -> None:
        super().begin_turn(ask, prepared)
        self._writer.begin_turn(prepared)

    def begin_answer(self, status: int, headers: Headers, *, is_stream: bool) -> bool:
        self._headers, self._is_stream = headers, is_stream
        if is_stream:
            self._writer.begin_answer(self._prepared.select_headers(headers))
        return True

    def reads_events(self, begun: bytes) -> bool:
        upstream = self._prepared.upstream
        if self._is_stream:
            return not begins_document(upstream, begun)
        return begins_events(upstream, begun) or begins_array(upstream, begun)

    def open_stream(self, begun: bytes) -> StreamedReply:
        origin = self._make_origin(STREAM)
        if origin.why.passes:
            self._writer.begin_answer(self._headers)
            return PassedStream(origin, self._writer, make_source(self._prepared, Ledger(), begun))
        return TranslatedStream(origin, self._writer, begun)

    def open_document(self, body: Body) -> DocumentReply:
        return TranslatedStream(self._make_origin(DOCUMENT), self._writer, body=body)

    def open_for_tools(self) -> TranslatedReply:
        return TranslatedStream(self._make_origin(STREAM), self._writer)


class DocumentReplies(_ModelReplies[DocumentWriter]):
    """Opens the replies to a client that reads one body."""

    _form = ReplyForm.DOCUMENT

    def begin_answer(self, status: int, headers: Headers, *, is_stream: bool) -> bool:
        self._headers = headers
        return is_stream and self._prepared.streams

    def reads_events(self, begun: bytes) -> bool:
        return not begins_document(self._prepared.upstream, begun)

    def open_stream(self, begun: bytes) -> StreamedReply:
        return TranslatedDocument(self._make_origin(STREAM), self._writer, begun)

    def open_document(self, body: Body) -> DocumentReply:
        origin = self._make_origin(STREAM if body.is_stream else DOCUMENT)
        if origin.why.passes:
            return PassedDocument(origin, self._writer, origin.watch, body.content)
        return TranslatedDocument(origin, self._writer, body=body)

    def open_for_tools(self) -> TranslatedReply:
        return TranslatedDocument(self._make_origin(DOCUMENT), self._writer)
