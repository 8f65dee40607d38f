"""The upstream request of a call: the client's own bytes, or one that was built for its upstream."""

from typing import final

import msgspec
from msgspec import Struct

from dragoman.net.client import OutgoingRequest
from dragoman.net.headers import Header, Headers
from dragoman.proxy.offered_tools import OfferedTools
from dragoman.proxy.prompt_caching import PlannedCache
from dragoman.proxy.response_headers import format_loss_count, format_loss_headers
from dragoman.proxy.why import RELAYED, Why
from dragoman.translate.framing.known_secrets import Secrets, redact_known_in_fields
from dragoman.translate.hub.events import Started
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import ErrorShape, Issuer, Protocol, Upstream
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Request
from dragoman.translate.passes.adapt_tools import ToolMap
from dragoman.upstreams.provider import Pass, Provider, UnsignedRequest
from dragoman.upstreams.routing import Route

Change = Pass


class Outbound(Struct, frozen=True):
    """One target's request, ready to be sent."""

    route: Route
    provider: Provider
    protocol: Protocol  # the upstream's
    upstream: Upstream  # of this protocol
    unsigned: UnsignedRequest
    out: OutgoingRequest  # the same with its credential
    options: object
    secrets: Secrets  # to be redacted in the reply
    owner: bool  # the client may see the upstream account's headers

    @property
    def issuer(self) -> Issuer:
        """The upstream of the reply. Of bytes that pass unchanged, the first answer is read."""
        provider, model = self.provider, self.route.model
        window, quirks = provider.catalogue.context_window(model), provider.requests.quirks
        return Issuer(provider.issuer, model, window, self.options, quirks)

    @property
    def streams(self) -> bool:
        """Whether the upstream streams, even if the client did not request it."""
        return self.upstream.always_streams

    def select_headers(self, headers: Headers) -> Headers | None:
        """Return which headers of the upstream's answer belong to its reply; None: they are not the client's."""
        return None

    def find_stored_id(self, started: Started | None) -> str | None:
        """Return the id under which the upstream keeps its reply for the client; None if it does not."""
        return None

    def find_error_body(self, body: bytes) -> bytes | None:
        """Return the upstream's error as a client's SDK reads it; None: it is rendered from the failure."""
        return None

    def count_losses(self, *, explain: bool, whole: bool) -> list[Header]:
        """Return the headers that count the losses; for a stream, those of its request."""
        return []


class Unchanged(Outbound, frozen=True, kw_only=True):
    """The client's own bytes, without what the upstream is known to reject."""

    ledger: Ledger | None = None  # what was left out or changed; None: nothing

    def count_losses(self, *, explain: bool, whole: bool) -> list[Header]:
        return [] if self.ledger is None else _format_losses(self, self.ledger, len(self.ledger), explain)

    def find_error_body(self, body: bytes) -> bytes | None:
        """Return the error without the list of one in which Google writes it at times."""
        client = self.protocol.client
        try:
            if body.lstrip()[:1] == b"[":
                [only] = msgspec.json.decode(body, type=list[msgspec.Raw])
                body = bytes(only)
            msgspec.json.decode(body, type=client.error_shape if client is not None else ErrorShape)
        except (ValueError, RecursionError):
            return None
        return body


@final
class Passthrough(Unchanged, frozen=True, kw_only=True):
    """The client's own bytes, for an upstream of the same protocol."""

    why: Why

    def select_headers(self, headers: Headers) -> Headers | None:
        return headers

    def find_stored_id(self, started: Started | None) -> str | None:
        return None if started is None else started.id


@final
class Relayed(Unchanged, frozen=True, kw_only=True):
    """The client's own bytes, for one of the other paths of OpenAI's API: nothing of the reply is decoded."""

    why: Why = RELAYED


@final
class Translated(Outbound, frozen=True, kw_only=True):
    """A request that was built for its upstream."""

    why: Why
    request: Request
    target: Target  # that it was built for
    tools: ToolMap
    ledger: Ledger
    losses: int  # number of request losses; they precede reply losses in the ledger
    offered: OfferedTools  # that the gateway runs
    may_pause: bool = False  # the upstream may pause, and the client's protocol has no pause
    cache: PlannedCache | None = None  # None: the request is not remembered

    @property
    def has_rounds(self) -> bool:
        """Whether the reply may go on in another turn, after tools have run or after a pause."""
        return self.offered.tools is not None or self.may_pause

    @property
    def streams(self) -> bool:
        return self.upstream.always_streams or self.request.stream

    @property
    def issuer(self) -> Issuer:
        provider, model, request = self.provider, self.route.model, self.request
        window, quirks = provider.catalogue.context_window(model), provider.requests.quirks
        return Issuer(provider.issuer, model, window, self.options, quirks, request.sampling.n or 1, request.tools)

    def count_losses(self, *, explain: bool, whole: bool) -> list[Header]:
        count = len(self.ledger) if whole else self.losses
        return _format_losses(self, self.ledger, count, explain)


def _format_losses(prepared: Outbound, ledger: Ledger, count: int, explain: bool) -> list[Header]:
    if not explain:
        return [format_loss_count(count)]
    return redact_known_in_fields(format_loss_headers(tuple(ledger)[:count], count), prepared.secrets)


Prepared = Passthrough | Translated | Relayed
