"""Continue a reply that broke off at another upstream: it gets the text so far, and is asked for the rest."""

import logging
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from dragoman.proxy.request_record import Awaited, RequestRecord
from dragoman.translate.hub.failure import Failure, RequestError
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.request import Request, Role, Text, Turn
from dragoman.upstreams.routing import Route

log = logging.getLogger("dragoman.requests")

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


def record_continuation(record: RequestRecord, route: Route, failure: Failure) -> None:
    """Record that the reply of this target broke off, and that another one is to continue it."""
    record.record_failure(route, RequestError(failure))
    record.awaits = Awaited.MORE
    log.warning("%s broke off (%s), another upstream continues", route, failure.kind.value)
