"""A request and the beginning of its answer come in; the request for the rest of the answer goes out."""

from msgspec.structs import replace

from dragoman.hub.request import Request, Role, Text, Turn

PLEA = Text(
    "Your reply was interrupted after the text above. Continue it from exactly where it stops: do not repeat anything, "
    "do not apologise, do not comment on the interruption."
)


def go_on(request: Request, said: str) -> Request:
    if not said.strip():  # vendors refuse a turn of blanks, and there is nothing to go on from
        return request
    begun = Turn(Role.ASSISTANT, (Text(said),))
    return replace(request, turns=(*request.turns, begun, Turn(Role.USER, (PLEA,))))
