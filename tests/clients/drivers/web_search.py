"""pydantic-ai with its web search capability over each protocol, whole and streaming; then a second turn."""

import asyncio
import json

from note import KEY, URL, drive, model
from pydantic_ai import Agent, AgentRunResult
from pydantic_ai.capabilities import WebSearch
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai_agent import watch

SEARCHES = OpenAIModelProfile(openai_chat_supports_web_search=True)
MODELS = {
    "chat": lambda name: OpenAIChatModel(name, provider=openai(), profile=SEARCHES),
    "responses": lambda name: OpenAIResponsesModel(name, provider=openai()),
    "messages": lambda name: AnthropicModel(name, provider=AnthropicProvider(base_url=URL, api_key=KEY)),
}


def openai() -> OpenAIProvider:
    return OpenAIProvider(base_url=URL + "/v1", api_key=KEY)


async def talk(way: str, mode: str) -> str:
    protocol, _, streaming = way.partition("-")
    agent = Agent(MODELS[protocol](model(mode)), capabilities=[WebSearch()])
    watching = watch if streaming else None
    first = await agent.run("What do pandas eat?", event_stream_handler=watching)
    second = await agent.run("Are you sure?", message_history=first.all_messages(), event_stream_handler=watching)
    found = {"text": str(first.output), "calls": _searches(first), "again": str(second.output)}
    return json.dumps(found)


def _searches(result: AgentRunResult[str]) -> list[object]:
    replies = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
    return [part.args for reply in replies for part, _ in reply.native_tool_calls]


if __name__ == "__main__":
    WAYS = [f"{name}{suffix}" for name in MODELS for suffix in ("", "-stream")]
    drive(WAYS, lambda way, mode: asyncio.run(talk(way, mode)))
