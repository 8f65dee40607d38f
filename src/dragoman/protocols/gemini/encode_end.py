"""Encode what every reply has around its parts: ids, the finish reason, counts and log probabilities."""

from collections.abc import Sequence

import msgspec

from dragoman.hub.events import Ended, Stop
from dragoman.hub.loss import Ledger
from dragoman.hub.ports import ReplyContext
from dragoman.hub.usage import Usage
from dragoman.protocols.gemini.wire import FINISH_REASONS, STOPS, Wire

WITHHELD = "The provider's content filter has withheld this reply."  # a client retries a reply without text


class _Candidate(msgspec.Struct):
    token: str = ""
    logprob: float = 0.0


class _Token(_Candidate):
    top_logprobs: list[_Candidate] = []


_tokens = msgspec.json.Decoder(list[_Token])


def build_head(id: str, context: ReplyContext) -> Wire:
    return {"modelVersion": context.model, "responseId": id or context.new_id("")}


def is_filtered(ended: Ended, refused: bool) -> bool:
    return refused or ended.stop is Stop.FILTERED


def build_ending(ended: Ended, refused: bool) -> Wire:
    """Return the fields of a candidate that say why it ended."""
    if not is_filtered(ended, refused):
        return {"finishReason": FINISH_REASONS[ended.stop]}
    category = (ended.category or "").upper()
    reason = category if STOPS.get(category) is Stop.FILTERED else FINISH_REASONS[Stop.FILTERED]
    message: Wire = {"finishMessage": ended.explanation} if ended.explanation else {}
    return {"finishReason": reason, **message}


def note_end(ended: Ended, usage: Usage | None, ledger: Ledger) -> None:
    """Note what Gemini cannot say of an end."""
    if ended.category and STOPS.get(ended.category.upper()) is not Stop.FILTERED:
        ledger.note_dropped("/stop_details/category", f"Gemini has no finishReason {ended.category!r}")
    if ended.sequence is not None:
        ledger.note_dropped("/stop_sequence", "Gemini does not report which stop sequence was hit")
    if ended.stop is Stop.PAUSE:
        ledger.note_approximated("/stop_reason", "Gemini has no pause; sent as a natural end")
    elif ended.stop is Stop.CONTEXT_FULL:
        ledger.note_approximated("/stop_reason", "Gemini does not distinguish a full context from the token limit")
    if usage is not None and usage.cache_write:
        ledger.note_dropped("/usage/cache_write_tokens", "Gemini does not count tokens that are written to a cache")
    if usage is not None and usage.service_tier not in (None, "default", "auto"):
        ledger.note_dropped("/service_tier", "Gemini's replies do not name a tier")


def build_usage(usage: Usage | None) -> Wire:
    """Return the counts: those of thoughts and of rounds after the first stand apart."""
    usage = usage or Usage()
    prompt = max(0, usage.input - usage.later_input)
    counts = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": max(0, usage.output - usage.reasoning),
        "totalTokenCount": usage.input + usage.output,
    }
    if usage.reasoning:
        counts["thoughtsTokenCount"] = min(usage.reasoning, usage.output)
    if usage.later_input:
        counts["toolUsePromptTokenCount"] = usage.input - prompt
    if usage.cache_read:
        counts["cachedContentTokenCount"] = min(usage.cache_read, prompt)  # a part of the prompt
    return dict(counts)


def encode_logprobs(arrays: Sequence[msgspec.Raw], ledger: Ledger) -> Wire:
    """Return the field for log probabilities; nothing where the upstream's cannot be read."""
    try:
        tokens = [token for array in arrays for token in _tokens.decode(array)]
    except (ValueError, RecursionError):
        ledger.note_dropped("/logprobs", "the upstream's log probabilities cannot be read")
        return {}
    if not tokens:
        return {}
    tops = [{"candidates": [_rename(top) for top in token.top_logprobs]} for token in tokens if token.top_logprobs]
    result: Wire = {"chosenCandidates": [_rename(token) for token in tokens]}
    return {"logprobsResult": {"topCandidates": tops, **result} if tops else result}


def _rename(candidate: _Candidate) -> Wire:
    return {"token": candidate.token, "logProbability": candidate.logprob}
