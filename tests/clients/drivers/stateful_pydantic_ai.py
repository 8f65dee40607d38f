"""pydantic-ai where the server keeps the conversation: each request names the response before it, or a conversation."""

import asyncio

from note import KEY, PROMPT, QUESTION, URL, Json, drive, model, write_note
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai_agent import watch


async def talk(way: str, mode: str) -> str:
    keeps, _, streaming = way.partition("-")
    client = AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, timeout=60)
    settings: Json = {"openai_reasoning_effort": "low", "openai_reasoning_summary": "auto"}
    if keeps == "response":
        settings["openai_previous_response_id"] = "auto"
    else:
        settings["openai_conversation_id"] = (await client.conversations.create()).id
    speaking = OpenAIResponsesModel(model(mode), provider=OpenAIProvider(openai_client=client), settings=settings)
    agent = Agent(speaking, instructions="Be brief.")

    @agent.tool_plain(name="write_note")
    def write(title: str, text: str) -> str:
        """Writes a note."""
        return write_note(mode, title, text)

    handler = watch if streaming else None
    first = await agent.run(PROMPT, event_stream_handler=handler)
    later = await agent.run(QUESTION, event_stream_handler=handler, message_history=first.all_messages())
    return str(later.output)


WAYS = [f"{name}{suffix}" for name in ("response", "conversation") for suffix in ("", "-stream")]
drive(WAYS, lambda way, mode: asyncio.run(talk(way, mode)))
