"""Kiro's replies, as frames over real sockets, read by the official SDKs of all four protocols."""

from collections.abc import Iterator

import anthropic
import msgspec
import openai
import pytest
from google import genai

from e2e.account_rig import KIRO_MODEL as MODEL
from e2e.account_rig import KiroRig, request_every_way, run_kiro
from e2e.cases import Case, request_for
from fakes.eventstream import event, exception
from fakes.kiro import make_framed, refusal, tail, tool, words
from fakes.upstream import Answer, End
from narrowing import expect
from raw_http import post
from scripting.replies import ScriptedReply, Stop, Tokens
from sdk_replies import ENVELOPE, STOPS, Broke, Halted, SdkReply
from sdk_replies_gemini import STREAMS, WHOLE
from wire_json import Json

# Bytes in each packet. Any cut of any frame is proved where frames are read; here, that nothing between depends on it.
CUTS = {"chat": 0, "responses": 11, "messages": 1, "gemini": 11}
TOOLED = Case(ScriptedReply(()), tools=True)
REASONING = Case(ScriptedReply(()), reasons=True)

clients = pytest.mark.parametrize("client", CUTS)

RATE_LIMIT_ERRORS: dict[str, type[openai.APIStatusError | anthropic.APIStatusError | genai.errors.APIError]] = {
    "chat": openai.RateLimitError,
    "responses": openai.RateLimitError,
    "messages": anthropic.RateLimitError,
    "gemini": genai.errors.ClientError,
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KiroRig]:
    with run_kiro(tmp_path_factory.mktemp("kiro")) as shared:
        shared.gateway.settle()
        yield shared


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KiroRig]:
    settings = "[server]\nfirst_token_timeout_s = 1\nidle_timeout_s = 60\n"
    with run_kiro(tmp_path_factory.mktemp("hasty"), settings=settings) as shared:
        shared.gateway.settle()
        yield shared


def has_read(text: str, stop: str, reply: SdkReply | Broke | Halted) -> bool:
    """Return whether a client has read this text and this end; the Chat helper raises at a cap, with both."""
    return isinstance(reply, SdkReply | Halted) and (reply.text, reply.stop) == (text, stop)


@clients
def test_text_survives_any_cut_of_its_frames(rig: KiroRig, client: str) -> None:
    rig.play(make_framed(words("é日"), words("😀 ha"), words("ha"), words("ha"), tail(), cut=CUTS[client]))
    for reply in request_every_way(rig, client, request_for(client, MODEL)):
        assert has_read("é日😀 hahaha", STOPS[client][Stop.NATURAL], reply)


@clients
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_exception_before_the_first_word_is_a_real_status_and_is_retried(
    rig: KiroRig, client: str, stream: bool
) -> None:
    """Behaviour 4."""
    rig.play(make_framed(exception("ThrottlingException", {"message": "slow"})))
    listen = STREAMS[client][0] if stream else WHOLE[client]
    error = RATE_LIMIT_ERRORS[client]
    reply = None
    try:
        reply = listen(rig.sdk, request_for(client, MODEL))
    except error as raised:
        reply = Broke("", raised)
    assert isinstance(reply, Broke)
    assert isinstance(reply.error, error)
    status = reply.error.code if isinstance(reply.error, genai.errors.APIError) else reply.error.status_code
    assert status == 429
    assert len(rig.fake.chats) == 3


@clients
def test_a_retry_after_an_exception_is_not_noticed(rig: KiroRig, client: str) -> None:
    late = make_framed(exception("ThrottlingException", {"message": "slow"}))
    for listen in (WHOLE[client], *STREAMS[client]):
        rig.play(late, make_framed(words("Hello"), tail()))
        assert has_read("Hello", STOPS[client][Stop.NATURAL], listen(rig.sdk, request_for(client, MODEL)))
        assert len(rig.fake.chats) == 2


def test_a_whole_reply_has_the_same_first_token_timeout(hasty: KiroRig) -> None:
    hasty.play(make_framed(end=End.HANG), make_framed(words("Hello"), tail()))
    assert has_read("Hello", "stop", WHOLE["chat"](hasty.sdk, request_for("chat", MODEL)))
    assert len(hasty.fake.chats) == 2


def test_a_whole_reply_may_be_generated_slowly(hasty: KiroRig) -> None:
    hasty.play(make_framed(words("Hel"), words("lo"), tail(), cut=200, pause_s=0.3))  # 1.2 s in all
    assert has_read("Hello", "end_turn", WHOLE["messages"](hasty.sdk, request_for("messages", MODEL)))
    assert len(hasty.fake.chats) == 1


FAULTS = {
    "an exception": make_framed(
        words("Hel"), exception("InternalServerException", {"message": "It broke."}), end=End.HANG
    ),
    "a corrupt length": make_framed(words("Hel"), b"\x7f" + words("lo")[1:14], end=End.HANG),
}


@clients
@pytest.mark.parametrize("fault", FAULTS)
def test_a_whole_reply_does_not_wait_for_the_end_of_a_failed_stream(rig: KiroRig, client: str, fault: str) -> None:
    """It would wait for 300 seconds, and the SDK would not."""
    rig.play(FAULTS[fault], make_framed(words("Hello"), tail()))
    assert has_read("Hello", STOPS[client][Stop.NATURAL], WHOLE[client](rig.sdk, request_for(client, MODEL)))
    assert len(rig.fake.chats) == 2


@clients
def test_an_exception_after_words_is_an_error_event_and_never_a_clean_end(rig: KiroRig, client: str) -> None:
    """Behaviour 5."""
    rig.play(
        make_framed(words("Hel"), exception("InternalServerException", {"message": "It broke."}), pause_s=0.01, cut=200)
    )
    for listen in STREAMS[client]:
        reply = listen(rig.sdk, request_for(client, MODEL))
        assert isinstance(reply, Broke), reply
        assert reply.text == "Hel"
        assert "It broke." in str(reply.error)
    assert len(rig.fake.chats) == len(STREAMS[client])


LATE = {  # exception in a stream -> the error type for a Messages client, the type and code for Responses
    "throttlingException": ("rate_limit_error", b'"rate_limit_exceeded"'),
    "serviceQuotaExceededException": ("billing_error", b'"insufficient_quota"'),
    "serviceUnavailableException": ("overloaded_error", b'"server_error"'),  # a code that Codex retries
    "validationException": ("invalid_request_error", b'"invalid_prompt"'),
    "accessDeniedException": ("permission_error", b'"server_error"'),
    "resourceNotFoundException": ("not_found_error", b'"server_error"'),
    "internalServerException": ("api_error", b'"server_error"'),
    "error": ("api_error", b'"server_error"'),
}


@pytest.mark.parametrize("name", LATE)
def test_a_modelled_exception_after_words_keeps_its_meaning(rig: KiroRig, name: str) -> None:
    """Streams write the first letter small."""
    rig.play(make_framed(words("Hel"), exception(name, {"message": "slow"})))
    body = msgspec.json.encode(
        {"model": MODEL, "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    )
    messages_type, responses_code = LATE[name]
    error = b'"error":{"type":"%b"' % messages_type.encode()
    assert error in post(rig.gateway.port, "/v1/messages", body).body
    body = msgspec.json.encode({"model": MODEL, "stream": True, "input": "Hi"})
    assert b'"code":' + responses_code in post(rig.gateway.port, "/v1/responses", body).body


@clients
def test_fragments_of_a_call_become_one_call(rig: KiroRig, client: str) -> None:
    """Behaviour 8: whatever stop reason comes with it."""
    rig.play(
        make_framed(
            tool("tooluse_1", "weather"),
            tool("tooluse_1", input='{"ci'),
            tool("tooluse_1", input='ty":"Zürich"}'),
            tool("tooluse_1", "weather", stop=True),
            tail("END_TURN"),
            cut=CUTS[client],
        )
    )
    for reply in request_every_way(rig, client, request_for(client, MODEL, TOOLED)):
        assert isinstance(reply, SdkReply), reply
        assert reply.calls == (("tooluse_1", "weather", {"city": "Zürich"}),)
        assert reply.stop == STOPS[client][Stop.TOOL]


@clients
@pytest.mark.parametrize("first_complete", ["a", "b"])
def test_interleaved_calls_come_out_in_order_and_apart(rig: KiroRig, client: str, first_complete: str) -> None:
    """Behaviour 10: the Messages SDK refuses blocks that overlap. The call that began first comes first."""
    begun = tool("a", "weather", input='{"city":') + tool("b", "clock", input='{"city":"B')
    rest = {"a": tool("a", input='"A"}') + tool("a", stop=True), "b": tool("b", input='"}', stop=True)}
    earlier, later = (rest["a"], rest["b"]) if first_complete == "a" else (rest["b"], rest["a"])
    rig.play(make_framed(begun, earlier, later, tail("TOOL_USE")))
    for reply in request_every_way(rig, client, request_for(client, MODEL, TOOLED)):
        assert isinstance(reply, SdkReply), reply
        assert reply.calls == (("a", "weather", {"city": "A"}), ("b", "clock", {"city": "B"}))


@clients
@pytest.mark.parametrize("provider", ["kiro", "plain"])
def test_a_cut_call_is_never_executable(rig: KiroRig, client: str, provider: str) -> None:
    """Behaviour 11, with and without a request for the rest, which is cut as well here."""
    rig.play(make_framed(words("Writing."), tool("t", "weather", input='{"city":"x')))
    model = MODEL.replace("kiro/", f"{provider}/", 1)
    for reply in request_every_way(rig, client, request_for(client, model, TOOLED)):
        assert has_read("Writing.", STOPS[client][Stop.CAP], reply)
        assert isinstance(reply, Halted) or expect(SdkReply, reply).calls == ()


@clients
def test_the_missing_arguments_of_a_truncated_call_are_requested_and_joined(rig: KiroRig, client: str) -> None:
    cut, rest = make_framed(tool("t", "weather", input='{"city":"Zü')), make_framed(words('rich"}'), tail())
    for listen in (WHOLE[client], *STREAMS[client]):
        rig.play(cut, rest)
        reply = listen(rig.sdk, request_for(client, MODEL, TOOLED))
        assert isinstance(reply, SdkReply), reply
        assert reply.calls == (("t", "weather", {"city": "Zürich"}),)
        assert reply.stop == STOPS[client][Stop.TOOL]


@clients
def test_native_reasoning_is_separate_and_its_signature_enveloped(rig: KiroRig, client: str) -> None:
    """Behaviour 13."""
    rig.play(
        make_framed(
            event("reasoningContentEvent", {"text": "a"}),
            event("reasoningContentEvent", {"text": "b"}),
            event("reasoningContentEvent", {"signature": "S"}),
            words("Then."),
            tail(),
            cut=CUTS[client],
        )
    )
    for reply in request_every_way(rig, client, request_for(client, MODEL, REASONING)):
        assert isinstance(reply, SdkReply), reply
        assert (reply.text, reply.thinking, reply.seals) == ("Then.", "ab", (ENVELOPE,))
        assert reply.order == (() if client == "chat" else ("thinking", "text"))


@clients
def test_thinking_in_tags_is_thinking_only_at_the_start(rig: KiroRig, client: str) -> None:
    """Behaviour 14."""
    rig.play(
        make_framed(
            words("<thin"), words("king>x</think"), words("ing>\n\nHi"), words(" `<thinking>` is a tag."), tail()
        )
    )
    for reply in request_every_way(rig, client, request_for(client, MODEL, REASONING)):
        assert isinstance(reply, SdkReply), reply
        assert (reply.thinking, reply.text) == ("x", "Hi `<thinking>` is a tag.")


@clients
def test_a_call_written_in_brackets_is_a_call(rig: KiroRig, client: str) -> None:
    """Behaviour 15."""
    rig.play(make_framed(words("ok [Called clo"), words('ck with args: {"city":"}]"}'), words("]"), tail()))
    reply = WHOLE[client](rig.sdk, request_for(client, MODEL, TOOLED))
    assert reply.text == "ok "
    assert [(name, arguments) for _, name, arguments in reply.calls] == [("clock", {"city": "}]"})]
    assert reply.stop == STOPS[client][Stop.TOOL]


@clients
def test_a_call_written_as_tags_is_a_call_with_arguments_as_the_schema_types_them(rig: KiroRig, client: str) -> None:
    call = '<function_calls>\n<invoke name="weather">\n<parameter name="city">5</parameter>\n<parameter name="days">3'
    pieces = [call[:9], call[9:60], call[60:], "</parameter>\n</inv", "oke>\n</function_calls>"]
    rig.play(make_framed(words("ok "), *map(words, pieces), tail()))
    for listen in (WHOLE[client], STREAMS[client][-1]):
        reply = listen(rig.sdk, request_for(client, MODEL, TOOLED))
        assert isinstance(reply, SdkReply), reply
        assert reply.text == "ok "
        assert [(name, arguments) for _, name, arguments in reply.calls] == [("weather", {"city": "5", "days": 3})]
        assert reply.stop == STOPS[client][Stop.TOOL]


@clients
@pytest.mark.parametrize(
    "text", ['```\n[Called clock with args: {"city":"x"}]\n```', '[Called unknown with args: {"city":"x"}]']
)
def test_brackets_in_code_or_for_unknown_tools_are_words(rig: KiroRig, client: str, text: str) -> None:
    rig.play(make_framed(words(text), tail()))
    reply = WHOLE[client](rig.sdk, request_for(client, MODEL, TOOLED))
    assert (reply.text, reply.calls) == (text, ())


@clients
def test_reported_usage_is_marked_as_reported(rig: KiroRig, client: str) -> None:
    """Behaviour 23."""
    counted = {"uncachedInputTokens": 10, "cacheReadInputTokens": 2, "cacheWriteInputTokens": 1, "outputTokens": 5}
    rig.play(make_framed(words("Hi"), tail("END_TURN", 2.0, **counted)))
    for reply in request_every_way(rig, client, request_for(client, MODEL)):
        assert isinstance(reply, SdkReply), reply
        written = 0 if client == "gemini" else 1  # Gemini's usage does not have this count
        assert reply.tokens == Tokens(13, 5, cached=2, written=written)


def test_credits_are_summed_and_sent_with_the_usage_of_chat(rig: KiroRig) -> None:
    meter = event("meteringEvent", {"unit": "credit", "unitPlural": "credits", "usage": 0.25})
    rig.play(make_framed(words("Hi"), meter, meter))
    question = request_for("chat", MODEL)
    whole = rig.sdk.openai.chat.completions.create(**question)
    *_, last = rig.sdk.openai.chat.completions.create(**question, stream=True, stream_options={"include_usage": True})
    for usage in (whole.usage, last.usage):
        assert usage is not None
        assert usage.model_dump()["credits_used"] == 0.5


@clients
def test_usage_that_is_only_a_share_of_the_window_is_worked_out(rig: KiroRig, client: str) -> None:
    rig.play(make_framed(words("Hi"), tail(percentage=10.0)))
    for reply in request_every_way(rig, client, request_for(client, MODEL)):
        assert isinstance(reply, SdkReply), reply
        assert reply.tokens is not None
        assert reply.tokens.input + reply.tokens.output == 20_000
        assert 0 < reply.tokens.output < 10


@clients
def test_the_input_is_the_share_of_the_window_without_a_reported_output(rig: KiroRig, client: str) -> None:
    rig.play(make_framed(words("Hi"), tail("END_TURN", 10.0, outputTokens=500)))
    for reply in request_every_way(rig, client, request_for(client, MODEL)):
        assert expect(SdkReply, reply).tokens == Tokens(19_500, 500)


@clients
def test_text_without_its_tail_counts_as_cut(rig: KiroRig, client: str) -> None:
    rig.play(make_framed(words("It was a")))
    for reply in request_every_way(rig, client, request_for(client, MODEL)):
        assert has_read("It was a", STOPS[client][Stop.CAP], reply)


@clients
def test_an_end_within_a_frame_is_an_error(rig: KiroRig, client: str) -> None:
    whole = make_framed(words("It was a"), words("dark and stormy night"), tail())
    rig.play(Answer(whole.body[:200], content_type=whole.content_type, pause_s=0.01, cut=150))
    for listen in STREAMS[client]:
        reply = listen(rig.sdk, request_for(client, MODEL))
        assert isinstance(reply, Broke), reply
        assert reply.text == "It was a"


def test_reasoning_that_kiro_will_not_take_back_is_left_out_once(rig: KiroRig) -> None:
    """A signature is bound to its account, model and prefix: if it is refused, the request is repeated without it."""
    signed = make_framed(
        event("reasoningContentEvent", {"text": "Hm."}),
        event("reasoningContentEvent", {"signature": "S"}),
        words("First."),
        tail(),
    )
    rig.play(signed, make_framed(words("Second."), tail()))
    ask: Json = request_for("messages", MODEL, REASONING)
    first = rig.sdk.anthropic.messages.create(**ask)
    ask["messages"] += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "Go on."}]
    rig.fake.script("/generateAssistantResponse", refusal(400, "Invalid.", "THINKING_SIGNATURE_INVALID"))
    second = rig.sdk.anthropic.messages.create(**ask)
    assert expect(anthropic.types.TextBlock, second.content[0]).text == "Second."
    tried, again = (chat.body for chat in rig.fake.chats[1:])
    assert b'"signature":"S"' in tried
    assert b"reasoningContent" not in again
    assert b"First." in again
    rig.play(make_framed(words("Third."), tail()))
    rig.sdk.anthropic.messages.create(**ask)
    [later] = (chat.body for chat in rig.fake.chats)
    assert b"reasoningContent" not in later
