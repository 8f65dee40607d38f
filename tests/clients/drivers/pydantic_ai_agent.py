"""pydantic-ai over each protocol that it supports, whole and streaming."""

import asyncio
from collections.abc import AsyncIterable

from note import KEY, PROMPT, URL, drive, model, write_note
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

MODELS = {
    "chat": lambda name: OpenAIChatModel(name, provider=OpenAIProvider(base_url=URL + "/v1", api_key=KEY)),
    "responses": lambda name: OpenAIResponsesModel(name, provider=OpenAIProvider(base_url=URL + "/v1", api_key=KEY)),
    "messages": lambda name: AnthropicModel(name, provider=AnthropicProvider(base_url=URL, api_key=KEY)),
}


async def talk(way: str, mode: str) -> str:
    protocol, _, streaming = way.partition("-")
    agent = Agent(MODELS[protocol](model(mode)), instructions="Be brief.")

    @agent.tool_plain(name="write_note")
    def write(title: str, text: str) -> str:
        """Writes a note."""
        return write_note(mode, title, text)

    if not streaming:
        return str((await agent.run(PROMPT)).output)
    return str((await agent.run(PROMPT, event_stream_handler=watch)).output)


async def watch(_: object, events: AsyncIterable[object]) -> None:
    """With someone watching, every request is streamed."""
    async for _event in events:
        pass


if __name__ == "__main__":
    WAYS = [f"{name}{suffix}" for name in MODELS for suffix in ("", "-stream")]
    drive(WAYS, lambda way, mode: asyncio.run(talk(way, mode)))
