"""google-genai in every way that it can hold a conversation with tools."""

from collections.abc import Callable, Iterable

from google import genai
from google.genai import types
from note import KEY, PROMPT, SCHEMA, URL, drive, model, write_note

# It retries only if it is configured to, and never a stream that has begun.
RETRIES = types.HttpRetryOptions(attempts=3, initial_delay=0.1, max_delay=0.3)
client = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=URL, timeout=30_000, retry_options=RETRIES))
TOOL = types.FunctionDeclaration(name="write_note", description="Writes a note.", parameters_json_schema=SCHEMA)
CONFIG = types.GenerateContentConfig(system_instruction="Be brief.", tools=[types.Tool(function_declarations=[TOOL])])
Message = str | list[types.Part]


def whole(mode: str) -> str:
    chat = client.chats.create(model=model(mode), config=CONFIG)
    return _converse(mode, lambda message: [chat.send_message(message)])


def stream(mode: str) -> str:
    chat = client.chats.create(model=model(mode), config=CONFIG)
    return _converse(mode, lambda message: chat.send_message_stream(message))


def _converse(mode: str, send: Callable[[Message], Iterable[types.GenerateContentResponse]]) -> str:
    """Send what the tools return until the model is done."""
    message: Message = PROMPT
    while True:
        chunks = list(send(message))
        calls = [call for chunk in chunks for call in chunk.function_calls or ()]
        ended = [chunk.candidates[0].finish_reason for chunk in chunks if chunk.candidates]
        assert ended[-1] is types.FinishReason.STOP, f"finish_reason={ended[-1]}"
        if not calls:
            return "".join(chunk.text or "" for chunk in chunks)
        message = [_answer(mode, call) for call in calls]


def _answer(mode: str, call: types.FunctionCall) -> types.Part:
    output = write_note(mode, **(call.args or {}))
    return types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response={"output": output}))


WAYS = {"gemini": whole, "gemini-stream": stream}
drive(WAYS, lambda way, mode: WAYS[way](mode))
