"""Continue a reply that broke off, with another upstream."""

from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from dragoman.hub.failure import Failure
from dragoman.hub.loss import Ledger
from dragoman.hub.request import Request, Role, Text, Turn

INSTRUCTION = (
    "Your reply was interrupted after the text above. Write {marker} and then, directly after it, continue the reply "
    "from exactly where it stops, even in the middle of a word: do not repeat anything, do not apologise, do not "
    "comment on the interruption."
)


class Continuation(Struct, frozen=True):
    """The text of a reply that broke off, and why it did."""

    text: str
    failure: Failure

    @property
    def marker(self) -> str:
        """Return what the model must write before its continuation; no reply contains it by chance."""
        return f"[[continue:{sha256(self.text.encode(errors='surrogatepass')).hexdigest()[:12]}]]"

    def change(self, request: Request, ledger: Ledger) -> Request:
        """Add the reply so far to the request, and the instruction to continue it."""
        if not self.text.strip():  # vendors refuse a turn of blanks, and there is nothing to continue
            return request
        begun = Turn(Role.ASSISTANT, (Text(self.text),))
        instruction = Turn(Role.USER, (Text(INSTRUCTION.format(marker=self.marker)),))
        return replace(request, turns=(*request.turns, begun, instruction))
