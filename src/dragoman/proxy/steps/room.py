"""Refuse a call while as many as may be are being answered."""

from dragoman.proxy.gateway import Gateway
from dragoman.translate.hub.failure import Failure, Kind, RequestError

BUSY_S = 1.0  # when to try again where there is more to do than we take on


def check_room(gateway: Gateway) -> None:
    """Raise RequestError if more calls than `server.max_requests` are observed, this one included."""
    most = gateway.runtime.config.server.max_requests
    if len(gateway.running) > most:
        message = f"Too many concurrent requests (limit {most}, server.max_requests). Retry in a second."
        raise RequestError(Failure(Kind.OVERLOADED, message, retry_after=BUSY_S))
