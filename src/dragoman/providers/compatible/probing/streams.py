"""A stream that was heard comes in; what it leaves out or tells wrongly goes out. None of it needs a quirk."""

from dragoman.providers.compatible.probing.asking import Heard
from dragoman.providers.compatible.probing.traits import Trait

MANY_PIECES = 16  # of a stream that goes on long enough for another request to come in between
SHORT_ARGUMENTS = 12  # characters that may well come at once


def is_long(heard: Heard) -> bool:
    """Whether a stream ran until its cap, or came in so many pieces that another request met it under way."""
    return heard.finish == "length" or heard.pieces >= MANY_PIECES


def about_stream(heard: Heard) -> list[Trait]:
    return [
        _there("usage in streams", heard.tokens is not None, "it is estimated"),
        _there("ids of chunks", all(chunk.id for chunk in heard.chunks), "we make them"),
        _there("finish_reason in streams", heard.finish is not None, "[DONE] counts as the end" if heard.done else ""),
        _there("[DONE]", heard.done, "the finish_reason counts as the end"),
    ]


def about_calls(heard: Heard) -> list[Trait]:
    """Told of a stream in which a tool was called; nothing is known where none was."""
    if heard.manner != "takes" or not heard.calls:
        return [Trait("a call in a stream", "unclear", heard.said or "no tool was called")]
    pieces = [call for call in heard.calls if call.function is not None and call.function.arguments]
    lies = heard.finish != "tool_calls"
    return [
        _there("ids of calls", any(call.id for call in heard.calls), "we make them"),
        _about_arguments([str(call.function.arguments) for call in pieces if call.function is not None]),
        Trait("finish_reason after a call", "lies", f"{heard.finish or 'nothing'}; the call counts")
        if lies
        else Trait("finish_reason after a call", "right"),
    ]


def _about_arguments(pieces: list[str]) -> Trait:
    what = "arguments in a stream"
    if len(pieces) > 1:
        return Trait(what, "right", "in pieces")
    if len("".join(pieces)) < SHORT_ARGUMENTS:
        return Trait(what, "unclear", "they are too short to come in pieces")
    return Trait(what, "odd", "all at once, at the end")


def _there(what: str, told: bool, otherwise: str) -> Trait:
    return Trait(what, "told") if told else Trait(what, "missing", otherwise)
