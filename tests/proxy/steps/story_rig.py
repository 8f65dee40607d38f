"""A gateway in memory for the steps of a story: its upstream answers at once, and a collector takes the reply."""

import asyncio
from collections.abc import Sequence

from dragoman.config.settings import ModelRoute, ResponsesSettings, ServerSettings
from dragoman.net.client import DialOptions, IncomingResponse, OutgoingRequest
from dragoman.net.headers import Header
from dragoman.proxy.call import Call, Compacts
from dragoman.proxy.gateway import Gateway
from dragoman.proxy.memories import make_memories
from dragoman.proxy.outcome import Outcome
from dragoman.proxy.request_record import RequestRecord
from dragoman.proxy.serve import Services
from dragoman.proxy.steps.parked_runs import ParkedRuns
from dragoman.proxy.steps.restore_state import StateSource
from dragoman.translate.protocols import PROTOCOLS
from proxy.capture.test_recording_provider import Pieces
from proxy.in_memory import CHAT, PATHS, Sender, make_provider, make_request, make_world

REPLY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"Hello"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
MODELS = (ModelRoute("m", ("up/m",)), ModelRoute("both", ("up/m", "other/m")))


class StoryRig:
    """The services of a gateway, and what its upstream and its observers got."""

    def __init__(
        self, state: StateSource | None = None, *, max_requests: int = 10, on_disconnect: str = "cancel"
    ) -> None:
        self.sent: list[OutgoingRequest] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.outcomes: list[Outcome] = []
        world = make_world(
            make_provider(send=self._send),
            make_provider("other", send=self._send),
            server=ServerSettings(max_requests=max_requests),
            models=MODELS,
        )
        self.gateway = Gateway(world, make_memories(None), [self.outcomes.append])
        self.settings = ResponsesSettings(on_disconnect="park" if on_disconnect == "park" else "cancel")
        self.parked = ParkedRuns(lambda: self.settings)
        self.services = Services(self.gateway, self.parked, state, state)

    async def _send(self, out: OutgoingRequest, dial: DialOptions, *, head_timeout_s: float) -> IncomingResponse:
        self.sent.append(out)
        await self.may_answer.wait()
        return Pieces(REPLY)


def new_call(
    protocol: str = "chat",
    body: bytes = CHAT,
    headers: Sequence[Header] = (),
    *,
    compacts: Compacts | None = None,
    tenant: str = "t",
) -> Call:
    """Return a call whose body has come and is not read yet."""
    request = make_request(PATHS[protocol], headers)
    request.set_body(body)
    record = RequestRecord("log_1", "of the log", request.headers)
    return Call(PROTOCOLS[protocol], request, Sender(tenant=tenant), record, compacts)
