"""The grammar of a Responses stream, from the protocol alone: fold the bytes into a response."""

from grammar_sse import Illegal, blocks, read, require
from wire_json import JsonObject

FILLED = [
    "id",
    "object",
    "created_at",
    "status",
    "model",
    "output",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "temperature",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "store",
    "background",
    "service_tier",
    "metadata",
]
NULLABLE = [
    "completed_at",
    "incomplete_details",
    "previous_response_id",
    "instructions",
    "error",
    "reasoning",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
]
TERMINAL = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
HOSTED = {
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
}
STEPS = ("in_progress", "searching", "interpreting", "generating", "completed")  # in this order
REASONS = {"max_output_tokens", "content_filter"}
# What a delta grows, by its event: the field of the done event, and where the finished item repeats it.
GROWING = {
    "response.output_text": ("text", "content", "output_text"),
    "response.refusal": ("refusal", "content", "refusal"),
    "response.reasoning_summary_text": ("text", "summary", "summary_text"),
    "response.reasoning_text": ("text", "content", "reasoning_text"),
    "response.function_call_arguments": ("arguments", None, None),
    "response.custom_tool_call_input": ("input", None, None),
}
PARTS = {"response.content_part": "content", "response.reasoning_summary_part": "summary"}


def fold(body: bytes, done: bool = True) -> JsonObject:
    """A legal stream that ended by itself, as its final response."""
    events = _events(body, done)
    folding = _Folding(events)
    for event in events[2:-1]:
        folding.take(event)
    return folding.end(events[-1])


def fold_broken(body: bytes) -> tuple[str, JsonObject]:
    """Return the text of a failed stream, and the error in its response.failed."""
    events = _events(body, done=True)
    require(events[-1]["type"] == "response.failed", f"the last event is {events[-1]['type']}")
    require(events[-2]["type"] == "error", f"no error event before response.failed: {events[-2]['type']}")
    error = events[-2]["error"]
    require({"type", "code", "message", "param"} <= set(error), f"error {error}")
    response = events[-1]["response"]
    check(response)
    require(response["status"] == "failed", "status")
    require(response["error"]["code"] == error["code"], "two codes")
    require(response["error"]["message"] == error["message"], "two messages")
    received = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    if len(events) > 2:
        folding = _Folding(events)
        for event in events[2:-2]:
            folding.take(event)
        require(response["id"] == folding.id, "the id changes")
    return received, response["error"]


def _events(body: bytes, done: bool) -> list[JsonObject]:
    found = blocks(body)
    if done:
        require(found[-1] == (None, "[DONE]"), f"no [DONE] at the end: {found[-1]}")
        found = found[:-1]
    events = [read(data) for _, data in found]
    for number, ((name, _), event) in enumerate(zip(found, events, strict=True)):
        require(name == event["type"], f"{name} is {event['type']}")
        require(event["sequence_number"] == number, f"sequence_number {event['sequence_number']} at {number}")
    return events


def check(response: JsonObject) -> None:
    for field in FILLED:
        require(response.get(field) is not None, f"{field} is missing or null")
    for field in NULLABLE:
        require(field in response, f"{field} is missing")
    require(response["object"] == "response", "object")
    require(response["id"].startswith("resp_"), f"id {response['id']}")
    require((response["status"] == "incomplete") == (response["incomplete_details"] is not None), "incomplete_details")
    completed = response["completed_at"]
    require((response["status"] == "completed") == (completed is not None), f"completed_at {completed}")
    require(completed is None or completed >= response["created_at"], "completed before it began")
    require((response["status"] == "failed") == (response["error"] is not None), "error")
    if response["incomplete_details"] is not None:
        require(response["incomplete_details"]["reason"] in REASONS, f"{response['incomplete_details']}")
    for place, item in enumerate(response["output"]):
        if item.get("status") == "incomplete":
            require(place == len(response["output"]) - 1, "an incomplete item that is not the last")
            require(response["status"] != "completed", "an incomplete item in a completed response")
    if response["usage"] is not None:
        check_usage(response["usage"])


def check_usage(usage: JsonObject) -> None:
    require(usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], f"total: {usage}")
    read_, written = (usage["input_tokens_details"][key] for key in ("cached_tokens", "cache_write_tokens"))
    require(0 <= read_ + written <= usage["input_tokens"], f"input: {usage}")
    require(0 <= usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"], f"output: {usage}")


class _Item:
    def __init__(self, item: JsonObject) -> None:
        self.item = item
        self.parts: dict[tuple[str, int], str] = {}  # (content or summary, index) -> open | closed
        self.text: dict[tuple[str, int], str] = {}
        self.received: set[tuple[str, int]] = set()  # done events
        self.annotations: list[JsonObject] = []
        self.steps: list[str] = []  # of a hosted tool
        self.done: JsonObject | None = None


class _Folding:
    def __init__(self, events: list[JsonObject]) -> None:
        require([event["type"] for event in events[:2]] == ["response.created", "response.in_progress"], "the start")
        for event in events[:2]:
            check(event["response"])
            require(event["response"]["status"] == "in_progress", "status")
            require(event["response"]["output"] == [], "output before the first item")
        self.id = events[0]["response"]["id"]
        require(events[1]["response"]["id"] == self.id, "the id changes")
        self.items: dict[int, _Item] = {}

    def take(self, event: JsonObject) -> None:
        kind = event["type"]
        if kind == "response.output_item.added":
            return self._check_added(event)
        item = self.items.get(event.get("output_index", -1))
        require(item is not None, f"{kind} of an item that was not added")
        assert item is not None
        require(item.done is None, f"{kind} after its item was done")
        if kind == "response.output_item.done":
            return self._check_done(item, event["item"])
        require(event["item_id"] == item.item["id"], f"{kind}: item_id changes")
        stem, _, verb = kind.rpartition(".")
        if kind == "response.output_text.annotation.added":
            require(event["annotation_index"] == len(item.annotations), "annotation_index")
            item.annotations.append(event["annotation"])
        elif stem in PARTS:
            self._part(item, stem, verb, event)
        elif stem in GROWING:
            self._grow(item, stem, verb, event)
        else:
            require(stem.removeprefix("response.") == item.item["type"] in HOSTED and verb in STEPS, f"event {kind}")
            item.steps.append(verb)
            require(item.steps == [step for step in STEPS if step in item.steps], f"{kind} after {item.steps[:-1]}")
        return None

    def _check_added(self, event: JsonObject) -> None:
        index, item = event["output_index"], event["item"]
        require(index == len(self.items), f"output_index {index} after {len(self.items)} items")
        require(bool(item["id"]), "an item without an id")
        require(all(item["id"] != known.item["id"] for known in self.items.values()), "two items of one id")
        match item["type"]:
            case "message":
                require(item["content"] == [] and item["role"] == "assistant", f"{item}")
                require(item["status"] == "in_progress", f"{item}")
            case "function_call":
                require(item["arguments"] == "" and item["status"] == "in_progress", f"{item}")
                require(bool(item["call_id"]) and bool(item["name"]), f"{item}")
            case "custom_tool_call":
                require(item["input"] == "" and bool(item["call_id"]) and bool(item["name"]), f"{item}")
            case "reasoning":
                require(item["summary"] == [], f"{item}")
            case kind:
                require(kind in HOSTED, f"an item of type {kind}")
        self.items[index] = _Item(item)

    def _part(self, item: _Item, stem: str, verb: str, event: JsonObject) -> None:
        list_name = PARTS[stem]
        place = (list_name, event["summary_index" if list_name == "summary" else "content_index"])
        if verb == "added":
            require(place not in item.parts, f"part {place} added twice")
            require(place[1] == sum(name == list_name for name, _ in item.parts), f"part {place} out of order")
            part = event["part"]
            require(part.get("text", part.get("refusal")) == "", f"a part that begins with text: {part}")
            if part["type"] == "output_text":
                require(part["annotations"] == [] and part["logprobs"] == [], f"{part}")
            item.parts[place] = "open"
            return
        require(item.parts.get(place) == "open" and place in item.received, f"part {place} done before its text")
        item.parts[place] = "closed"
        part = event["part"]
        require(part.get("text", part.get("refusal")) == item.text.get(place, ""), "a part with another text")
        if part["type"] == "output_text":
            require(part["annotations"] == item.annotations, "a part with other annotations")

    def _grow(self, item: _Item, stem: str, verb: str, event: JsonObject) -> None:
        field, list_name, _ = GROWING[stem]
        index = event.get("summary_index" if list_name == "summary" else "content_index", 0) if list_name else 0
        place = (list_name or "", index)
        require(list_name is None or item.parts.get(place) == "open", f"{stem} outside its part")
        require(place not in item.received, f"{stem}.{verb} after it was done")
        if stem == "response.output_text":
            require(isinstance(event["logprobs"], list), "logprobs is no list")
        if verb == "delta":
            item.text[place] = item.text.get(place, "") + event["delta"]
            return
        require(verb == "done" and event[field] == item.text.get(place, ""), f"{stem}.done tells another text")
        item.received.add(place)

    def _check_done(self, item: _Item, finished: JsonObject) -> None:
        require(finished["id"] == item.item["id"] and finished["type"] == item.item["type"], "another item is done")
        require(all(state == "closed" for state in item.parts.values()), f"done with a part open: {finished}")
        match finished["type"]:
            case "message" | "reasoning":
                summary = {
                    (name, number): part.get("text", part.get("refusal"))
                    for name in ("content", "summary")
                    for number, part in enumerate(finished.get(name) or ())
                }
                require(
                    summary == {place: item.text.get(place, "") for place in item.parts}, f"other parts: {finished}"
                )
            case "function_call":
                require(finished["arguments"] == item.text.get(("", 0), ""), "other arguments")
                require(("", 0) in item.received, "no arguments.done")
            case "custom_tool_call":
                require(finished["input"] == item.text.get(("", 0), ""), "another input")
            case "web_search_call":
                ran = finished["status"] == "completed"
                require(("completed" in item.steps) == ran, f"{finished['status']} after {item.steps}")
                require(item.steps[:1] == ["in_progress"] or not item.steps, f"begun with {item.steps}")
        for field in ("call_id", "name"):
            require(finished.get(field) == item.item.get(field), f"{field} changes")
        item.done = finished

    def end(self, event: JsonObject) -> JsonObject:
        require(event["type"] in TERMINAL, f"the last event is {event['type']}")
        response = event["response"]
        check(response)
        require(response["status"] == TERMINAL[event["type"]], f"status {response['status']}")
        require(response["id"] == self.id, "the id changes")
        require(all(item.done is not None for item in self.items.values()), "an item was never done")
        require(response["output"] == [item.done for item in self.items.values()], "the snapshot has other items")
        return plain(response)


def plain(response: JsonObject) -> JsonObject:
    """Without what is minted again for each reply."""
    output = [{key: value for key, value in item.items() if key != "id"} for item in response["output"]]
    return {**{key: value for key, value in response.items() if key not in ("id", "created_at")}, "output": output}


def whole(body: bytes) -> JsonObject:
    response = read(body.decode())
    check(response)
    require(response["status"] in ("completed", "incomplete"), f"status {response['status']}")
    return plain(response)


__all__ = ["Illegal", "check", "fold", "fold_broken", "whole"]
