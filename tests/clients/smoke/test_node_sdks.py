"""The vendors' own JavaScript SDKs use tools through the gateway."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.driven import NOTE, check_notes
from clients.node_sdks import drive
from clients.rig import UPSTREAMS, Rig


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_openai_node_uses_a_tool(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], node: Path
) -> None:
    here = rig(upstream, NOTE)
    ran = drive(here, node, client("node-sdks"), "openai_node.mjs")
    check_notes(here, ran, "chat", "chat-stream", "responses", "responses-stream")


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_anthropic_node_uses_a_tool(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], node: Path
) -> None:
    here = rig(upstream, NOTE)
    ran = drive(here, node, client("node-sdks"), "anthropic_node.mjs")
    check_notes(here, ran, "messages", "messages-stream", "runner", "runner-stream")
