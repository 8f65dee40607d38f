"""What a step may use that runs between two upstream turns of the same reply."""

from msgspec import Struct

from dragoman.flow.call import Call
from dragoman.flow.pipes import Pipe, TranslationPipe
from dragoman.flow.ports import LostCallMemory
from dragoman.flow.response_writer import ResponseWriter


class OpenReply(Struct, frozen=True):
    """A reply that is not finished yet."""

    call: Call
    memory: LostCallMemory
    writer: ResponseWriter
    pipe: Pipe | None  # of the last turn; None if it got no reply

    @property
    def translation(self) -> TranslationPipe:
        """Return the pipe of a reply that is translated."""
        assert isinstance(self.pipe, TranslationPipe)
        return self.pipe

    def write(self, data: bytes) -> None:
        """Write this for the client, with the next bytes or with the end."""
        self.writer.keep_for_end(data)
