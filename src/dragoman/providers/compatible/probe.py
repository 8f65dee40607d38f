"""The probe of a compatible server: it finds out which protocols and quirks the server has."""

from typing import Literal, get_args

from msgspec import Struct

from dragoman.config.settings import ProtocolName, Quirk
from dragoman.providers.compatible.probe_client import ProbeClient, ProbeReply, Wire
from dragoman.providers.compatible.probe_trials import (
    ABOUT_TEXT,
    ABOUT_TOOLS,
    CAP,
    COUNTS,
    DETERMINISTIC,
    LOOK_UP,
    MANY_PIECES,
    NAMED,
    PROTOCOLS,
    SAY,
    STREAM,
    TOOLS,
    Trial,
)

Found = Literal[
    "takes", "refuses", "ignores", "unclear", "told", "missing", "is cut", "is whole", "right", "lies", "odd"
]


class Trait(Struct, frozen=True):
    what: str
    found: Found
    said: str = ""
    quirk: Quirk | None = None


LONG_STREAM_PIECES = 16  # of a stream that goes on long enough for another request to come in between
SHORT_ARGUMENTS = 12  # characters that may well come at once


def is_long(heard: ProbeReply) -> bool:
    """Whether a stream ran until its cap, or came in so many pieces that another request met it under way."""
    return heard.finish == "length" or heard.pieces >= LONG_STREAM_PIECES


def judge_stream(heard: ProbeReply) -> list[Trait]:
    return [
        _judge_presence("usage in streams", heard.tokens is not None, "it is estimated"),
        _judge_presence("ids of chunks", all(chunk.id for chunk in heard.chunks), "we make them"),
        _judge_presence(
            "finish_reason in streams", heard.finish is not None, "[DONE] counts as the end" if heard.done else ""
        ),
        _judge_presence("[DONE]", heard.done, "the finish_reason counts as the end"),
    ]


def judge_calls(heard: ProbeReply) -> list[Trait]:
    """Told of a stream in which a tool was called; nothing is known where none was."""
    if heard.manner != "takes" or not heard.calls:
        return [Trait("a call in a stream", "unclear", heard.said or "no tool was called")]
    pieces = [call for call in heard.calls if call.function is not None and call.function.arguments]
    lies = heard.finish != "tool_calls"
    return [
        _judge_presence("ids of calls", any(call.id for call in heard.calls), "we make them"),
        _judge_arguments([str(call.function.arguments) for call in pieces if call.function is not None]),
        Trait("finish_reason after a call", "lies", f"{heard.finish or 'nothing'}; the call counts")
        if lies
        else Trait("finish_reason after a call", "right"),
    ]


def _judge_arguments(pieces: list[str]) -> Trait:
    what = "arguments in a stream"
    if len(pieces) > 1:
        return Trait(what, "right", "in pieces")
    if len("".join(pieces)) < SHORT_ARGUMENTS:
        return Trait(what, "unclear", "they are too short to come in pieces")
    return Trait(what, "odd", "all at once, at the end")


def _judge_presence(what: str, told: bool, otherwise: str) -> Trait:
    return Trait(what, "told") if told else Trait(what, "missing", otherwise)


QUIRKS: tuple[Quirk, ...] = get_args(Quirk)


class ProbeResult(Struct, frozen=True):
    """What is now known of a server. `undecided` are quirks of which its answers told nothing."""

    model: str
    requests: int
    protocols: tuple[ProtocolName, ...]
    quirks: tuple[Quirk, ...]
    undecided: frozenset[Quirk]
    traits: tuple[Trait, ...]


async def probe(asker: ProbeClient, model: str) -> ProbeResult:
    examination = _Probe(asker)
    protocols = await examination.protocols()
    if "chat" in protocols:
        await examination.chat()
    traits = tuple(examination.traits)
    found = {trait.quirk for trait in traits if trait.quirk is not None}
    quirks = tuple(quirk for quirk in QUIRKS if quirk in found)
    undecided = frozenset(QUIRKS) - found - (examination.settled - examination.doubted)
    return ProbeResult(model, asker.asked, protocols, quirks, undecided, traits)


class _Probe:
    """One server, asked one thing after the other: a small one answers only one at a time."""

    def __init__(self, asker: ProbeClient) -> None:
        self._asker = asker
        self._cap = "max_tokens"
        self._steady = DETERMINISTIC
        self.traits: list[Trait] = []
        self.settled: set[Quirk] = set()  # of which an answer told whether they are needed
        self.doubted: set[Quirk] = set()  # of which an answer told nothing

    async def protocols(self) -> tuple[ProtocolName, ...]:
        spoken: list[ProtocolName] = []
        chat = await self._plain_chat()
        if chat.manner == "refuses" and self._steady:
            self._steady = {}
            chat = await self._plain_chat()
        self._note(Trait("protocol chat", chat.manner, chat.said))
        if chat.manner == "takes":
            spoken.append("chat")
        others: tuple[ProtocolName, ...] = ("responses", "messages")
        for name in others:
            heard = await self._asker.takes(name, *PROTOCOLS[name])
            self._note(Trait(f"protocol {name}", heard.manner, heard.said))
            if heard.manner == "takes":
                spoken.append(name)
        return tuple(spoken)

    async def _plain_chat(self) -> ProbeReply:
        heard = await self._asker.whole(self._capped(SAY))
        if heard.manner == "refuses" and self._cap in heard.said and self._cap != "max_completion_tokens":
            self._cap = "max_completion_tokens"
            heard = await self._asker.whole(self._capped(SAY))
        return heard

    async def chat(self) -> None:
        for trial in ABOUT_TEXT:
            await self._try(trial)
        if (await self._try(TOOLS)).found == "takes":
            for trial in ABOUT_TOOLS:
                await self._try(trial)
            await self._stream_a_call()
        await self._stream()

    async def _try(self, trial: Trial) -> Trait:
        trait = await self._judge(trial)
        if trait.quirk is not None and trait.quirk == trial.quirk and trial.remedy is not None:
            trait = await self._with_remedy(trait, trial.remedy)
        if trial.quirk is not None:
            (self.doubted if trait.found == "unclear" else self.settled).add(trial.quirk)
        return self._note(trait)

    async def _judge(self, trial: Trial) -> Trait:
        """Ask until an answer proves something, whatever the model says in the others."""
        proofs = 0
        for fields in (trial.fields, *trial.others):
            heard = await (self._asker.whole(self._capped(fields)) if trial.capped else self._uncapped(fields))
            if heard.manner != "takes":
                return _judge_refusal(trial, heard)
            obeyed = trial.obeyed(heard)
            if obeyed is False:
                return Trait(trial.what, "ignores", quirk=trial.quirk)
            proofs += obeyed is True
            if proofs == trial.proofs:
                return Trait(trial.what, "takes")
        return Trait(trial.what, "unclear", "its answers ended too soon to tell")

    async def _uncapped(self, fields: Wire) -> ProbeReply:
        """Ask for a stream, and for the whole where the server does not take that."""
        fields = {**fields, **self._steady}
        heard = await self._asker.glimpsed(fields, MANY_PIECES)
        return heard if heard.manner == "takes" else await self._asker.whole(fields)

    async def _with_remedy(self, trait: Trait, remedy: Wire) -> Trait:
        heard = await self._asker.whole(self._capped(remedy))
        if heard.manner == "takes":
            return trait
        return Trait(trait.what, trait.found, f"and what would be sent instead too: {heard.said}")

    async def _stream(self) -> None:
        heard = await self._asker.streamed(self._capped(STREAM))
        self._note(Trait("stream_options", heard.manner, heard.said))
        if heard.manner != "takes":
            heard = await self._asker.streamed(self._capped(SAY))
        if heard.manner != "takes":
            self._note(Trait("streams", heard.manner, heard.said))
            return
        self.traits += judge_stream(heard)
        if heard.finish is not None:
            await self._disturb()

    async def _stream_a_call(self) -> None:
        choice: object = NAMED if "no_required" in {trait.quirk for trait in self.traits} else "required"
        heard = await self._asker.streamed(self._capped({**LOOK_UP, "tool_choice": choice}))
        self.traits += judge_calls(heard)

    async def _disturb(self) -> None:
        """Some servers cut a stream short when the next request comes, and end it as if it were whole."""
        what, said = "a stream during another request", ""
        for count in COUNTS:
            heard = await self._asker.disturbed(self._capped(count), self._capped(SAY))
            if heard.manner != "takes" or not heard.done:
                said = heard.said or "it has no end"
                break
            if heard.finish is None:
                self.settled.add("cut_then_done")
                self._note(Trait(what, "is cut", quirk="cut_then_done"))
                return
            if is_long(heard):
                self.settled.add("cut_then_done")
                self._note(Trait(what, "is whole"))
                return
            said = "its answers ended too soon to tell"
        self._note(Trait(what, "unclear", said))

    def _capped(self, fields: Wire) -> Wire:
        return {**fields, **self._steady, self._cap: CAP}

    def _note(self, trait: Trait) -> Trait:
        self.traits.append(trait)
        return trait


def _judge_refusal(trial: Trial, heard: ProbeReply) -> Trait:
    if heard.manner == "refuses":
        other = trial.complaint
        named = other is not None and other[0] in heard.said
        return Trait(trial.what, "refuses", heard.said, other[1] if other is not None and named else trial.quirk)
    return Trait(trial.what, "unclear", heard.said)
