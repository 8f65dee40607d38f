"""Gemini CLI and the vendors' SDKs use tools on a Gemini upstream."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients.driven import NOTE, check_notes
from clients.proof import Proves
from clients.rig import Rig
from clients.smoke.test_gemini_cli import EDIT, READ, WRITE, check_file_tools
from clients.smoke.test_sdks import SDKS, run_sdk

Rigging = Callable[..., Rig]
Client = Callable[[str], Path]
# Streamed, google-genai sends every chunk back as a turn of its own, which the strict fake refuses from anyone.
WAYS = {name: sdk.ways if name != "google-genai" else ("gemini",) for name, sdk in SDKS.items()}


def test_gemini_cli_writes_reads_and_edits_a_file(rig: Rigging, client: Client, node: Path, proves: Proves) -> None:
    check_file_tools(rig("gemini", WRITE, READ, EDIT), node, client("gemini-cli"))
    proves("Gemini CLI", "gemini", "tools", "streamed", "edits")


@pytest.mark.parametrize("name", SDKS)
def test_an_sdk_uses_a_tool(name: str, rig: Rigging, client: Client, node: Path, proves: Proves) -> None:
    here, ways = rig("gemini", NOTE), WAYS[name]
    check_notes(here, run_sdk(here, SDKS[name], ways, client, node), *ways)
    proves(name, "gemini", "tools", *{"streamed" if way.endswith("-stream") else "whole" for way in ways})
