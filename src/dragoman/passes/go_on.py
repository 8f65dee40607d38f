"""Ask for the rest of a reply that was interrupted."""

from hashlib import sha256

from msgspec.structs import replace

from dragoman.hub.request import Request, Role, Text, Turn

PLEA = (
    "Your reply was interrupted after the text above. Write {marker} and then, directly after it, continue the reply "
    "from exactly where it stops, even in the middle of a word: do not repeat anything, do not apologise, do not "
    "comment on the interruption."
)


def continuation_marker(said: str) -> str:
    """Return what a model is asked to write in front of its continuation; no reply holds it by chance."""
    return f"[[continue:{sha256(said.encode(errors='surrogatepass')).hexdigest()[:12]}]]"


def go_on(request: Request, said: str, marker: str) -> Request:
    """Add the reply so far and the request to continue it."""
    if not said.strip():  # vendors refuse a turn of blanks, and there is nothing to go on from
        return request
    begun = Turn(Role.ASSISTANT, (Text(said),))
    plea = Turn(Role.USER, (Text(PLEA.format(marker=marker)),))
    return replace(request, turns=(*request.turns, begun, plea))
