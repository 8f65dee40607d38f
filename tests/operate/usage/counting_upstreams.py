"""Upstreams of every protocol, whose replies and counts are computed from the number in the request."""

import re
from collections import Counter
from dataclasses import replace
from random import Random

from msgspec import Struct

from fakes.eventstream import event
from fakes.kiro import FakeKiro, make_framed, refusal, words
from fakes.upstream import Answer, FakeUpstream, ReceivedRequest
from scripting import write_error, write_reply
from scripting.replies import ScriptedReply, Text, Tokens

NUMBER = re.compile(rb"n=(\d+)=")
TEXT = "Forty-two, as ever."
LAST_PIECE = b'"ver."'  # of the text, as it is streamed
UNREQUESTED = re.compile(rb'data: [^\n]*"choices":\[\][^\n]*\n\n')  # the usage of a Chat stream
MODELS = {"chat": "gpt-5", "responses": "gpt-5-mini", "messages": "claude-sonnet-4-5", "kiro": "claude-sonnet-4.5"}

REFUSED, LIMITED, STUMBLES, CUT = 3, 7, 11, 13  # remainders of the number divided by 20


class Counts(Struct, frozen=True):
    """The usage that a reply reports; `fresh` is the input that was not cached."""

    fresh: int
    cached: int
    written: int
    output: int
    reasoning: int
    credits: float

    @property
    def input(self) -> int:
        return self.fresh + self.cached + self.written

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.input, self.output, self.cached, self.written, self.reasoning)


def counts_of(number: int) -> Counts:
    random = Random(number)
    output = random.randrange(1, 5000)
    return Counts(
        fresh=random.randrange(1, 200_000),
        cached=random.choice((0, random.randrange(100_000))),
        written=random.choice((0, random.randrange(50_000))),
        output=output,
        reasoning=random.choice((0, random.randrange(output))),
        credits=random.randrange(1, 10**6) / 10**4,
    )


def number_of(body: bytes) -> int:
    found = NUMBER.search(body)
    assert found is not None, body
    return int(found[1])


class CountingUpstream(FakeUpstream):
    """Chat, Responses and Messages at one address."""

    def __init__(self) -> None:
        super().__init__()
        self.choose = self._choose
        self._seen: Counter[int] = Counter()

    def _choose(self, sent_request: ReceivedRequest) -> Answer:
        self.requests.clear()  # saves memory in a test of ten thousand requests
        number = number_of(sent_request.body)
        self._seen[number] += 1
        protocol = sent_request.path.rpartition("/")[2].replace("completions", "chat")
        if number % 20 == REFUSED:
            return write_error(400, "No.")
        if number % 20 == LIMITED or (number % 20 == STUMBLES and self._seen[number] == 1):
            return write_error(429, "Slowly.", retry_after="0")
        request = sent_request.json
        reply = ScriptedReply((Text(TEXT),), tokens=counts_of(number).tokens)
        answer = write_reply(protocol, reply, stream=bool(request.get("stream")))
        if not request.get("stream"):
            return replace(answer, chunked=False)
        if protocol == "chat" and "stream_options" not in request:
            answer = replace(answer, body=UNREQUESTED.sub(b"", answer.body))
        if number % 20 == CUT:
            end = answer.body.rindex(b"\n\n", 0, answer.body.index(LAST_PIECE)) + 2
            answer = replace(answer, body=answer.body[:end])
        return answer


class CountingKiro(FakeKiro):
    def _chat(self, sent_request: ReceivedRequest) -> Answer:
        self.requests.clear()
        number = number_of(sent_request.body)
        if number % 20 == REFUSED:
            return refusal(400, "Improperly formed request.")
        counts = counts_of(number)
        usage = {
            "uncachedInputTokens": counts.fresh,
            "cacheReadInputTokens": counts.cached,
            "cacheWriteInputTokens": counts.written,
            "outputTokens": counts.output,
        }
        return make_framed(
            words(TEXT),
            event("metadataEvent", {"stopReason": "END_TURN", "tokenUsage": usage}),
            event("meteringEvent", {"unit": "credit", "unitPlural": "credits", "usage": counts.credits}),
        )
