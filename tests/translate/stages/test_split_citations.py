"""Whole replies whose text is divided where it is cited."""

from dragoman.translate.hub.events import (
    CallBlock,
    CitationAdded,
    Closed,
    Delta,
    Ended,
    Event,
    Failed,
    Opened,
    Started,
    Stop,
    TextBlock,
    ThinkingBlock,
    collect,
)
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.request import Citation
from dragoman.translate.stages.split_citations import MAX_BLOCKS, split_citations
from laws import assert_linear_function
from tables import each_row

TEXT = "Zürich is sunny. Ulm is not, they say. "
Place = tuple[str, int | None, int | None]


def cite(url: str, start: int | None = None, end: int | None = None) -> Citation:
    return Citation(f"https://{url}.example", start=start, end=end)


def reply(citations: list[Citation], text: str = TEXT, block: int = 0) -> list[Event]:
    added = [CitationAdded(block, citation) for citation in citations]
    return [Started("r", "m"), Opened(block, TextBlock()), Delta(block, text), *added, Closed(block), Ended(Stop.END)]


def divide(events: list[Event]) -> list[tuple[str, list[Place]]]:
    pieces = collect(split_citations(events)).pieces
    return [
        (piece.text, [(str(cited.url)[8:-8], cited.start, cited.end) for cited in piece.citations]) for piece in pieces
    ]


@each_row(
    ("citations", "expected"),
    [
        ([cite("a", 0, 16)], [("Zürich is sunny.", ["a"]), (" Ulm is not, they say. ", [])]),
        ([cite("a", 0, 16), cite("b", 0, 16)], [("Zürich is sunny.", ["a", "b"]), (" Ulm is not, they say. ", [])]),
        ([cite("b", 17, 38), cite("a", 0, 16)], [("Zürich is sunny. ", ["a"]), ("Ulm is not, they say. ", ["b"])]),
        ([cite("a", 7, 9)], [("Zürich ", []), ("is", ["a"]), (" sunny. Ulm is not, they say. ", [])]),
        ([cite("a", 0, 39)], [(TEXT, ["a"])]),
        ([cite("a", 0, None)], [(TEXT, ["a"])]),
        ([cite("a", 0, 900)], [(TEXT, ["a"])]),
        ([cite("a", 0, 6), cite("b", 6, 9)], [("Zürich", ["a"]), (" is", ["b"]), (TEXT[9:], [])]),
        ([cite("a", 0, 16), cite("b")], [("Zürich is sunny.", ["a"]), (" Ulm is not, they say. ", ["b"])]),
    ],
)
def test_each_cited_passage_is_a_block_with_its_own_citations(
    citations: list[Citation], expected: list[tuple[str, list[str]]]
) -> None:
    expected_places = [(text, [(url, None, None) for url in urls]) for text, urls in expected]
    assert divide(reply(citations)) == expected_places
    assert divide(list(split_citations(reply(citations)))) == expected_places


def test_passages_that_overlap_are_one_block_whose_citations_keep_their_places() -> None:
    cited = [cite("a", 7, 16), cite("b", 10, 20), cite("c", 7, 20)]
    places: list[Place] = [("a", 0, 9), ("c", None, None), ("b", 3, 13)]
    assert divide(reply(cited)) == [("Zürich ", []), ("is sunny. Ulm", places), (" is not, they say. ", [])]


@each_row("citation", [cite("a"), cite("a", 5, 5), cite("a", 9, 2), cite("a", -4, 3), cite("a", 500, 600)])
def test_a_citation_without_a_place_in_the_text_stays_on_all_of_it(citation: Citation) -> None:
    [(text, [(url, _, _)])] = divide(reply([citation]))
    assert (text, url) == (TEXT, "a")


def test_white_space_is_no_block_of_its_own() -> None:
    cited = [cite("a", 2, 3), cite("b", 5, 6)]
    assert [text for text, _ in divide(reply(cited, "\n\nA\n\nB\n"))] == ["\n\nA\n\n", "B\n"]
    assert divide(reply([cite("a", 0, 1)], "")) == [("", [("a", None, None)])]


def test_other_blocks_keep_their_order_and_their_text() -> None:
    thought: list[Event] = [Opened(0, ThinkingBlock()), Delta(0, "Hm."), Closed(0)]
    call: list[Event] = [Opened(2, CallBlock("c", "f")), Delta(2, "{}"), Closed(2)]
    start, *text, end = reply([cite("a", 0, 6)], block=1)
    events = split_citations([start, *thought, *text, *call, end])
    assert [event.block for event in events if isinstance(event, Opened)] == [0, 1, 2, 3]
    assert [piece.text for piece in collect(events).pieces] == ["Hm.", "Zürich", TEXT[6:], "{}"]


def test_what_has_no_places_has_failed_or_would_be_too_many_blocks_stays_as_it_is() -> None:
    plain = reply([cite("a")])
    failed = [*reply([cite("a", 0, 6)])[:-1], Failed(Failure(Kind.LOST, "gone"))]
    many = reply([cite("a", 4 * at, 4 * at + 1) for at in range(MAX_BLOCKS)], "word" * MAX_BLOCKS)
    for events in (plain, failed, many):
        assert split_citations(events) is events


def test_citations_of_one_long_text_take_linear_time() -> None:
    def nest(size: int) -> list[Event]:
        return reply([cite("a", at, 4 * size - at) for at in range(size)], "word" * size)

    assert_linear_function(split_citations, nest, 500)
