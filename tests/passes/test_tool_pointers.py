"""A pointer into a tool leads to where the client wrote it."""

from dragoman.hub.loss import Ledger
from dragoman.hub.ports import ToolLimits
from dragoman.hub.request import Function
from dragoman.passes.adapt_tools import adapt_tools
from dragoman.protocols import PROTOCOLS

BODY = b"""{"model": "m", "messages": [{"role": "user", "content": "Go on."}], "tools": [
{"type": "function", "function": {"name": "f", "description": "plain"}},
{"type": "custom", "custom": {"name": "p", "description": "freeform"}}]}"""


def test_a_wrapped_tool_is_still_found_where_it_was_freeform() -> None:
    client = PROTOCOLS["chat"].client
    assert client is not None
    request = client.parse(BODY, Ledger())
    lowered, _ = adapt_tools(request, ToolLimits(custom=False, namespaces=False, name_max=64), Ledger())
    pointers = [tool.pointer("description") for tool in lowered.tools if isinstance(tool, Function)]
    assert pointers == ["/tools/0/function/description", "/tools/1/custom/description"]
