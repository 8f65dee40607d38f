"""Build a request of a real client for every upstream, and check it with that vendor's SDK."""

from dataclasses import dataclass

import msgspec

from clients.accepting import complaints
from dragoman.config.settings import Effort
from dragoman.translate.hub.failure import Kind, RequestError
from dragoman.translate.hub.loss import Ledger, Loss, LossKind
from dragoman.translate.hub.profile import Target
from dragoman.translate.passes.adapt_tools import adapt_tools
from dragoman.translate.profiles.model_table import find_profile
from dragoman.translate.protocols import PROTOCOLS

UPSTREAMS = tuple(name for name, protocol in PROTOCOLS.items() if protocol.upstream is not None)
ISSUERS = {"responses": "openai", "messages": "anthropic"}  # who seals what a client of the protocol sends back
BUDGETS = msgspec.structs.asdict(Effort())
STATE = ("/thread", "/previous_response_id")  # of a server that is not ours


@dataclass(frozen=True)
class Built:
    body: dict[str, object]
    losses: tuple[Loss, ...]


def build(body: bytes, protocol: str, upstream: str) -> Built:
    """As the gateway does it, with no account at the other end; raises RequestError."""
    ledger = Ledger()
    client, server = PROTOCOLS[protocol].client, PROTOCOLS[upstream].upstream
    assert client is not None
    assert server is not None
    request = client.parse(body, ledger)
    lowered, _ = adapt_tools(request, server.tool_limits, ledger)
    target = Target(request.model, ISSUERS.get(upstream, upstream), find_profile(request.model), BUDGETS)
    built = server.build(lowered, target, ledger)
    return Built(msgspec.json.decode(built, type=dict), tuple(ledger))


def check(body: bytes, protocol: str, upstream: str) -> None:
    """No exception, what is lost is in the ledger and was there, and the vendor's SDK accepts what is built."""
    decoded_body = msgspec.json.decode(body, type=dict)
    try:
        built = build(body, protocol, upstream)
    except RequestError as refused:
        if not _may_be_refused(decoded_body, refused):
            raise
        return
    for loss in built.losses:
        assert loss.why, loss
        assert loss.how is LossKind.INVENTED or _resolves(decoded_body, loss.path), loss
    if protocol == upstream:
        assert built.losses == ()
    else:
        assert complaints(upstream, built.body) == []


def _may_be_refused(decoded_body: dict[str, object], refused: RequestError) -> bool:
    """State that another server keeps, and a request whose only tool the upstream cannot run: nothing else."""
    failure = refused.failure
    if failure.kind is not Kind.BAD_REQUEST or failure.at is None:
        return False
    tools = decoded_body.get("tools")
    return failure.at in STATE or (failure.at == "/tools/0" and isinstance(tools, list) and len(tools) == 1)


def _resolves(value: object, pointer: str) -> bool:
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            return False
    return True
