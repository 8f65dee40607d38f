"""The OpenAI Agents SDK over both of its protocols, whole and streaming."""

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from note import KEY, PROMPT, URL, drive, model, write_note
from openai import AsyncOpenAI

set_tracing_disabled(True)
MODELS = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}


async def talk(way: str, mode: str) -> str:
    protocol, _, streaming = way.partition("-")

    @function_tool(name_override="write_note")
    def write(title: str, text: str) -> str:
        """Writes a note."""
        return write_note(mode, title, text)

    client = AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, timeout=30)
    speaking = MODELS[protocol](model=model(mode), openai_client=client)
    agent = Agent(name="writer", instructions="Be brief.", model=speaking, tools=[write])
    if not streaming:
        return str((await Runner.run(agent, PROMPT)).final_output)
    result = Runner.run_streamed(agent, PROMPT)
    async for _event in result.stream_events():
        pass
    return str(result.final_output)


WAYS = [f"{name}{suffix}" for name in MODELS for suffix in ("", "-stream")]
drive(WAYS, lambda way, mode: asyncio.run(talk(way, mode)))
