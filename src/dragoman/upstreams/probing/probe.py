"""The probe of a compatible server: it finds out which protocols and quirks the server has."""

from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from dragoman.config.settings import ProtocolName, Quirk
from dragoman.upstreams.probing.probe_client import ProbeClient, ProbeReply, Wire
from dragoman.upstreams.probing.probe_trials import (
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
    "supported",
    "rejected",
    "ignored",
    "unclear",
    "present",
    "missing",
    "truncated",
    "complete",
    "correct",
    "wrong",
    "unusual",
]


class Trait(Struct, frozen=True):
    what: str
    found: Found
    message: str = ""  # of the server
    quirk: Quirk | None = None


LONG_STREAM_PIECES = 16  # of a stream that lasts long enough for another request to interrupt it
SHORT_ARGUMENTS = 12  # characters that may come in one piece


def is_long(reply: ProbeReply) -> bool:
    """Return whether a stream reached its cap, or was long enough for another request to come during it."""
    return reply.finish_reason == "length" or reply.pieces >= LONG_STREAM_PIECES


def judge_calls(reply: ProbeReply) -> list[Trait]:
    """Judge a stream in which a tool should be called; nothing is known if none was."""
    if reply.verdict != "supported" or not reply.calls:
        return [Trait("a call in a stream", "unclear", reply.message or "no tool was called")]
    pieces = [call for call in reply.calls if call.function is not None and call.function.arguments]
    is_wrong = reply.finish_reason != "tool_calls"
    return [
        _judge_presence("ids of calls", any(call.id for call in reply.calls), "we make them"),
        _judge_arguments([str(call.function.arguments) for call in pieces if call.function is not None]),
        Trait("finish_reason after a call", "wrong", f"{reply.finish_reason or 'nothing'}; the call counts")
        if is_wrong
        else Trait("finish_reason after a call", "correct"),
    ]


def _judge_arguments(pieces: list[str]) -> Trait:
    what = "arguments in a stream"
    if len(pieces) > 1:
        return Trait(what, "correct", "in pieces")
    if len("".join(pieces)) < SHORT_ARGUMENTS:
        return Trait(what, "unclear", "they are too short to come in pieces")
    return Trait(what, "unusual", "all at once, at the end")


def _judge_presence(what: str, is_present: bool, otherwise: str) -> Trait:
    return Trait(what, "present") if is_present else Trait(what, "missing", otherwise)


QUIRKS: tuple[Quirk, ...] = get_args(Quirk)


class ProbeResult(Struct, frozen=True):
    """The result of a probe. `undecided` are quirks that its replies did not decide."""

    model: str
    requests: int
    protocols: tuple[ProtocolName, ...]
    quirks: tuple[Quirk, ...]
    undecided: frozenset[Quirk]
    traits: tuple[Trait, ...]


async def probe(client: ProbeClient, model: str) -> ProbeResult:
    session = _Probe(client)
    protocols = await session.protocols()
    if "chat" in protocols:
        await session.chat()
    traits = tuple(session.traits)
    found = {trait.quirk for trait in traits if trait.quirk is not None}
    quirks = tuple(quirk for quirk in QUIRKS if quirk in found)
    undecided = frozenset(QUIRKS) - found - (session.decided - session.open)
    return ProbeResult(model, client.requests_sent, protocols, quirks, undecided, traits)


class _Probe:
    """Sends one request after the other: a small server handles only one at a time."""

    def __init__(self, client: ProbeClient) -> None:
        self._client = client
        self._cap = "max_tokens"
        self._deterministic = DETERMINISTIC
        self.traits: list[Trait] = []
        self.decided: set[Quirk] = set()  # quirks that a reply has decided
        self.open: set[Quirk] = set()  # quirks that a reply left open

    async def protocols(self) -> tuple[ProtocolName, ...]:
        found: list[ProtocolName] = []
        chat = await self._plain_chat()
        if chat.verdict == "rejected" and self._deterministic:
            self._deterministic = {}
            chat = await self._plain_chat()
        self._add(Trait("protocol chat", chat.verdict, chat.message))
        if chat.verdict == "supported":
            found.append("chat")
        others: tuple[ProtocolName, ...] = ("responses", "messages")
        for name in others:
            reply = await self._client.supports(name, *PROTOCOLS[name])
            self._add(Trait(f"protocol {name}", reply.verdict, reply.message))
            if reply.verdict == "supported":
                found.append(name)
        return tuple(found)

    async def _plain_chat(self) -> ProbeReply:
        reply = await self._client.request(self._add_cap(SAY))
        if reply.verdict == "rejected" and self._cap in reply.message and self._cap != "max_completion_tokens":
            self._cap = "max_completion_tokens"
            reply = await self._client.request(self._add_cap(SAY))
        return reply

    async def chat(self) -> None:
        for trial in ABOUT_TEXT:
            await self._test(trial)
        if (await self._test(TOOLS)).found == "supported":
            for trial in ABOUT_TOOLS:
                await self._test(trial)
            choice: object = NAMED if "no_required" in {trait.quirk for trait in self.traits} else "required"
            reply = await self._client.stream(self._add_cap({**LOOK_UP, "tool_choice": choice}))
            self.traits += judge_calls(reply)
        await self._stream()

    async def _test(self, trial: Trial) -> Trait:
        trait = await self._run_trial(trial)
        if trait.quirk is not None and trait.quirk == trial.quirk and trial.remedy is not None:
            trait = await self._with_remedy(trait, trial.remedy)
        if trial.quirk is not None:
            (self.open if trait.found == "unclear" else self.decided).add(trial.quirk)
        return self._add(trait)

    async def _run_trial(self, trial: Trial) -> Trait:
        """Send the trial's requests until a reply proves something."""
        proofs = 0
        for fields in (trial.fields, *trial.others):
            reply = await (
                self._client.request(self._add_cap(fields)) if trial.capped else self._request_uncapped(fields)
            )
            if reply.verdict != "supported":
                return _judge_refusal(trial, reply)
            is_obeyed = trial.is_obeyed(reply)
            if is_obeyed is False:
                return Trait(trial.what, "ignored", quirk=trial.quirk)
            proofs += is_obeyed is True
            if proofs == trial.proofs:
                return Trait(trial.what, "supported")
        return Trait(trial.what, "unclear", "its replies ended too soon to decide")

    async def _request_uncapped(self, fields: Wire) -> ProbeReply:
        """Request a stream, or a whole reply if the server does not accept that."""
        fields = {**fields, **self._deterministic}
        reply = await self._client.stream_until(fields, MANY_PIECES)
        return reply if reply.verdict == "supported" else await self._client.request(fields)

    async def _with_remedy(self, trait: Trait, remedy: Wire) -> Trait:
        reply = await self._client.request(self._add_cap(remedy))
        if reply.verdict == "supported":
            return trait
        return Trait(trait.what, trait.found, f"and what would be sent instead as well: {reply.message}")

    async def _stream(self) -> None:
        reply = await self._client.stream(self._add_cap(STREAM))
        options = Trait("stream_options", reply.verdict, reply.message)
        if reply.verdict != "supported":
            reply = await self._client.stream(self._add_cap(SAY))
            if options.found == "rejected" and reply.verdict == "supported":
                options = replace(options, quirk="no_stream_options")
        self._add(options)
        if options.found in ("supported", "rejected"):
            self.decided.add("no_stream_options")
        if reply.verdict != "supported":
            self._add(Trait("streams", reply.verdict, reply.message))
            return
        self.traits += [
            _judge_presence("usage in streams", reply.output_tokens is not None, "it is estimated"),
            _judge_presence("ids of chunks", all(chunk.id for chunk in reply.chunks), "we make them"),
            _judge_presence(
                "finish_reason in streams",
                reply.finish_reason is not None,
                "[DONE] counts as the end" if reply.done else "",
            ),
            _judge_presence("[DONE]", reply.done, "the finish_reason counts as the end"),
        ]
        if reply.finish_reason is not None:
            await self._test_interruption()

    async def _test_interruption(self) -> None:
        """Test whether the server truncates a stream when another request comes, and ends it as if complete."""
        what, message = "a stream during another request", ""
        for count in COUNTS:
            reply = await self._client.stream_beside(self._add_cap(count), self._add_cap(SAY))
            if reply.verdict != "supported" or not reply.done:
                message = reply.message or "it did not end"
                break
            if reply.finish_reason is None:
                self.decided.add("cut_then_done")
                self._add(Trait(what, "truncated", quirk="cut_then_done"))
                return
            if is_long(reply):
                self.decided.add("cut_then_done")
                self._add(Trait(what, "complete"))
                return
            message = "its replies ended too soon to decide"
        self._add(Trait(what, "unclear", message))

    def _add_cap(self, fields: Wire) -> Wire:
        return {**fields, **self._deterministic, self._cap: CAP}

    def _add(self, trait: Trait) -> Trait:
        self.traits.append(trait)
        return trait


def _judge_refusal(trial: Trial, reply: ProbeReply) -> Trait:
    if reply.verdict == "rejected":
        other = trial.other_quirk
        named = other is not None and other[0] in reply.message
        return Trait(trial.what, "rejected", reply.message, other[1] if other is not None and named else trial.quirk)
    return Trait(trial.what, "unclear", reply.message)
