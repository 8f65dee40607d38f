"""Several answers to one request, between Chat and Gemini in both directions, over real sockets."""

import msgspec
import openai
from google.genai import types

from fakes.service import json_answer
from fakes.upstream import Answer
from gateway import KEY
from rig import Rig
from sdk_replies_gemini import google_client
from wire_json import JsonObject

GENERATE, STREAM = "/v1beta/models/chat/m:generateContent", "/v1beta/models/chat/m:streamGenerateContent"
BODY = b'{"contents":[{"parts":[{"text":"hi"}]}],"generationConfig":{"candidateCount":2}}'
TWO_CHUNKS: list[JsonObject] = [
    {"candidates": [{"content": {"parts": [{"text": "B"}]}, "index": 1}], "responseId": "r"},
    {"candidates": [{"content": {"parts": [{"text": "A"}]}}], "responseId": "r"},
    {
        "candidates": [
            {"content": {"parts": [{"text": "a"}]}, "index": 0, "finishReason": "STOP"},
            {"content": {"parts": [{"functionCall": {"name": "f"}}]}, "index": 1, "finishReason": "STOP"},
        ],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4, "totalTokenCount": 7},
        "responseId": "r",
    },
]


def choice(index: int, delta: JsonObject, finish: str | None = None) -> JsonObject:
    return {"id": "c", "model": "m", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


TWO_CHOICES = [
    choice(1, {"role": "assistant", "content": "B"}),
    choice(0, {"role": "assistant", "content": "A"}),
    choice(1, {"content": "b"}),
    choice(0, {}, "stop"),
    choice(1, {}, "length"),
]
USED: JsonObject = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def events(*chunks: JsonObject, end: bytes = b"") -> Answer:
    return Answer(b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks) + end)


def test_a_chat_client_gets_every_candidate_of_a_whole_reply(rig: Rig) -> None:
    candidates = [
        {"content": {"parts": [{"text": "A"}]}, "finishReason": "STOP"},
        {"content": {"parts": [{"text": "B"}, {"functionCall": {"name": "f"}}]}, "index": 1, "finishReason": "STOP"},
    ]
    body = {"candidates": candidates, "usageMetadata": TWO_CHUNKS[2]["usageMetadata"], "responseId": "r"}
    rig.play("gemini", json_answer(body))
    reply = rig.sdk.openai.chat.completions.create(model="gemini/m", messages=[{"role": "user", "content": "x"}], n=2)
    assert rig.calls("gemini")[0].json["generationConfig"] == {"candidateCount": 2}
    first, second = reply.choices
    assert (first.index, first.message.content, first.finish_reason) == (0, "A", "stop")
    assert (second.index, second.message.content, second.finish_reason) == (1, "B", "tool_calls")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 4


def test_a_chat_client_gets_every_candidate_of_a_stream(rig: Rig) -> None:
    rig.play("gemini", events(*TWO_CHUNKS))
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "x"}]
    with rig.sdk.openai.chat.completions.stream(model="gemini/m", messages=messages, n=2) as stream:
        order = [one.index for event in stream if event.type == "chunk" for one in event.chunk.choices]
        first, second = stream.get_final_completion().choices
    assert order[:2] == [0, 1]  # the SDK's accumulator wants them in order
    assert (first.message.content, first.finish_reason) == ("Aa", "stop")
    assert (second.message.content, second.finish_reason) == ("B", "tool_calls")


def test_a_gemini_client_gets_every_choice_of_a_whole_reply(rig: Rig) -> None:
    choices = [
        {"index": 0, "message": {"content": "A"}, "finish_reason": "stop"},
        {"index": 1, "message": {"content": "B"}, "finish_reason": "length"},
    ]
    body = {"id": "c", "model": "m", "choices": choices, "usage": USED}
    rig.play("chat", json_answer(body))
    reply = rig.send("POST", GENERATE, BODY).json
    assert rig.calls("chat")[0].json["n"] == 2
    assert [(one["index"], one["content"]["parts"], one["finishReason"]) for one in reply["candidates"]] == [
        (0, [{"text": "A"}], "STOP"),
        (1, [{"text": "B"}], "MAX_TOKENS"),
    ]
    assert reply["usageMetadata"]["totalTokenCount"] == 7


def test_a_gemini_client_gets_chunks_by_index(rig: Rig) -> None:
    rig.play("chat", events(*TWO_CHOICES, {"choices": [], "usage": USED}, end=b"data: [DONE]\n\n"))
    config = types.GenerateContentConfig(candidate_count=2)
    texts, finishes, counts = {0: "", 1: ""}, {}, []
    for chunk in google_client(rig.gateway.url, KEY).models.generate_content_stream(
        model="chat/m", contents="x", config=config
    ):
        assert chunk.candidates
        (candidate,) = chunk.candidates
        assert candidate.content is not None
        assert candidate.content.parts
        index = candidate.index or 0
        texts[index] += candidate.content.parts[0].text or ""
        if candidate.finish_reason is not None:
            finishes[index] = candidate.finish_reason.value
        counts.append(chunk.usage_metadata)
    assert (texts, finishes) == ({0: "A", 1: "Bb"}, {0: "STOP", 1: "MAX_TOKENS"})
    assert counts[-1] is not None
    assert counts[-1].total_token_count == 7


def test_a_json_array_has_all_chunks_in_one_list(rig: Rig) -> None:
    rig.play("chat", events(*TWO_CHOICES, end=b"data: [DONE]\n\n"))
    chunks = rig.send("POST", STREAM, BODY).json
    assert {chunk["candidates"][0]["index"] for chunk in chunks} == {0, 1}
    assert "usageMetadata" in chunks[-1]


def test_an_answer_that_breaks_off_fails_the_reply(rig: Rig) -> None:
    rig.play("chat", events(*TWO_CHOICES[:-1]))
    body = rig.send("POST", STREAM + "?alt=sse", BODY).body
    assert b'"finishReason"' not in body
    assert b'data: {"error"' in body


def test_fewer_answers_than_requested_are_no_failure(rig: Rig) -> None:
    rig.play("chat", events(*TWO_CHOICES[1:2], TWO_CHOICES[3], end=b"data: [DONE]\n\n"))
    body = rig.send("POST", STREAM + "?alt=sse", BODY).body
    assert body.count(b'"finishReason":"STOP"') == 1
    assert b"error" not in body
