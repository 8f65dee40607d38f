"""What is recorded of one upstream request."""

from dragoman.net.client import IncomingResponse, OutgoingRequest
from dragoman.proxy.capture import format as capture_format
from dragoman.proxy.capture.format import GAP
from dragoman.proxy.capture.masking import to_text
from dragoman.proxy.capture.memory_bounds import HeadAndTail
from dragoman.upstreams.provider import Provider


class UpstreamExchange:
    """One request to an upstream and its response, as far as it has arrived."""

    def __init__(self, route: str, provider: Provider, protocol: str, out: OutgoingRequest) -> None:
        self.at = 0.0
        self.route = route
        self.kind = provider.kind
        self.protocol = protocol
        self.out = out
        self.response: IncomingResponse | None = None
        self.head_at = 0.0
        self.chunks = HeadAndTail(GAP)
        self.end = ""
        self.ended_at = 0.0
        self.error = ""

    def make_record(self) -> capture_format.UpstreamRequest:
        out, response = self.out, None
        if self.response is not None:
            headers = to_text(self.response.headers)
            response = capture_format.UpstreamResponse(
                self.head_at, self.response.status, headers, self.chunks.parts(), self.end, self.ended_at
            )
        return capture_format.UpstreamRequest(
            at=self.at,
            route=self.route,
            kind=self.kind,
            protocol=self.protocol,
            method=out.method,
            url=out.url,
            headers=to_text(out.headers),
            body=out.body,
            response=response,
            error=self.error,
        )
