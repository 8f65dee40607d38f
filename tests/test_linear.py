"""Law 4 where size is a number of things: calls, blocks, citations and items cost linear time in every machine.

Each case has a size at which work that looks at all earlier things for each new one takes several times as long.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain, count

import msgspec
import pytest
from _pytest.mark import ParameterSet

from dragoman.translate.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    HostedBlock,
    OpaqueAdded,
    Opened,
    Stop,
    TextBlock,
    ThinkingBlock,
    collect,
    explode,
)
from dragoman.translate.hub.loss import Ledger
from dragoman.translate.hub.opaque import Opaque, OpaqueForm
from dragoman.translate.hub.ports import ReplyContext
from dragoman.translate.hub.request import Citation, Request
from dragoman.translate.passes.adapt_tools import ToolId, ToolMap
from dragoman.translate.protocols import PROTOCOLS
from dragoman.translate.stages.check_calls import CheckCalls
from dragoman.translate.stages.cite_links import CiteLinks, Sources
from dragoman.translate.stages.estimate_usage import EstimateUsage
from dragoman.translate.stages.guard import Guard, SerialiseBlocks
from dragoman.translate.stages.hold_end import HoldServerCalls, HoldTruncatedCall
from dragoman.translate.stages.join_replies import JoinReplies, JoinRounds
from dragoman.translate.stages.restore_tools import RestoreTools
from dragoman.translate.stages.text_calls import TextCalls
from dragoman.translate.stages.thinking_tags import ThinkingTags
from laws import Machine, assert_linear_function, assert_linear_run
from replies import END, START

Events = Callable[[int], Iterable[Event]]

# Replies as events


def parallel_calls(size: int) -> Iterable[Event]:
    """All calls are open at once, and grow in turn."""
    opened = (Opened(block, CallBlock(f"call-{block}", "tool")) for block in range(size))
    pieces = (Delta(block, piece) for piece in ('{"a":', "1}") for block in range(size))
    return chain((START,), opened, pieces, map(Closed, range(size)), (Ended(Stop.TOOL),))


def successive_texts(size: int) -> Iterable[Event]:
    blocks = ((Opened(block, TextBlock()), Delta(block, "word "), Closed(block)) for block in range(size))
    return chain((START,), chain.from_iterable(blocks), (END,))


def parallel_texts(size: int) -> Iterable[Event]:
    opened = (Opened(block, TextBlock()) for block in range(size))
    words = (Delta(block, "word ") for block in range(size))
    return chain((START,), opened, words, map(Closed, range(size)), (END,))


def make_cited_text(size: int) -> Iterable[Event]:
    cited = ((Delta(0, "word "), CitationAdded(0, citation(place))) for place in range(size))
    return chain((START, Opened(0, TextBlock())), chain.from_iterable(cited), (Closed(0), END))


def citation(place: int) -> Citation:
    return Citation(f"https://example.com/{place}", "title", None, 5 * place, 5 * place + 4)


def sealed_thoughts(size: int) -> Iterable[Event]:
    opaque = Opaque("up", OpaqueForm.SIGNATURE, "c2ln", "model-1")
    thoughts = (
        (Opened(block, ThinkingBlock()), Delta(block, "hm"), OpaqueAdded(block, opaque), Closed(block))
        for block in range(size)
    )
    return chain((START,), chain.from_iterable(thoughts), (END,))


def hosted_blocks(size: int) -> Iterable[Event]:
    block = HostedBlock("ws_1", "web_search", {"query": "q"}, (Citation("https://example.com"),))
    return chain((START,), chain.from_iterable((Opened(at, block), Closed(at)) for at in range(size)), (END,))


def likely_words(size: int) -> Iterable[Event]:
    probable = msgspec.Raw(b'[{"token":"a","logprob":-1,"bytes":[97],"top_logprobs":[]}]')
    return chain((START, Opened(0, TextBlock())), (Delta(0, "a", probable) for _ in range(size)), (Closed(0), END))


def text_calls(size: int) -> Iterable[Event]:
    """One delta in which the model has written all its calls as text."""
    calls = "".join(f'[Called tool with args: {{"a":{number}}}]' for number in range(size))
    return (START, Opened(0, TextBlock()), Delta(0, calls), Closed(0), END)


def mixed_blocks(size: int) -> Iterable[Event]:
    """One after another, blocks of each kind: what grows too fast with one kind grows too fast with these."""
    kinds = (successive_texts, make_cited_text, sealed_thoughts, hosted_blocks, likely_words)
    blocks = count()
    for kind in kinds:
        numbers: defaultdict[int, int] = defaultdict(lambda: next(blocks))
        for event in kind(size):
            if isinstance(event, Opened | Delta | Closed | CitationAdded | OpaqueAdded):
                yield msgspec.structs.replace(event, block=numbers[event.block])
            elif event is START and kind is kinds[0]:
                yield event
    yield END


REPLIES: dict[str, tuple[Events, int]] = {
    "parallel calls": (parallel_calls, 1500),
    "successive texts": (successive_texts, 2000),
    "parallel texts": (parallel_texts, 2000),
    "cited text": (make_cited_text, 1500),
    "sealed thoughts": (sealed_thoughts, 1000),
    "hosted blocks": (hosted_blocks, 1000),
    "logprobs": (likely_words, 1000),
    "calls in text": (text_calls, 4000),
    "mixed": (mixed_blocks, 400),
}
PARALLEL = ("parallel calls", "parallel texts")


def choose(*few: str, without: tuple[str, ...] = ()) -> list[ParameterSet]:
    """Return the names of the replies as parameters; all but these few are for the rest."""
    names = [name for name in REPLIES if name not in without]
    return [pytest.param(name, marks=() if name in few else pytest.mark.rest) for name in names]


TOOLS = ToolMap({"tool": ToolId("tool", custom=True)}, frozenset(("tool",)))
STAGES: dict[str, Callable[[], Machine[Event, Event]]] = {
    "join_replies": JoinReplies,
    "check_calls": CheckCalls,
    "estimate_usage": lambda: EstimateUsage(len, 1),
    "guard": lambda: Guard(lambda trip: None),
    "cite_links": lambda: CiteLinks(Sources(), apart=True),
    "hold_server_calls": lambda: HoldServerCalls({"tool": "web_search"}),
    "hold_truncated_call": HoldTruncatedCall,
    "join_rounds": JoinRounds,
    "restore_tools": lambda: RestoreTools(TOOLS),
    "serialise_blocks": SerialiseBlocks,
    "thinking_tags": ThinkingTags,
    "text_calls": lambda: TextCalls({"tool": {}}),
}


@pytest.mark.parametrize("reply", choose("mixed", "parallel calls"))
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_takes_linear_time_in_blocks_and_citations(stage: str, reply: str) -> None:
    events, size = REPLIES[reply]
    assert_linear_run(STAGES[stage], events, size)


def reply_context() -> ReplyContext:
    numbers = count()
    request = Request("chat", "model-1", ())
    return ReplyContext(request, "model-1", 1, lambda prefix: f"{prefix}{next(numbers)}", lambda: 1.0)


@pytest.mark.parametrize("reply", choose("mixed", without=PARALLEL))
@pytest.mark.parametrize("client", ["chat", "responses", "messages", "gemini"])
def test_every_encoder_takes_linear_time_in_blocks_and_citations(client: str, reply: str) -> None:
    writer = PROTOCOLS[client].client
    assert writer
    events, size = REPLIES[reply]
    assert_linear_run(lambda: writer.encoder(reply_context(), Ledger()), events, size)
    assert_linear_function(
        lambda reply: writer.encode_whole(reply, reply_context(), Ledger()), lambda size: list(events(size)), size
    )


@pytest.mark.parametrize("client", ["chat", "responses"])
def test_encoders_of_interleaved_blocks_take_linear_time(client: str) -> None:
    writer = PROTOCOLS[client].client
    assert writer
    for events, size in (REPLIES["parallel calls"], REPLIES["parallel texts"]):
        assert_linear_run(lambda: writer.encoder(reply_context(), Ledger()), events, size)


@pytest.mark.parametrize("reply", choose("mixed", "parallel calls"))
def test_folding_and_unfolding_a_reply_takes_linear_time(reply: str) -> None:
    events, size = REPLIES[reply]
    assert_linear_function(lambda reply: list(explode(collect(reply))), lambda size: list(events(size)), size)
