"""Any conversation, however broken, becomes one that Kiro accepts, and none of its text is lost."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.request import (
    Function,
    Image,
    Inline,
    Part,
    Pick,
    Request,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolChoice,
    ToolResult,
    Turn,
)
from dragoman.translate.passes.adapt_turns import drop_reasoning
from dragoman.translate.protocols.kiro.wire import MAX_IMAGES
from translate.protocols.kiro.kiro_requests import MODEL, send

ids = st.sampled_from(["c1", "c2", "c3", "", "a b", "x" * 80])
names = st.sampled_from(["look", "gone", "1st", "n" * 70])
words = st.sampled_from(["", " ", "alpha", "beta", "é日😀"])
texts = words.map(Text)
calls = st.builds(ToolCall, ids, names, st.sampled_from(["", "{}", '{"a":{"":1}}', "[", "null"]))
results = st.builds(
    ToolResult,
    ids,
    st.lists(texts | st.just(Image(Inline("image/png", "AA=="))), max_size=2).map(tuple),
    is_error=st.booleans(),
)
opaques = st.builds(
    Opaque, st.sampled_from(["kiro", "other"]), st.sampled_from(OpaqueForm), st.just("s"), st.just(MODEL)
)
thoughts = st.builds(Thinking, words, opaque=opaques | st.none())
parts: st.SearchStrategy[Part] = texts | calls | results | thoughts | st.just(Image(Inline("image/gif", "AA==")))
turns = st.builds(Turn, st.sampled_from(Role), st.lists(parts, max_size=4).map(tuple))
tools = st.lists(st.builds(Function, names), max_size=2).map(tuple)


def is_accepted(message: list[Turn]) -> bool:
    """Whether Kiro takes so many images, even if all of them come to stand in one message."""
    shown = [part for turn in message for part in turn.parts]
    shown += [part for result in shown if isinstance(result, ToolResult) for part in result.content]
    return sum(isinstance(part, Image) for part in shown) <= MAX_IMAGES


choices = st.none() | st.just(ToolChoice(Pick.NONE, "/tool_choice"))


def locate_turns(turns: list[Turn]) -> tuple[Turn, ...]:
    """The same turns, each part with a place of its own for the ledger, and words with that place in them."""
    return tuple(
        Turn(turn.role, tuple(place_part(part, f"/{i}/{j}") for j, part in enumerate(turn.parts)), f"/{i}")
        for i, turn in enumerate(turns)
    )


def place_part(part: Part, at: str) -> Part:
    if isinstance(part, Text) and part.text.strip():
        return Text(f"{part.text} {at}!", at)
    return msgspec.structs.replace(part, at=at)


@given(st.lists(turns, max_size=8).filter(is_accepted), tools, choices)
@settings(max_examples=100, deadline=None)
def test_any_conversation_becomes_one_that_kiro_accepts(
    message: list[Turn], offered: tuple[Function, ...], choice: ToolChoice | None
) -> None:
    request = Request("chat", "m", locate_turns(message), tools=offered, tool_choice=choice)
    built = send(request)  # which judges by the rules
    sent = built.body.decode()
    for turn in request.turns:
        for part in turn.parts:
            if isinstance(part, Text) and part.text.strip():
                assert part.text in sent


def has_more_than_reasoning(turn: Turn) -> bool:
    """Otherwise the turn is dropped with its reasoning, and its neighbours are merged."""
    return not turn.parts or not all(isinstance(part, Thinking) for part in turn.parts)


@given(st.lists(turns.filter(has_more_than_reasoning), max_size=6).filter(is_accepted))
@settings(max_examples=50, deadline=None)
def test_without_reasoning_nothing_else_changes(message: list[Turn]) -> None:
    request = Request("chat", "m", locate_turns(message))
    dropped = send(drop_reasoning(request, Ledger()))
    assert b"reasoningContent" not in dropped.body
    kept = send(request, ledger=Ledger())
    for entry in kept.history:
        entry.pop("reasoningContent", None)
    assert dropped.history == kept.history
    assert dropped.current == kept.current
