"""The Vercel AI SDK uses tools through the gateway."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.driven import NOTE, check_notes
from clients.node_sdks import drive
from clients.proof import Proves
from clients.rig import ALL_UPSTREAMS, Rig


@pytest.mark.parametrize("upstream", ALL_UPSTREAMS)
def test_the_vercel_ai_sdk_uses_a_tool(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], node: Path, proves: Proves
) -> None:
    here = rig(upstream, NOTE)
    ran = drive(here, node, client("node-sdks"), "vercel_ai.mjs")
    providers = ("responses", "chat", "messages", "compatible")
    check_notes(here, ran, *(f"{name}{suffix}" for name in providers for suffix in ("", "-stream")))
    proves("Vercel AI SDK", upstream, "tools", "whole", "streamed")
