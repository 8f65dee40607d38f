"""The OpenAI Agents SDK where the server keeps the conversation: by response, conversation, session or socket."""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.result import RunResultBase
from note import KEY, PROMPT, QUESTION, URL, Json, drive, model, write_note
from openai import AsyncOpenAI
from openai.types.shared import Reasoning

set_tracing_disabled(True)


async def talk(way: str, mode: str) -> str:
    keeps, _, streaming = way.partition("-")

    @function_tool(name_override="write_note")
    def write(title: str, text: str) -> str:
        """Writes a note."""
        return write_note(mode, title, text)

    client = AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, timeout=60)
    speaking = OpenAIResponsesWSModel if keeps == "socket" else OpenAIResponsesModel
    agent = Agent(
        name="writer",
        instructions="Be brief.",
        model=speaking(model=model(mode), openai_client=client),
        model_settings=ModelSettings(
            reasoning=Reasoning(effort="low", summary="auto"), store=False if keeps == "socket" else None
        ),
        tools=[write],
    )
    state: Json = {"auto_previous_response_id": True}
    if keeps == "conversation":
        state = {"conversation_id": (await client.conversations.create()).id}
    elif keeps == "session":
        state = {"session": OpenAIConversationsSession(openai_client=client)}
    first = await _run(agent, PROMPT, streaming, state)
    if keeps in ("response", "socket"):
        state = {"previous_response_id": first.last_response_id}
    return str((await _run(agent, QUESTION, streaming, state)).final_output)


async def _run(agent: Agent, prompt: str, streaming: str, state: Json) -> RunResultBase:
    if not streaming:
        return await Runner.run(agent, prompt, **state)
    result = Runner.run_streamed(agent, prompt, **state)
    async for _event in result.stream_events():
        pass
    return result


KEPT = ("response", "conversation", "session", "socket")
WAYS = [f"{name}{suffix}" for name in KEPT for suffix in ("", "-stream")]
drive(WAYS, lambda way, mode: asyncio.run(talk(way, mode)))
