"""A request to one of the other OpenAI paths: what is read of it, and what a target is sent."""

from functools import partial

from dragoman.net.body_threads import run_off_loop
from dragoman.net.client import Upload
from dragoman.net.headers import JSON, Header
from dragoman.net.http_request import HttpRequest
from dragoman.proxy.authorization import authorize
from dragoman.proxy.call import Call, Caller
from dragoman.proxy.capture.memory_bounds import MAX_BYTES
from dragoman.proxy.form_upload import FormUpload
from dragoman.proxy.key_policy import limit_output
from dragoman.proxy.prepared import Relayed
from dragoman.proxy.request_headers import IDENTITY, client_headers, client_query
from dragoman.proxy.request_record import RequestRecord
from dragoman.translate.framing.fields import read_call_head
from dragoman.translate.framing.jsonscan import replace_model
from dragoman.translate.framing.multipart import is_form
from dragoman.translate.hub.failure import Failure, Kind, RequestError
from dragoman.translate.protocols.relayed_paths import PROTOCOL, UPSTREAM, RelayedPath, find_protocol
from dragoman.upstreams.provider import Provider, UnsignedRequest
from dragoman.upstreams.routing import PICKER_PREFIX, Route


class RelayedCall(Call):
    """A client's request to one of the paths, which is never parsed; a context that closes its form."""

    def __init__(self, path: RelayedPath, request: HttpRequest, caller: Caller, record: RequestRecord) -> None:
        super().__init__(find_protocol(path.name), request, caller, record)
        self.relayed_path = path
        self.is_charged_by_tokens = path.unit == "tokens"
        self.names_model = True
        self.form: FormUpload | None = None
        self.added_model: str | None = None  # to a form that names none
        named = request.headers.get(b"content-type") or b""
        self.is_form = is_form(named)  # which is read while it is sent on
        self.content_type: Header = (b"content-type", named) if self.is_form else JSON

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if self.form is None:
            return
        recording = self.record.recording
        # A replay has no keys, and so no default model.
        whole = None if recording is None else self.form.read_all(MAX_BYTES, self.added_model)
        if recording is not None and whole is not None:
            recording.record_body(whole)
        self.form.close()

    def take_json(self, body: bytes) -> None:
        """Take a JSON body; raises RequestError."""
        default = self.policy.default_model
        head = read_call_head(body, needs_model=not default and not self.relayed_path.default_model)
        self.body = body
        if default and not head.model:
            self.put_default_model()
            head = read_call_head(self.body, needs_model=True)
        self._set_model(head.model, head.stream)

    async def begin_form(self) -> None:
        """Read a form as far as its model; raises RequestError, or as `HttpRequest.body` does."""
        path = self.relayed_path
        if not path.form:
            raise RequestError(Failure(Kind.BAD_REQUEST, f"/v1/{path.name} takes JSON, not a form."))
        if self.headers.get(b"content-encoding"):
            raise RequestError(Failure(Kind.BAD_REQUEST, "A form cannot be compressed: leave out content-encoding."))
        self.form = FormUpload(self.http, self.content_type[1])
        default = self.policy.default_model
        named = await self.form.read_model(needs_model=not default and not path.default_model)
        if default and not named:
            self.added_model = named = default
        self._set_model(named, stream=False)

    def _set_model(self, named: str, stream: bool) -> None:
        self.names_model = bool(named)
        self.named_model, self.stream = named or self.relayed_path.default_model, stream
        self.model = self.named_model.removeprefix(PICKER_PREFIX)
        self.record.requested_model, self.record.stream = self.model, stream

    def release_reply(self) -> None:
        """Release nothing: no bytes of a relayed reply are counted."""

    async def rename(self, model: str) -> tuple[bytes, Upload | None]:
        """Return the body with the upstream's name of the model; a form is sent on while it arrives."""
        is_same = model == self.named_model and self.added_model is None
        renamed = None if is_same or not self.names_model else model
        if self.form is not None:
            return b"", await self.form.prepare(renamed)
        if renamed is None:
            return self.body, None
        return await run_off_loop(len(self.body), partial(replace_model, self.body, renamed)), None


async def prepare_relayed(call: RelayedCall, route: Route, provider: Provider) -> Relayed:
    """Make the request for one target; raises RequestError."""
    endpoint, path, query = provider.endpoint, f"/{call.relayed_path.name}", client_query(call.query)
    url = endpoint.url + path if endpoint.find_address is None else (await endpoint.find_address(path)).url
    own = (call.content_type, IDENTITY, *endpoint.headers)
    others = client_headers(call.headers, call.is_owner, provider, UPSTREAM)
    body, upload = await call.rename(route.model)
    if upload is None:
        body = await limit_output(body, call, provider)
    unsigned = UnsignedRequest(PROTOCOL.name, "POST", f"{url}?{query}" if query else url, own, others, body, upload)
    credentials = await authorize(provider, unsigned)
    return Relayed(
        route=route,
        provider=provider,
        protocol=call.protocol,
        upstream=UPSTREAM,
        unsigned=unsigned,
        out=unsigned.add_credentials(credentials),
        options=None,
        secrets=provider.auth.secret_forms.find(credentials, provider.auth.secrets),
        owner=call.is_owner,
    )
