"""Encode blocks of a reply as parts of a candidate, and the reasoning that rides on them as a signature."""

import msgspec

from dragoman.hub.events import CallBlock, HostedBlock
from dragoman.hub.loss import Ledger
from dragoman.hub.opaque import Thought, seal_thoughts
from dragoman.hub.ports import ReplyContext
from dragoman.protocols.gemini.wire import Wire

_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw])


class StepReasoning:
    """The reasoning of a step, until parts have carried it to the client.

    Clients drop thoughts from their history, and some keep the signature of the first text alone. So the first text
    after some reasoning carries that reasoning, and the step's first call carries all of the step.
    """

    __slots__ = ("_step", "_unsent")

    def __init__(self) -> None:
        self._step: list[Thought] = []
        self._unsent: list[Thought] = []

    def add(self, thought: Thought) -> None:
        if thought.text or thought.opaque is not None:
            self._step.append(thought)
            self._unsent.append(thought)

    def sign_text(self) -> Wire:
        """Return the field for the next text: the reasoning that no text has carried so far."""
        thoughts, self._unsent = self._unsent, []
        return _sign(thoughts)

    def sign_call(self) -> Wire:
        """Return the field for a call: nothing, unless it is the first of its step."""
        thoughts, self._step, self._unsent = self._step, [], []
        return _sign(thoughts)


def shows_thoughts(context: ReplyContext) -> bool:
    """Return whether the client requests thoughts; else they reach it in signatures alone."""
    reasoning = context.request.reasoning
    return reasoning is not None and reasoning.show is not None


def _sign(thoughts: list[Thought]) -> Wire:
    return {"thoughtSignature": seal_thoughts(thoughts)} if thoughts else {}


def encode_call(call: CallBlock, text: str, context: ReplyContext, at: str, ledger: Ledger) -> Wire | None:
    """Return a functionCall; None if its arguments were cut off, so that it cannot be run."""
    arguments: object
    if call.custom:
        arguments = {"input": text}
    elif text.strip():
        try:
            _arguments.decode(text)
        except (ValueError, RecursionError):
            ledger.note_dropped(at, f"the call of {call.name!r} was cut off and its arguments cannot be read")
            return None
        arguments = msgspec.Raw(_to_one_line(text))
    else:
        arguments = {}
    return {"functionCall": {"id": call.id or context.new_id("call_"), "name": call.name, "args": arguments}}


def _to_one_line(json: str) -> bytes:
    return msgspec.json.format(json.encode(), indent=-1) if "\n" in json or "\r" in json else json.encode()


def encode_hosted(hosted: HostedBlock, at: str, ledger: Ledger) -> list[Wire]:
    """Return the parts that show what a vendor's tool did; searches and fetches are shown as metadata instead."""
    if hosted.kind in ("web_search", "web_fetch"):
        return []
    if hosted.kind == "code_execution":
        ledger.note_approximated(at, "only code and output of an execution are sent")
        code = hosted.input.get("code")
        outcome = "OUTCOME_FAILED" if hosted.failed else "OUTCOME_OK"
        return [
            {"executableCode": {"language": "PYTHON", "code": code if isinstance(code, str) else ""}},
            {"codeExecutionResult": {"outcome": outcome, "output": hosted.output or ""}},
        ]
    ledger.note_dropped(at, f"what {hosted.kind!r} did has no equivalent in Gemini")
    return []
