"""Which refusals are about reasoning: the vendor's whole sentence, never one that an error quotes."""

import pytest

from dragoman.translate.hub.failure import Failure, Kind
from dragoman.upstreams.gemini.provider import adjust_signatures
from dragoman.upstreams.provider import adjust_reasoning

ANTHROPIC = [
    "messages.1.content.0: Invalid `signature` in `thinking` block",
    "messages.1.content.0: Invalid `data` in `redacted_thinking` block",
    "messages.1.content.0: `thinking` block is bound to a different conversation",
    "messages.3.content.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified"
    ". These blocks must remain as they were in the original response.",
]
GOOGLE = [
    "Corrupted thought signature.",
    "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, "
    "and missing thought_signature may lead to degraded model performance. Additional data, function call "
    "`default_api:Task` , position 2. Please refer to https://ai.google.dev/gemini-api/docs/thought-signatures for "
    "more details.",
]
FRAMES = ["Could not fetch image '{}'", "Invalid content: {}", "{} was flagged by our safety system", "It said:\n{}"]


@pytest.mark.parametrize("words", [*ANTHROPIC, *GOOGLE])
def test_the_vendors_sentence_repeats_a_request_and_a_quoted_one_does_not(words: str) -> None:
    adjust = adjust_reasoning if words in ANTHROPIC else adjust_signatures
    adjustment = adjust(Failure(Kind.BAD_REQUEST, words))
    assert adjustment is not None
    assert adjustment.of_reasoning
    for frame in FRAMES:
        assert adjust(Failure(Kind.BAD_REQUEST, frame.format(words))) is None
