"""Links to sources become citations, however the text is cut, and the text stays as it is."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from dragoman.translate.hub.events import CitationAdded, Closed, Delta, Event, Failed, Opened, TextBlock, join_arrays
from dragoman.translate.hub.failure import Failure, Kind
from dragoman.translate.hub.request import CitedDocument
from dragoman.translate.hub.server_tools import SearchFound, SearchResult, ToolErrorCode, ToolFailure, WebPage
from dragoman.translate.stages.cite_links import MAX_LINK, MAX_QUOTED, CiteLinks, Sources
from laws import assert_any_recut_agrees, assert_bounded, assert_linear, assert_linear_function, run
from replies import END, START, call, join_deltas, split_delta, text
from tables import each_row

ONE = "https://a.example/one"
PARENS = "https://a.example/Foo_(bar)"
BRACKETS = "https://a.example/?q=[1]"
LONG = "https://a.example/" + "x" * (MAX_LINK - len("[a](https://a.example/)"))
TOO_LONG = LONG + "x"


def sources() -> Sources:
    found = Sources()
    urls = (ONE, PARENS, BRACKETS, LONG, TOO_LONG)
    found.add(SearchFound(tuple(SearchResult(url, f"Title of {url}"[:40], "word " * 50) for url in urls)))
    return found


SOURCES = sources()


def make(*, apart: bool = True) -> CiteLinks:
    return CiteLinks(SOURCES, apart=apart)


def after(*events: Event, apart: bool = True) -> list[Event]:
    return join_deltas(run(make(apart=apart), [START, *events, END]))[1:-1]


def blocks(written: str) -> list[tuple[str, str | None]]:
    """Return the text blocks that a text becomes, each with the URL that it cites."""
    texts: dict[int, str] = {}
    cited: dict[int, str | None] = {}
    for event in after(*text(0, written)):
        match event:
            case Opened(block=block):
                texts[block] = ""
            case Delta(block=block, text=piece):
                texts[block] += piece
            case CitationAdded(block=block, citation=citation):
                cited[block] = citation.url
    return [(piece, cited.get(block)) for block, piece in texts.items()]


def spans(written: str) -> list[str]:
    """Return what the citations of a text point at, where they stand in the text's own block."""
    events = after(*text(0, written), apart=False)
    citations = [event.citation for event in events if isinstance(event, CitationAdded)]
    return [written[citation.start : citation.end] for citation in citations]


# What is cited


def test_a_link_to_a_source_is_a_block_of_its_own() -> None:
    link = f"[one]({ONE})"
    assert blocks(f"See {link} now.") == [("See ", None), (link, ONE), (" now.", None)]
    assert blocks(link) == [(link, ONE)]
    assert blocks(link + link) == [(link, ONE), (link, ONE)]


def test_a_citation_comes_before_its_text_and_quotes_the_source() -> None:
    opened, cited, delta, closed = after(*text(0, f"[one]({ONE})"))
    assert (opened, delta, closed) == (Opened(0, TextBlock()), Delta(0, f"[one]({ONE})"), Closed(0))
    assert isinstance(cited, CitationAdded)
    assert cited.citation.quoted == ("word " * 50)[:MAX_QUOTED]


def test_without_blocks_of_its_own_a_citation_says_where_the_link_stands() -> None:
    link = f"[one]({ONE})"
    assert spans(f"👋 See {link} and {link}.") == [link, link]
    events = after(*text(0, f"See {link} now."), apart=False)
    assert [event.block for event in events if isinstance(event, Opened)] == [0]


@pytest.mark.parametrize(
    "link",
    [
        f"[Foo]({PARENS})",
        f"[one]({BRACKETS})",
        f'[one]({ONE} "A title")',
        f'[one]({ONE} "A [title] (here)")',
        f"[a]({LONG})",
        f"[one]({ONE}/)",
        f"[one]({ONE}#part)",
        "[one](HTTPS://A.example/one)".replace("HTTPS", "https"),
        f"[two\nlines]({ONE})",
    ],
)
def test_spellings_of_a_link_are_known(link: str) -> None:
    assert [piece for piece, url in blocks(f"x{link}y") if url] == [link]
    assert spans(f"x{link}y") == [link]


@each_row(
    "written",
    [
        *("[one](https://unseen.example/)", "[one](/relative)", "[one]", f"[]({ONE})", f"[one] ({ONE})"),
        *(f"[one]({ONE} title)", f"[one]({ONE}", f"{ONE}", f"[a]({TOO_LONG})", "[" * 50, "[x](" * 50),
    ],
)
def test_what_is_no_link_to_a_source_stays_plain(written: str) -> None:
    assert blocks(written) == [(written, None)]


def test_a_link_inside_a_broken_link_is_cited() -> None:
    link = f"[one]({ONE})"
    assert blocks(f"[a [b {link}") == [("[a [b ", None), (link, ONE)]
    assert blocks(f"[a](https://unseen.example/{link})")[1] == (link, ONE)


def test_a_fetched_page_is_a_source_and_a_failure_is_none() -> None:
    found = Sources()
    found.add(WebPage(ONE, "One", "text"))
    found.add(ToolFailure(ToolErrorCode.UNAVAILABLE, "no"))
    source = found.find(ONE + "/")
    assert source is not None
    assert source.title == "One"
    assert found.find("https://unseen.example/") is None
    assert found.find("https://[") is None


def test_pages_are_numbered_as_documents_after_those_of_the_request() -> None:
    found = Sources()
    found.skip_documents(2)
    pages = (
        WebPage(ONE, "One", "word " * 50),
        WebPage(PARENS, "PDF", pdf="JVBERi0="),
        WebPage(BRACKETS, "B", is_citable=False),
    )
    for page in (*pages, WebPage(LONG, "Last", "text")):
        found.add(page)
    places = [found.find(url) for url in (ONE, PARENS, BRACKETS, LONG)]
    assert [None if place is None else place.document for place in places] == [
        CitedDocument(2, end=MAX_QUOTED),
        CitedDocument(3, is_pdf=True),
        None,
        CitedDocument(5, end=4),
    ]


def test_log_probabilities_come_with_the_text_that_was_held() -> None:
    pieces = ("See [o", "ne", f"]({ONE}", ") now", " [x", "] so")
    deltas = [Delta(0, piece, Raw(b'[{"token":%d}]' % number)) for number, piece in enumerate(pieces)]
    for apart in (True, False):
        events_in: list[Event] = [START, Opened(0, TextBlock()), *deltas, Delta(0, "", Raw(b"[9]")), END]
        events = run(make(apart=apart), events_in)
        kept = [event.logprobs for event in events if isinstance(event, Delta) and event.logprobs is not None]
        tokens = [{"token": number} for number in range(len(pieces))]
        assert msgspec.json.decode(join_arrays(kept) or b"") == [*tokens, 9]
        assert "".join(event.text for event in events if isinstance(event, Delta)) == "".join(pieces)


# What passes unchanged


def test_text_without_a_bracket_is_not_held() -> None:
    machine = make()
    assert list(machine.feed(Opened(0, TextBlock()))) == []
    assert list(machine.feed(Delta(0, "Hello"))) == [Opened(0, TextBlock()), Delta(0, "Hello")]


def test_a_bracket_is_held_only_as_long_as_it_may_begin_a_link() -> None:
    machine = make()
    list(machine.feed(Opened(0, TextBlock())))
    assert join_deltas(machine.feed(Delta(0, "a[0] b"))) == [Opened(0, TextBlock()), Delta(0, "a[0] b")]
    assert list(machine.feed(Delta(0, "[one](ht"))) == []
    assert join_deltas(machine.feed(Delta(0, "ml)"))) == [Delta(0, "[one](html)")]


def test_blocks_of_other_kinds_keep_their_place() -> None:
    link = f"[one]({ONE})"
    events = after(*text(0, f"a{link}b"), *call(1, "tool", "{}"), *text(2, "c"))
    assert [event.block for event in events if isinstance(event, Opened)] == [0, 1, 2, 3, 4]
    assert [event.block for event in events if isinstance(event, Closed)] == [0, 1, 2, 3, 4]


def test_an_empty_block_stays_one() -> None:
    assert after(*text(0)) == [Opened(0, TextBlock()), Closed(0)]


def test_what_is_held_comes_out_before_a_failure_and_at_the_end() -> None:
    failed = Failed(Failure(Kind.LOST, "gone"))
    begun: list[Event] = [START, Opened(0, TextBlock()), Delta(0, "see [on")]
    assert join_deltas(run(make(), [*begun, failed]))[1:] == [Opened(0, TextBlock()), Delta(0, "see [on"), failed]
    assert join_deltas(run(make(), begun))[1:] == [Opened(0, TextBlock()), Delta(0, "see [on")]


# Laws


REPLIES = (
    f"See [one]({ONE}) and [x](https://unseen.example/) and [Foo]({PARENS}).",
    f'[a [b](c) [one]({BRACKETS})]({ONE}) [one]({ONE} "see [x](y)") [z',
    f"[a](https://unseen.example/[one]({ONE})) [[[one]({ONE}]({ONE})",
)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("reply", REPLIES)
def test_any_cut_of_the_deltas_gives_the_same_citations(reply: str, apart: bool) -> None:
    events = [START, *text(0, reply), *text(1, "more"), END]
    assert_any_recut_agrees(lambda: make(apart=apart), events, split_delta, join_deltas)


PIECES = st.sampled_from(["[", "]", "(", ")", "[one](", ONE, BRACKETS, "](", "https://", " ", '"', "x", ")[", "\n"])


@given(st.lists(PIECES, max_size=30))
@settings(max_examples=300, deadline=None)
def test_any_text_is_cut_like_its_characters_and_kept(pieces: list[str]) -> None:
    whole = after(*text(0, "".join(pieces)))
    assert after(*text(0, *pieces)) == whole
    assert after(*text(0, *"".join(pieces))) == whole
    assert "".join(event.text for event in whole if isinstance(event, Delta)) == "".join(pieces)


@pytest.mark.parametrize("length", [MAX_LINK - 1, MAX_LINK, MAX_LINK + 1])
def test_the_longest_link_is_the_same_however_it_is_cut(length: int) -> None:
    link = f"[{'a' * (length - len(ONE) - 4)}]({ONE})"
    assert len(link) == length
    whole = after(*text(0, link))
    assert after(*text(0, *link)) == whole
    assert any(isinstance(event, CitationAdded) for event in whole) is (length <= MAX_LINK)


@pytest.mark.parametrize("piece", ["[", "x", "[x](https://a.example/", f"[one]({ONE})", "[x](y) "])
def test_time_is_linear_and_memory_bounded(piece: str) -> None:
    class Deaf(CiteLinks):
        """Feeds an open block and drops what comes out, so that only what is held counts."""

        def __init__(self) -> None:
            super().__init__(SOURCES, apart=True)
            list(super().feed(Opened(0, TextBlock())))

        def feed(self, event: Event) -> list[Event]:
            list(super().feed(event))
            return []

    assert_linear(Deaf, Delta(0, piece), 300)
    assert_bounded(Deaf, (Delta(0, piece) for _ in range(3000)), 100_000)


def test_one_long_delta_takes_linear_time() -> None:
    def feed(size: int) -> None:
        machine = make()
        list(machine.feed(Opened(0, TextBlock())))
        list(machine.feed(Delta(0, "[x](https://a.example/" * size)))

    assert_linear_function(feed, lambda size: size, 300)
