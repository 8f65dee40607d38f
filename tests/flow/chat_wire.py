"""What a Chat upstream sends: a reply as a stream and as a document, and its errors."""

import msgspec

from fakes.upstream import Answer


def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice: dict[str, object] = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % msgspec.json.encode({"id": "chatcmpl-1", "model": "vendor-m", "choices": [choice]})


BEGUN = chunk({"role": "assistant", "content": ""})  # no token yet
HALF = BEGUN + chunk({"content": "Half"}) + chunk({"content": " a"})
STOPPED = HALF + chunk({"content": " loaf"}) + chunk({}, "stop")
STREAM = STOPPED + b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"The engine is overloaded.","type":"server_error","code":503}}\n\n'
WHOLE = msgspec.json.encode(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "vendor-m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Half a loaf"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }
)


def document(body: bytes, status: int = 200) -> Answer:
    return Answer(body, status=status, content_type="application/json")


def refusal(status: int, message: str = "no", **headers: str) -> Answer:
    body = msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error"}})
    fields = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(body, status=status, content_type="application/json", headers=fields)
