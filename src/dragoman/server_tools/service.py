"""Requests to the services behind server tools: one small JSON exchange, its failures as values."""

from msgspec import Struct

from dragoman.net.bodies import read_and_close
from dragoman.net.client import (
    ConnectionLost,
    DialOptions,
    OutgoingRequest,
    SendRequest,
    SizeLimitExceeded,
    UpstreamTimeout,
)
from dragoman.net.headers import Headers
from dragoman.translate.hub.failure import describe_cause
from dragoman.translate.hub.server_tools import ToolErrorCode, ToolFailure

MAX_BYTES = 8 * 1024 * 1024


class ServiceReply(Struct, frozen=True):
    status: int
    headers: Headers
    body: bytes


class ToolService(Struct, frozen=True):
    """How a tool's service is reached."""

    name: str  # for messages
    send: SendRequest
    dial: DialOptions

    async def request(self, out: OutgoingRequest, timeout_s: float) -> ServiceReply | ToolFailure:
        """Return the service's answer; a connection that cannot be opened is tried once more."""
        try:
            return await self._exchange(out, timeout_s)
        except ConnectionLost as fault:
            if fault.sent:
                return self.fail(f"the connection broke: {describe_cause(fault)}")
        except (UpstreamTimeout, SizeLimitExceeded, ValueError) as fault:
            return self.fail(describe_cause(fault))
        try:
            return await self._exchange(out, timeout_s)
        except (ConnectionLost, UpstreamTimeout, SizeLimitExceeded) as fault:
            return self.fail(describe_cause(fault))

    def fail(self, why: str, code: ToolErrorCode = ToolErrorCode.UNAVAILABLE) -> ToolFailure:
        return ToolFailure(code, f"{self.name}: {why}")

    def failure_of_status(self, status: int, hint: str = "") -> ToolFailure:
        code = ToolErrorCode.TOO_MANY_REQUESTS if status == 429 else ToolErrorCode.UNAVAILABLE
        return self.fail(f"HTTP {status}{f'. {hint}' if hint else ''}", code)

    async def _exchange(self, out: OutgoingRequest, timeout_s: float) -> ServiceReply:
        answer = await self.send(out, self.dial, head_timeout_s=timeout_s)
        return ServiceReply(answer.status, answer.headers, await read_and_close(answer, MAX_BYTES, timeout_s))
