"""The outcome of a request comes in; one line of the log goes out."""

import logging

from dragoman.hub.outcome import Outcome

log = logging.getLogger("dragoman.requests")


def log_request(outcome: Outcome) -> None:
    way = outcome.asked if outcome.passthrough else f"{outcome.asked}>{outcome.spoken}"
    milliseconds = outcome.seconds * 1000
    log.info("%s %s %s %s %.0fms", outcome.id, way, outcome.route, outcome.result, milliseconds)
