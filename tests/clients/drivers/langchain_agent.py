"""LangChain over each protocol that it supports, whole and streaming."""

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from note import KEY, PROMPT, URL, drive, model, write_note

MODELS = {
    "chat": lambda name: ChatOpenAI(model=name, base_url=URL + "/v1", api_key=KEY),
    "responses": lambda name: ChatOpenAI(
        model=name,
        base_url=URL + "/v1",
        api_key=KEY,
        use_responses_api=True,
        store=False,
        include=["reasoning.encrypted_content"],
    ),
    "messages": lambda name: ChatAnthropic(model_name=name, base_url=URL, api_key=KEY, max_tokens_to_sample=2048),
}


def talk(way: str, mode: str) -> str:
    protocol, _, streaming = way.partition("-")

    @tool("write_note")
    def write(title: str, text: str) -> str:
        """Writes a note."""
        return write_note(mode, title, text)

    speaking = MODELS[protocol](model(mode)).bind_tools([write])
    messages: list[BaseMessage] = [SystemMessage("Be brief."), HumanMessage(PROMPT)]
    while True:
        reply = _stream_reply(speaking, messages) if streaming else speaking.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            return str(reply.text)
        messages += [ToolMessage(write.invoke(call["args"]), tool_call_id=call["id"]) for call in reply.tool_calls]


def _stream_reply(speaking: Runnable, messages: list[BaseMessage]) -> AIMessage:
    whole = None
    for chunk in speaking.stream(messages):
        whole = chunk if whole is None else whole + chunk
    return whole


drive([f"{name}{suffix}" for name in MODELS for suffix in ("", "-stream")], talk)
