"""What echo can be asked to do, by the name of its model."""

from msgspec import Struct

from dragoman.hub.failure import Failure, Kind


class Pace(Struct, frozen=True):
    """How long a stream waits before its first word, and before every word."""

    first_s: float = 0.0
    word_s: float = 0.0


MODELS: tuple[tuple[str, str], ...] = (
    ("echo", "Repeats the last user text word by word; says `call NAME {json}`: calls that tool"),
    ("echo-think", "Thinks before it repeats"),
    ("slow", "Waits two seconds, then takes a quarter of a second for each word"),
    ("error-400", "Refuses the request as bad"),
    ("error-401", "Refuses the gateway's credential"),
    ("error-403", "Forbids the model"),
    ("error-404", "Does not know the model"),
    ("error-413", "Finds the request too large"),
    ("error-429", "Limits the rate, to be tried again in seven seconds"),
    ("error-500", "Fails on its own account"),
    ("error-529", "Is overloaded"),
    ("error-context", "Finds the prompt too long for its context window"),
    ("error-mid", "Fails in the middle of its reply"),
    ("error-cut", "Ends in the middle of its reply without saying so"),
    ("error-stall", "Falls silent in the middle of its reply"),
)

LISTED = ("echo", "echo-think")  # the others are for tests: asked for outright, as `echo/error-429`

# Longer than the gateway waits by itself, so that the client sees it.
RETRY_AFTER_S = 7.0

REFUSALS: dict[str, tuple[int, Failure]] = {
    "error-400": (400, Failure(Kind.BAD_REQUEST, "echo was asked to refuse this request", code="echo_bad_request")),
    "error-401": (401, Failure(Kind.CREDENTIAL, "echo was asked to refuse the credential")),
    "error-403": (403, Failure(Kind.FORBIDDEN, "echo was asked to forbid this model")),
    "error-404": (404, Failure(Kind.NOT_FOUND, "echo was asked not to know this model")),
    "error-413": (413, Failure(Kind.TOO_LARGE, "echo was asked to find this request too large")),
    "error-429": (429, Failure(Kind.RATE_LIMITED, "echo was asked to limit the rate", retry_after=RETRY_AFTER_S)),
    "error-500": (500, Failure(Kind.UPSTREAM, "echo was asked to fail")),
    "error-529": (529, Failure(Kind.OVERLOADED, "echo was asked to be overloaded")),
    "error-context": (400, Failure(Kind.CONTEXT_TOO_LONG, "prompt is too long: echo was asked to say so")),
}

FAILS_MIDWAY = Failure(Kind.OVERLOADED, "echo was asked to fail in the middle of its reply")
SLOW = Pace(first_s=2.0, word_s=0.25)
