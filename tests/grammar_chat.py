"""The grammar of a Chat stream, written from the protocol alone: fold the bytes into a reply."""

from grammar_sse import Illegal, blocks, read, require
from wire_json import Json, JsonObject

DELTA_FIELDS = {"role", "content", "refusal", "tool_calls", "reasoning_content", "reasoning_details", "annotations"}
FINISHES = {"stop", "length", "tool_calls", "content_filter"}


def fold(body: bytes, usage_requested: bool = False) -> JsonObject:
    """Return the message of a legal and complete stream; raises Illegal."""
    found = blocks(body)
    require(all(name is None for name, _ in found), "Chat's events have no names")
    require(found[-1][1] == "[DONE]", f"the last data is {found[-1][1][:200]}")
    chunks = [read(data) for _, data in found[:-1]]
    return _Folding(usage_requested).run(chunks)


def fold_broken(body: bytes) -> tuple[str, JsonObject]:
    """A stream that ends in an error: the text before it, and the error."""
    found = blocks(body)
    chunks = [read(data) for _, data in found]
    require(set(chunks[-1]) == {"error"}, f"the last chunk is no error: {chunks[-1]}")
    error = chunks[-1]["error"]
    require(set(error) == {"message", "type", "param", "code"}, f"the error's fields: {error}")
    require(isinstance(error["message"], str) and bool(error["message"]), "an error without a message")
    text = ""
    for chunk in chunks[:-1]:
        for choice in chunk["choices"]:
            require(choice["finish_reason"] is None, "a finish_reason before an error")
            text += choice["delta"].get("content") or ""
    return text, error


class _Folding:
    def __init__(self, usage_requested: bool) -> None:
        self._usage_requested = usage_requested
        self.text: str | None = None
        self.refusal: str | None = None
        self.thoughts = ""
        self.details: list[JsonObject] = []
        self.annotations: list[JsonObject] = []
        self.calls: list[JsonObject] = []
        self.logprobs: dict[str, list[Json]] = {"content": [], "refusal": []}
        self.finish: str | None = None
        self.usage: JsonObject | None = None
        self.tier: str | None = None

    def run(self, chunks: list[JsonObject]) -> JsonObject:
        first = chunks[0]
        self._head(first)
        opening = first["choices"][0]["delta"]
        require(opening.get("role") == "assistant", f"the first delta has no role: {opening}")
        for number, chunk in enumerate(chunks):
            for field in ("id", "object", "created", "model"):
                require(chunk[field] == first[field], f"{field} changes")
            self._take(number, chunk)
        require(self.finish is not None, "no finish_reason")
        require((self.usage is not None) == self._usage_requested, f"usage is {self.usage}")
        return self._reply(first)

    def _head(self, chunk: JsonObject) -> None:
        require(chunk["object"] == "chat.completion.chunk", f"object {chunk['object']}")
        require(isinstance(chunk["id"], str) and bool(chunk["id"]), "no id")
        require(isinstance(chunk["created"], int), "created is no number")
        require(isinstance(chunk["model"], str), "model is no string")

    def _take(self, number: int, chunk: JsonObject) -> None:
        require(self.usage is None, "a chunk after the usage chunk")
        if not chunk["choices"]:
            require(self.finish is not None, "an empty chunk before the end")
            self.usage = chunk.get("usage")
            self.tier = chunk.get("service_tier")
            require(isinstance(self.usage, dict), "an empty chunk without usage")
            return
        require(chunk.get("usage") is None, "usage on a chunk with choices")
        require(("usage" in chunk) == self._usage_requested, "usage:null stands only where usage was requested")
        require(len(chunk["choices"]) == 1, "one choice was requested")
        choice = chunk["choices"][0]
        require(choice["index"] == 0, f"index {choice['index']}")
        require(self.finish is None, "a delta after the finish_reason")
        require(set(choice) == {"index", "delta", "logprobs", "finish_reason"}, f"fields of a choice: {set(choice)}")
        self._delta(number, choice["delta"])
        for kind, tokens in (choice["logprobs"] or {}).items():
            self.logprobs[kind] += tokens or []
        if choice["finish_reason"] is not None:
            require(choice["finish_reason"] in FINISHES, f"finish_reason {choice['finish_reason']}")
            self.finish = choice["finish_reason"]

    def _delta(self, number: int, delta: JsonObject) -> None:
        require(set(delta) <= DELTA_FIELDS, f"fields of a delta: {set(delta)}")
        require(("role" in delta) == (number == 0), "the role stands in the first delta and nowhere else")
        if delta.get("content") is not None:
            self.text = (self.text or "") + delta["content"]
        if delta.get("refusal") is not None:
            self.refusal = (self.refusal or "") + delta["refusal"]
        self.thoughts += delta.get("reasoning_content") or ""
        self.annotations += delta.get("annotations") or []
        for detail in delta.get("reasoning_details") or ():
            require(detail["index"] == len(self.details), "reasoning_details out of order")
            self.details.append(detail)
        for piece in delta.get("tool_calls") or ():
            self._call(piece)

    def _call(self, piece: JsonObject) -> None:
        index = piece["index"]
        if index == len(self.calls):
            kind = piece["type"]
            require(bool(piece["id"]) and bool(piece[kind]["name"]), f"a call opens without id or name: {piece}")
            self.calls.append({key: value for key, value in piece.items() if key != "index"})
            return
        require(index < len(self.calls), f"call {index} before call {len(self.calls)}")
        require(not {"id", "type"} & set(piece), f"id or type repeated: {piece}")
        call = self.calls[index]
        kind, field = ("custom", "input") if call["type"] == "custom" else ("function", "arguments")
        require(set(piece) == {"index", kind} and set(piece[kind]) == {field}, f"a piece of a call: {piece}")
        call[kind][field] += piece[kind][field]

    def _reply(self, first: JsonObject) -> JsonObject:
        require((self.finish == "tool_calls") <= bool(self.calls), "tool_calls without a call")
        require(not (self.finish == "stop" and self.calls), "calls, but finish_reason stop")
        if self.usage is not None:
            check_usage(self.usage)
        message = {"content": self.text or None, "refusal": self.refusal, "calls": self.calls}
        return {
            "model": first["model"],
            **message,
            "thoughts": self.thoughts,
            "details": len(self.details),
            "annotations": self.annotations,
            "logprobs": {kind: tokens for kind, tokens in self.logprobs.items() if tokens},
            "finish": self.finish,
        }


def check_usage(usage: JsonObject) -> None:
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        require(isinstance(usage[field], int) and usage[field] >= 0, f"{field}: {usage[field]}")
    require(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], f"total: {usage}")
    require(usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"], "more cached than read")
    require(
        usage["completion_tokens_details"]["reasoning_tokens"] <= usage["completion_tokens"],
        "more reasoning than output",
    )


def whole(body: bytes) -> JsonObject:
    """A whole reply in the same shape."""
    reply = read(body.decode())
    require(reply["object"] == "chat.completion", "object")
    require(isinstance(reply["created"], int) and bool(reply["id"]), "created or id")
    (choice,) = reply["choices"]
    require(set(choice) == {"index", "message", "logprobs", "finish_reason"}, f"fields of a choice: {set(choice)}")
    message = choice["message"]
    require(message["role"] == "assistant" and {"content", "refusal"} <= set(message), f"message: {set(message)}")
    if "usage" in reply:
        check_usage(reply["usage"])
    require("tool_calls" not in message or bool(message["tool_calls"]), "an empty list of calls")
    return {
        "model": reply["model"],
        "content": message["content"] or None,
        "refusal": message["refusal"],
        "calls": message.get("tool_calls", []),
        "thoughts": message.get("reasoning_content", ""),
        "details": len(message.get("reasoning_details", [])),
        "annotations": message.get("annotations", []),
        "logprobs": {kind: tokens for kind, tokens in (choice["logprobs"] or {}).items() if tokens},
        "finish": choice["finish_reason"],
    }


__all__ = ["Illegal", "check_usage", "fold", "fold_broken", "whole"]
