"""A compatible server that takes all that OpenAI takes, and the ways in which real ones differ from it, one by one."""

import random
from collections.abc import Callable

import msgspec

from fakes.upstream import Answer, End, ReceivedRequest

Body = dict[str, object]
Piece = dict[str, object]
REFUSED = 400


def reply(value: object, status: int = 200) -> Answer:
    return Answer(msgspec.json.encode(value), status=status, content_type="application/json")


def refusal(message: str, status: int = REFUSED) -> Answer:
    return reply({"error": {"message": message, "type": "invalid_request_error"}}, status)


class Server:
    """Its `objections` refuse a request; other oddities are switched on by name."""

    def __init__(self, *odd: str, objection: Callable[[Body], str | None] = lambda body: None) -> None:
        self._odd = frozenset(odd)
        self._objection = objection

    def __call__(self, request: ReceivedRequest) -> Answer:
        body = request.json
        if request.path == "/v1/responses":
            return reply({"object": "response", "output": [{"type": "message"}]}) if "responses" in self._odd else GONE
        if request.path == "/v1/messages":
            return reply({"type": "message", "content": [{"type": "text"}]}) if "messages" in self._odd else GONE
        objection = self._objection(body)
        if objection is not None:
            return refusal(objection, 500 if "says 500" in self._odd else REFUSED)
        return self._stream(body) if body.get("stream") else reply(self._whole(body))

    def _whole(self, body: Body) -> Piece:
        words, finish = self._reply(body)
        text = " ".join(words)
        message: Piece = {"role": "assistant", "content": text}
        if self._calls(body):
            message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        finish = self._finish(body) or finish
        usage = {"prompt_tokens": 9, "completion_tokens": len(words), "total_tokens": 99}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": usage}

    def _reply(self, body: Body) -> tuple[list[str], str]:
        """The words of an answer as far as its cap goes, and why they end."""
        cap = body.get("max_tokens") or body.get("max_completion_tokens")
        assert isinstance(cap, int)
        words = self._text(body).split()
        if len(words) <= cap or ("ignores cap" in self._odd and "max_tokens" not in body):
            return words, "stop"
        return words[:cap], "length"

    def _stream(self, body: Body) -> Answer:
        words, finish = self._reply(body)
        pieces: list[Piece] = [{"role": "assistant", "content": ""}]
        pieces += [{"content": f"{word} "} for word in words]
        if self._calls(body):
            parts = ['{"word":"dragoman"}'] if "arguments at once" in self._odd else ['{"word":', '"dragoman"}']
            ids: Piece = {} if "no call ids" in self._odd else {"id": "call_1"}
            pieces = [{"tool_calls": [{"index": 0, **ids, "function": {"name": "look_up", "arguments": ""}}]}]
            pieces += [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in parts]
        chunks = [self._chunk([{"index": 0, "delta": piece, "finish_reason": None}]) for piece in pieces]
        cut = "cuts streams" in self._odd and "fifty" in str(body["messages"])
        if not cut:
            finish = self._finish(body) or finish
            chunks.append(self._chunk([{"index": 0, "delta": {}, "finish_reason": finish}]))
        if "stream_options" in body and "no usage" not in self._odd:
            chunks.append(self._chunk([]) | {"usage": {"prompt_tokens": 9, "completion_tokens": 2}})
        frames = [b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks]
        frames += [] if "no DONE" in self._odd else [b"data: [DONE]\n\n"]
        return Answer(b"".join(frames), end=End.CUT if cut else End.CLEAN)

    def _chunk(self, choices: list[Piece]) -> Piece:
        ids: Piece = {} if "no ids" in self._odd else {"id": "chatcmpl-1"}
        return {**ids, "object": "chat.completion.chunk", "choices": choices}

    def _calls(self, body: Body) -> bool:
        choice = body.get("tool_choice", "auto")
        return choice != "auto" and not (choice == "required" and "ignores required" in self._odd)

    def _finish(self, body: Body) -> str | None:
        return ("stop" if "lies" in self._odd else "tool_calls") if self._calls(body) else None

    def _text(self, body: Body) -> str:
        if "fifty" in str(body["messages"]):
            return "number " * 50
        if body.get("tool_choice") and ("rambles" in self._odd or "thinks" in self._odd):
            return ("<think>" if "thinks" in self._odd else "") + " word" * 99
        return '{"ok":true}' if "response_format" in body else "ok"


class MoodyServer(Server):
    """The same server with a small model behind it: what it says, and whether it calls a tool, is a matter of luck.

    Of the answers to prompts for a long text, at least every third is long; it never calls a tool twice in a row
    unless the server makes it.
    """

    def __init__(self, seed: int, *odd: str, objection: Callable[[Body], str | None] = lambda body: None) -> None:
        super().__init__(*odd, objection=objection)
        self._luck = random.Random(seed)
        self._long_requests = 0
        self._in_the_mood = False  # to call a tool

    def _text(self, body: Body) -> str:
        if "response_format" in body and "ignores format" not in self._odd:
            return '{"ok":' + self._luck.choice(["true", "false"]) + "}"
        if any(sign in str(body["messages"]) for sign in ("fifty", "commas", "story")):
            self._long_requests += 1
            long = self._long_requests % 3 == 0 or self._luck.random() < 0.4
            return "number " * self._luck.randint(30, 90) if long else self._luck.choice(["", "One.", "ok"])
        return self._luck.choice(["", "ok", "Sure! What do you want me to say? " * 9, "<think>hm</think>ok", "{"])

    def __call__(self, request: ReceivedRequest) -> Answer:
        self._in_the_mood = not self._in_the_mood and self._luck.random() < 0.3
        return super().__call__(request)

    def _calls(self, body: Body) -> bool:
        choice = body.get("tool_choice", "auto")
        if choice == "auto" or (choice == "required" and "ignores required" in self._odd):
            return "tools" in body and self._in_the_mood
        return True


GONE = refusal("not found", 404)
CALL: Piece = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"word":"dragoman"}'},
}
