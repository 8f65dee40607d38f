"""One client's request. Its body is parsed only as far as needed."""

import typing
from collections.abc import Callable
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from dragoman.net.body_threads import run_off_loop
from dragoman.net.http_request import HttpRequest
from dragoman.proxy.reply_bounds import charge_bytes
from dragoman.proxy.request_record import RequestRecord, keep_name
from dragoman.tenancy.keys import ENVIRONMENT_KEY, Access
from dragoman.tenancy.limiter import Lease
from dragoman.tenancy.policies import UNLIMITED, KeyPolicy
from dragoman.translate.framing.fields import NO_MODEL
from dragoman.translate.framing.jsonedit import Put, edit
from dragoman.translate.hub.failure import BadRequest
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.ports import Client, Protocol
from dragoman.translate.hub.request import Request
from dragoman.translate.profiles.token_count import estimate_body_tokens
from dragoman.upstreams.provider import make_uuid
from dragoman.upstreams.routing import PICKER_PREFIX, Route

if TYPE_CHECKING:  # they know calls
    from dragoman.proxy.runtime import Runtime
    from dragoman.state.parked_run import ParkedRun
    from dragoman.state.stored_call import StoredCall

Parse = Callable[[bytes, Ledger], Request]


class Compacts(Enum):
    """How a call asks for a compaction of its context, instead of an answer."""

    BY_PATH = "it was posted to the path of compactions"
    BY_TRIGGER = "the last item of its input is a trigger"


class Caller(typing.Protocol):
    """Who sent a request, and when."""

    @property
    def request_id(self) -> str: ...
    @property
    def key(self) -> str: ...  # the id of its client key
    @property
    def access(self) -> Access: ...  # of its client key
    @property
    def tenant(self) -> str: ...  # whose state it may read and change: that of its client key
    @property
    def received_at(self) -> float: ...  # seconds since the epoch


class Call:
    """A request to answer, as far as the steps of its story have come.

    `read_body` gives it its body with what routing needs of that; the whole is parsed once, and only to be translated.
    `choose_routes` gives it its targets, and the configuration that it is answered with.
    """

    # More than 30 attributes of an object without slots are kept in a dictionary of its own, which takes longer.
    __slots__ = (
        *("__dict__", "__weakref__", "body", "buffered", "caller", "client", "compacts", "continues"),
        *("default_thinking", "explain", "headers", "http", "id", "input_tokens", "is_charged_by_tokens"),
        *("is_from_other_protocol", "is_owner", "lease", "model", "named_model", "parking", "path", "policy"),
        *("protocol", "query", "record", "routes", "runtime", "state", "stream", "stream_type", "strict", "tenant"),
        *("_held", "_parse", "_parsed"),
    )

    runtime: "Runtime"
    routes: tuple[Route, ...]
    policy: KeyPolicy  # what is set for the requests of its key

    def __init__(
        self,
        protocol: Protocol,
        request: HttpRequest,
        caller: Caller,
        record: RequestRecord,  # is written here, and not read
        compacts: Compacts | None = None,
    ) -> None:
        assert protocol.client is not None
        self.protocol = protocol
        self.client: Client = protocol.client
        self.state: StoredCall | None = None  # None: it neither refers to what is kept nor is its reply kept
        self.compacts = compacts
        self.parking: ParkedRun | None = None  # the run that it makes; None: it ends with its client
        self.is_charged_by_tokens = True
        self.continues = False  # another upstream may continue a reply that breaks off
        self.is_from_other_protocol = False  # the body is not in the protocol of the reply
        self._parse = protocol.client.parse
        self._parsed: tuple[Request, Ledger] | None = None
        self.input_tokens = 0  # estimated where the client's stream begins with them, once the body is parsed
        self.body = b""
        self.model, self.stream, self.stream_type = "", False, b""
        self.named_model = ""  # as the client writes it, which may be with the prefix of a picker
        self.http = request
        self.headers = headers = request.headers
        self.path = request.path
        self.query = request.query
        self.buffered = request.buffered
        self._held = 0  # by the request alone, and what it refers to
        self.record = record
        self.caller = caller
        self.id = caller.request_id
        self.tenant = caller.tenant
        self.is_owner = caller.key == ENVIRONMENT_KEY  # the environment's key belongs to the gateway's owner
        self.default_thinking = caller.access.default_thinking
        self.policy = UNLIMITED
        self.lease: Lease | None = None  # None: no limit applies, or it is not admitted yet
        self.explain = headers.get(b"x-dragoman-explain") == b"1"
        self.strict = headers.get(b"x-dragoman-strict") == b"1"  # a translation that loses something is refused

    def take_body(self, body: bytes) -> str:
        """Take the body, and read what routing needs of it. Raises RequestError.

        Return the protocol that the body is in, unless that is the one of the reply.
        """
        self.body = body
        self._held = self.buffered.held
        try:
            head = self.client.read_call(self.path, self.query, body)
        except BadRequest as unnamed:
            if not self.policy.default_model or unnamed.failure.code != NO_MODEL:
                raise
            self.put_default_model()
            head = self.client.read_call(self.path, self.query, self.body)
        self.named_model, self.stream, self.stream_type = head.model, head.stream, head.stream_type
        self.model = head.model.removeprefix(PICKER_PREFIX)
        record = self.record
        record.requested_model, record.stream, record.body = self.model, self.stream, self.body
        if head.cache_key:
            record.record_session(keep_name(head.cache_key))
        return head.body_protocol

    def take_parser(self, parse: Parse) -> None:
        """Parse the body with this: it is not in the protocol of the reply."""
        self._parse, self.is_from_other_protocol = parse, True

    def apply_policy(self, policy: KeyPolicy) -> None:
        """Take what is set for the requests of its key."""
        self.policy = policy
        self.strict = self.strict or policy.is_strict
        self.record.user, self.record.team = policy.user, policy.team

    def put_default_model(self) -> None:
        """Give a JSON body that names no model the key's default model."""
        self.body = body = edit(self.body, [(("model",), Put(msgspec.json.encode(self.policy.default_model)))])
        if self.record.recording is not None:  # a replay has no keys
            self.record.recording.record_body(body)

    @property
    def fallback_model(self) -> str:
        """The client's choice for models that do not exist here: some clients ask for their vendor's by name."""
        named = (self.headers.get(b"x-dragoman-fallback-model") or b"").decode("latin-1")
        return named.removeprefix(PICKER_PREFIX)

    @cached_property
    def uuid(self) -> str:
        """Return an id that is unique, unlike `id`, which a client may choose."""
        return make_uuid()

    async def read(self) -> None:
        """Parse the body, off the event loop where it is large; raises RequestError."""
        if self._parsed is None:
            self._parsed = await run_off_loop(self.size, self._read_body)

    @property
    def size(self) -> int:
        """Return the bytes of the whole request, which tell how long it takes to parse and build."""
        return len(self.body) if self.state is None else self.state.size

    def expect_count(self) -> None:
        """Parse the body later as one that is only counted: what a reply needs may be missing."""
        assert self.client.counting is not None
        self._parse = self.client.counting.parse

    def leaves_state_to(self, stores_replies: bool) -> bool:
        """Return whether an upstream may get the request as it is; `stores_replies`: it keeps what is to be kept."""
        return self.state is None or (not self.state.is_rebuilt and (stores_replies or not self.state.keeps))

    def hold_context(self, size: int) -> None:
        """Count bytes that the request refers to, until it ends; raises RequestError if there is no room for them."""
        charge_bytes(self.buffered, size)
        self._held = self.buffered.held

    def release_reply(self) -> None:
        """Release the buffered bytes of a reply that is not sent to the client."""
        self.buffered.release_to(self._held)

    def request(self) -> Request:
        return self._content()[0]

    def ledger(self) -> Ledger:
        """Return a new ledger that starts with the losses of parsing."""
        return self._content()[1].copy()

    def _content(self) -> tuple[Request, Ledger]:
        if self._parsed is None:
            self._parsed = self._read_body()
        return self._parsed

    def _read_body(self) -> tuple[Request, Ledger]:
        if self.state is None:
            ledger = Ledger()
            request = self._parse(self.body, ledger)
        else:
            ledger = Ledger(self.state.locate)
            request = self.state.parse(ledger)
        if self.stream and self.client.counts_input_first:
            self.input_tokens = estimate_body_tokens(self.body, self.model)
        if (request.model, request.stream) != (self.model, self.stream):  # they stand in the path
            request = msgspec.structs.replace(request, model=self.model, stream=self.stream)
        return request, ledger
