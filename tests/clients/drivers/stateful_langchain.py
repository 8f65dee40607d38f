"""LangChain where the server keeps the conversation: each request names the response before it."""

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from note import KEY, PROMPT, QUESTION, URL, drive, model, write_note


def talk(way: str, mode: str) -> str:
    @tool("write_note")
    def write(title: str, text: str) -> str:
        """Writes a note."""
        return write_note(mode, title, text)

    reasoning = {"effort": "low", "summary": "auto"}
    speaking = ChatOpenAI(
        model=model(mode), base_url=URL + "/v1", api_key=KEY, use_previous_response_id=True, reasoning=reasoning
    ).bind_tools([write])
    messages: list[BaseMessage] = [SystemMessage("Be brief.")]
    for prompt in (PROMPT, QUESTION):
        messages.append(HumanMessage(prompt))
        while True:
            reply = _stream_reply(speaking, messages) if way == "response-stream" else speaking.invoke(messages)
            messages.append(reply)
            if not reply.tool_calls:
                break
            messages += [ToolMessage(write.invoke(call["args"]), tool_call_id=call["id"]) for call in reply.tool_calls]
    return str(messages[-1].text)


def _stream_reply(speaking: Runnable, messages: list[BaseMessage]) -> AIMessage:
    whole = None
    for chunk in speaking.stream(messages):
        whole = chunk if whole is None else whole + chunk
    return whole


drive(["response", "response-stream"], talk)
