"""The Vercel AI SDK uses tools through the gateway."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.driven import NOTE, check_notes
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


# An upstream that speaks Responses resolves the references itself: tests/state/test_keepers.py.
@pytest.mark.parametrize("upstream", [name for name in UPSTREAMS if name != "responses"])
def test_the_vercel_ai_sdk_refers_to_stored_items_by_default(
    upstream: str, rig: Callable[..., Rig], client: Callable[[str], Path], node: Path
) -> None:
    here = rig(upstream, NOTE)
    env = {"DRIVEN_STORES": "1"}
    ran = drive(here, node, client("node-sdks"), "vercel_ai.mjs", "responses", "responses-stream", env=env)
    check_notes(here, ran, "responses", "responses-stream")
