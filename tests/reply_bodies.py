"""Whole replies and Kiro events with a value in every field that we read."""

from pathlib import Path

import msgspec

from wire_json import Json

FIXTURES = Path(__file__).parent / "fixtures"

CITED = {"type": "url_citation", "url": "https://example.com", "title": "t", "start_index": 0, "end_index": 2}
PROBABLE = {"token": "a", "logprob": -1.5, "bytes": [97], "top_logprobs": []}
CHAT_MESSAGE = {
    "role": "assistant",
    "content": "Hello",
    "refusal": "No.",
    "reasoning_content": "hm",
    "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s", "index": 0}],
    "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}],
    "annotations": [{"type": "url_citation", "url_citation": CITED}],
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "f", "arguments": '{"a":1}'},
            "extra_content": {"google": {"thought_signature": "s"}},
        },
        {"id": "call_2", "type": "custom", "custom": {"name": "g", "input": "free"}},
    ],
}
CHAT_USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
GROUNDING = {
    "webSearchQueries": ["q"],
    "groundingChunks": [{"web": {"uri": "https://example.com", "title": "t"}}],
    "groundingSupports": [
        {"segment": {"startIndex": 1, "endIndex": 3, "text": "el"}, "groundingChunkIndices": [0]},
    ],
}
GEMINI_PARTS = [
    {"text": "hm", "thought": True},
    {"text": "Hello", "thoughtSignature": "QQ=="},
    {"functionCall": {"id": "c", "name": "f", "args": {"a": [1]}}, "thoughtSignature": "Qg=="},
    {"executableCode": {"language": "PYTHON", "code": "1"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
    {"toolCall": {"id": "t", "toolType": "GOOGLE_SEARCH_WEB"}, "thoughtSignature": "Qw=="},
    {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
]
WHOLE: dict[str, list[Json]] = {
    "gemini": [
        {
            "candidates": [
                {
                    "index": 0,
                    "content": {"role": "model", "parts": GEMINI_PARTS},
                    "finishReason": "STOP",
                    "finishMessage": "m",
                    "continuationToken": "dA==",
                    "groundingMetadata": GROUNDING,
                    "logprobsResult": {"chosenCandidates": [{"token": "a", "logProbability": -1.0}]},
                }
            ],
            "promptFeedback": {"blockReason": None},
            "usageMetadata": {
                "promptTokenCount": 10,
                "candidatesTokenCount": 5,
                "thoughtsTokenCount": 2,
                "toolUsePromptTokenCount": 1,
                "cachedContentTokenCount": 3,
                "totalTokenCount": 18,
            },
            "modelVersion": "m",
            "responseId": "r",
        },
        {"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "no"}},
        {"error": {"code": 500, "message": "no", "status": "INTERNAL"}},
    ],
    "chat": [
        {
            "id": "c",
            "model": "m",
            "service_tier": "default",
            "choices": [
                {
                    "index": 0,
                    "message": CHAT_MESSAGE,
                    "finish_reason": "stop",
                    "logprobs": {"content": [PROBABLE], "refusal": [PROBABLE]},
                    "stop_reason": "x",
                }
            ],
            "usage": CHAT_USAGE,
        },
        {
            "id": "c",
            "choices": [{"message": {"content": [{"type": "text", "text": "a"}], "function_call": {"name": "f"}}}],
            "error": None,
        },
        {"error": {"message": "no", "type": "server_error", "code": "x", "param": None}},
    ],
    "messages": [
        {
            "type": "message",
            "id": "m",
            "model": "m",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "s"},
                {
                    "type": "text",
                    "text": "Hello",
                    "citations": [
                        {
                            "type": "web_search_result_location",
                            "url": "https://example.com",
                            "title": "t",
                            "cited_text": "a",
                        }
                    ],
                },
                {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}},
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "srv_1",
                    "content": [{"type": "web_search_result", "url": "https://example.com", "title": "t"}],
                },
                {"type": "mcp_tool_use", "id": "mcp_1", "name": "n", "server_name": "s", "input": {"a": 1}},
                {"type": "mcp_tool_result", "tool_use_id": "mcp_1", "content": [{"type": "text", "text": "a"}]},
                {
                    "type": "code_execution_tool_result",
                    "tool_use_id": "x",
                    "content": {"stdout": "a", "return_code": 0},
                },
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1]}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "stop_details": {"type": "refusal", "category": "c", "explanation": "e"},
            "usage": {
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_read_input_tokens": 2,
                "cache_creation_input_tokens": 3,
                "cache_creation": {"ephemeral_1h_input_tokens": 1},
                "iterations": [{"type": "compaction", "input_tokens": 1, "cache_creation": {}}],
                "output_tokens_details": {"thinking_tokens": 1},
                "server_tool_use": {"web_search_requests": 1},
                "service_tier": "standard",
            },
        },
        {"type": "error", "error": {"type": "api_error", "message": "no", "details": {"a": 1}}},
    ],
    "responses": [
        {
            "object": "response",
            "id": "r",
            "model": "m",
            "status": "completed",
            "output": [
                {
                    "type": "reasoning",
                    "id": "rs",
                    "summary": [{"type": "summary_text", "text": "hm"}],
                    "content": [{"type": "reasoning_text", "text": "hm"}],
                    "encrypted_content": "s",
                },
                {
                    "type": "message",
                    "id": "msg",
                    "content": [
                        {"type": "output_text", "text": "Hello", "annotations": [CITED], "logprobs": [PROBABLE]},
                        {"type": "refusal", "refusal": "No."},
                    ],
                },
                {
                    "type": "web_search_call",
                    "id": "ws",
                    "action": {
                        "query": "q",
                        "queries": ["q"],
                        "sources": [{"url": "https://example.com", "title": "t"}],
                    },
                },
                {"type": "code_interpreter_call", "id": "ci", "code": "1", "outputs": [{"type": "logs", "logs": "a"}]},
                {"type": "mcp_call", "id": "mcp", "server_label": "s", "name": "n", "arguments": "{}", "output": "a"},
                {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": '{"a":1}'},
                {"type": "custom_tool_call", "id": "ctc", "call_id": "d", "name": "g", "input": "free"},
            ],
            "usage": {
                "input_tokens": 10,
                "output_tokens": 5,
                "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 1},
                "output_tokens_details": {"reasoning_tokens": 1},
            },
            "tool_usage": {"web_search": {"num_requests": 1}},
            "service_tier": "default",
            "incomplete_details": {"reason": "max_output_tokens"},
            "error": None,
        },
        {"id": "r", "status": "failed", "error": {"code": "server_error", "message": "no"}, "output": []},
    ],
}
for name, bodies in WHOLE.items():
    bodies.append(msgspec.json.decode((FIXTURES / name / "whole.json").read_bytes()))

KIRO: dict[str, Json] = {
    "assistantResponseEvent": {"content": "Hi", "modelId": "m"},
    "toolUseEvent": {"toolUseId": "t", "name": "f", "input": '{"a":1}', "stop": True},
    "reasoningContentEvent": {"text": "hm", "signature": "s", "redactedContent": "r"},
    "messageMetadataEvent": {"conversationId": "c", "utteranceId": "u"},
    "metadataEvent": {
        "tokenUsage": {
            "uncachedInputTokens": 1,
            "cacheReadInputTokens": 1,
            "cacheWriteInputTokens": 1,
            "outputTokens": 1,
        },
        "stopReason": "END_TURN",
    },
    "contextUsageEvent": {"contextUsagePercentage": 2.5},
    "meteringEvent": {"unit": "credit", "usage": 0.5},
    "codeReferenceEvent": {
        "references": [{"url": "u", "repository": "r", "recommendationContentSpan": {"start": 0, "end": 1}}]
    },
    "supplementaryWebLinksEvent": {"supplementaryWebLinks": [{"url": "u", "title": "t", "snippet": "s"}]},
    "citationEvent": {"target": {"range": {"start": 0, "end": 1}}, "citationText": "t", "citationLink": "l"},
    "invalidStateEvent": {"reason": "R", "message": "m"},
}
