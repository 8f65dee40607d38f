"""A stream that was heard comes in; what it leaves out or tells wrongly goes out. None of it needs a quirk."""

from dragoman.providers.compatible.probing.asking import Heard
from dragoman.providers.compatible.probing.traits import Trait


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
    at_once = len(pieces) < 2
    lies = heard.finish != "tool_calls"
    return [
        _there("ids of calls", any(call.id for call in heard.calls), "we make them"),
        Trait("arguments in a stream", "odd", "all at once, at the end")
        if at_once
        else Trait("arguments in a stream", "right", f"in {len(pieces)} pieces"),
        Trait("finish_reason after a call", "lies", f"{heard.finish or 'nothing'}; the call counts")
        if lies
        else Trait("finish_reason after a call", "right"),
    ]


def _there(what: str, told: bool, otherwise: str) -> Trait:
    return Trait(what, "told") if told else Trait(what, "missing", otherwise)
