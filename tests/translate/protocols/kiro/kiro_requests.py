"""Build requests for Kiro from clients' bodies in tests, checked by Kiro's rules."""

from collections.abc import Callable

import msgspec
import pytest

from dragoman.translate.hub.failure import Failure, RequestError
from dragoman.translate.hub.loss import Ledger, LossKind
from dragoman.translate.hub.ports import ToolLimits
from dragoman.translate.hub.profile import Target
from dragoman.translate.hub.request import Request
from dragoman.translate.passes.adapt_tools import ToolMap, adapt_tools
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.protocols.kiro.build import build
from dragoman.translate.protocols.kiro.wire import KiroOptions
from translate.protocols.kiro.kiro_rules import broken_rules
from wire_json import JsonObject

Wire = JsonObject

LIMITS = ToolLimits(custom=False, namespaces=False, name_max=64, letter_first=True)
OPTIONS = KiroOptions(conversation_id="c-1")
MODEL = "claude-sonnet-4.5"


class Built:
    """A body for Kiro that keeps every rule, and what it lost."""

    def __init__(self, body: bytes, ledger: Ledger, tools: ToolMap) -> None:
        self.body = body
        self.ledger = ledger
        self.tools = tools
        self.payload = msgspec.json.decode(body)
        self.state = self.payload["conversationState"]
        self.current = self.state["currentMessage"]["userInputMessage"]
        self.history = [next(iter(entry.values())) for entry in self.state.get("history", [])]
        self.context = self.current.get("userInputMessageContext", {})
        self.specs = {
            tool["toolSpecification"]["name"]: tool["toolSpecification"] for tool in self.context.get("tools", [])
        }

    def list_losses(self, how: LossKind) -> set[str]:
        return {loss.path for loss in self.ledger if loss.how is how}

    @property
    def dropped(self) -> set[str]:
        return self.list_losses(LossKind.DROPPED)

    @property
    def approximated(self) -> set[str]:
        return self.list_losses(LossKind.APPROXIMATED)

    @property
    def invented(self) -> set[str]:
        return self.list_losses(LossKind.INVENTED)


def parse_body(protocol: str, body: Wire, ledger: Ledger) -> Request:
    client = PROTOCOLS[protocol].client
    assert client is not None
    return client.parse(msgspec.json.encode(body), ledger)


def ask(protocol: str, body: Wire, options: KiroOptions = OPTIONS, budgets: dict[str, int] | None = None) -> Built:
    ledger = Ledger()
    return send(parse_body(protocol, body, ledger), options, ledger, budgets)


def send(
    request: Request,
    options: KiroOptions = OPTIONS,
    ledger: Ledger | None = None,
    budgets: dict[str, int] | None = None,
) -> Built:
    ledger = Ledger() if ledger is None else ledger
    request, tools = adapt_tools(request, LIMITS, ledger)
    body = build(request, Target(MODEL, "kiro", budgets=budgets or {}, options=options), ledger)
    assert broken_rules(body) == []
    return Built(body, ledger, tools)


def messages(*turns: Wire, **fields: object) -> Wire:
    return {"model": "claude-test", "max_tokens": 100, "messages": list(turns), **fields}


def chat(*turns: Wire, **fields: object) -> Wire:
    return {"model": "gpt-test", "messages": list(turns), **fields}


def user(*content: object) -> Wire:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(text: str) -> Wire:
    return {"role": "assistant", "content": text}


def make_calls(*ids: str, name: str = "look") -> Wire:
    """An assistant's turn in Messages that only calls."""
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": id, "name": name, "input": {"a": 1}} for id in ids],
    }


def answer(id: str, content: object = "seen", **fields: object) -> Wire:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


def tool(name: str = "look", **fields: object) -> Wire:
    """A tool in Messages."""
    return {"name": name, "description": "Looks.", "input_schema": {"type": "object", "properties": {}}, **fields}


def expect_refusal(call: Callable[[], object]) -> Failure:
    with pytest.raises(RequestError) as raised:
        call()
    return raised.value.failure
