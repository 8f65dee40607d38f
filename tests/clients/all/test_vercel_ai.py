"""The Vercel AI SDK uses tools through the gateway."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.driven import NOTE, check_notes, outcomes
from clients.node_sdks import drive
from clients.proof import Proves
from clients.rig import UPSTREAMS, Rig


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_the_vercel_ai_sdk_uses_a_tool(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], node: Path, proves: Proves
) -> None:
    here = rig(upstream, NOTE)
    ran = drive(here, node, client("node-sdks"), "vercel_ai.mjs")
    providers = ("responses", "chat", "messages", "compatible")
    check_notes(here, ran, *(f"{name}{suffix}" for name in providers for suffix in ("", "-stream")))
    proves("Vercel AI SDK", upstream, "tools", "whole", "streamed")


@pytest.mark.parametrize("upstream", [name for name in UPSTREAMS if name != "responses"])
def test_a_reference_to_what_the_gateway_does_not_keep_is_refused_with_advice(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], node: Path
) -> None:
    here = rig(upstream, NOTE)
    env = {"DRIVEN_STORES": "1"}
    found = outcomes(drive(here, node, client("node-sdks"), "vercel_ai.mjs", "responses-stream", env=env))
    assert found["responses-stream"].status == 400
    assert found["responses-stream"].why.endswith("send the item itself")
