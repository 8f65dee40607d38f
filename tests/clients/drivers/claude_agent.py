"""The Claude Agent SDK, which brings a Claude Code of its own."""

import asyncio
import json
import os
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query


async def main(prompt: str) -> None:
    options = ClaudeAgentOptions(
        env=dict(os.environ),
        cwd=os.getcwd(),
        allowed_tools=["Bash", "Write"],
        permission_mode="acceptEdits",
        model="claude-opus-5-5",
    )
    async for message in query(prompt=prompt, options=options):
        if isinstance(message, ResultMessage):
            error = [message.subtype] if message.is_error else []
            print(json.dumps({"mode": "agent", "text": message.result or "", "error": error}), flush=True)


asyncio.run(main(sys.argv[1]))
