"""Totals come in; a table with charts, the tokens by kind and a few sentences go out, no wider than a terminal."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from dragoman.admin.usage_totals import Total, all_days, sum_of
from dragoman.cli.accounting.chart import bar, sparks
from dragoman.cli.screen import harmless, padded, shortened

WIDTH = 100
LONGEST_BAR = 24
SHORTEST_BAR = 6
SHORTEST_NAME = 12
GAP = "  "


class Column(Struct, frozen=True):
    heading: str
    text: Callable[[Total, Total], str]  # of a line, beside the sum of all
    matters: Callable[[Total], object]  # asked of the sum: a column of nothings is left out


COLUMNS = (
    Column("REQUESTS", lambda total, whole: f"{total.requests:,}", lambda whole: True),
    Column("FAILED", lambda total, whole: f"{total.failed:,}", lambda whole: whole.failed),
    Column("INPUT", lambda total, whole: f"{total.input_tokens:,}", lambda whole: True),
    Column("OUTPUT", lambda total, whole: f"{total.output_tokens:,}", lambda whole: True),
    Column(
        "CREDITS", lambda total, whole: f"{total.credits:,.2f}" if total.credits else "–", lambda whole: whole.credits
    ),
    Column("COST", lambda total, whole: cost(total, whole), lambda whole: True),
)
KINDS: tuple[tuple[str, Callable[[Total], int]], ...] = (
    ("fresh input", lambda whole: whole.fresh),
    ("cache reads", lambda whole: whole.cache_read_tokens),
    ("cache writes", lambda whole: whole.cache_write_tokens),
    ("output", lambda whole: whole.output_tokens - whole.reasoning_tokens),
    ("reasoning", lambda whole: whole.reasoning_tokens),
)


def page(totals: Sequence[Total], by: str, title: str) -> list[str]:
    """What a person sees."""
    whole = sum_of(totals)
    return [title, "", *_table(totals, by, whole), "", *_kinds(whole), "", *remarks(whole)]


def _table(totals: Sequence[Total], by: str, whole: Total) -> list[str]:
    columns = [column for column in COLUMNS if column.matters(whole)]
    shown = [*totals, whole] if len(totals) > 1 else totals
    cells = [[column.heading for column in columns]]
    cells += [[column.text(total, whole) for column in columns] for total in shown]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    names = [by.upper(), *(harmless(total.label) for total in shown)]
    room = WIDTH - sum(len(GAP) + width for width in widths)
    width = min(max(map(len, names)), max(SHORTEST_NAME, room))
    charts = ["", *_charts(totals, by, whole, room - width - len(GAP)), ""]
    return [
        GAP.join([padded(shortened(name, width), width), *map(str.rjust, line, widths), chart]).rstrip()
        for name, line, chart in zip(names, cells, charts, strict=False)
    ]


def _charts(totals: Sequence[Total], by: str, whole: Total, room: int) -> list[str]:
    """Beside a day its bar; beside anything else its days, or where they are too few or too many, its share."""
    days = [] if by == "day" else all_days(whole.days)
    if 2 <= len(days) <= room:
        return [sparks([total.days.get(day, 0) for day in days]) for total in totals]
    width = min(LONGEST_BAR, room)
    if width < SHORTEST_BAR:
        return [""] * len(totals)
    most = max(total.tokens for total in totals)
    return [bar(total.tokens, most, width) for total in totals]


def _kinds(whole: Total) -> list[str]:
    """Where the tokens went."""
    counts = [(name, count(whole)) for name, count in KINDS if count(whole)]
    width = max((len(f"{number:,}") for _, number in counts), default=0)
    most = max((number for _, number in counts), default=0)
    return [
        f"{name:<12}{GAP}{number:>{width},}{GAP}{100 * number / max(1, whole.tokens):5.1f} %{GAP}"
        f"{bar(number, most, LONGEST_BAR)}"
        for name, number in counts
    ]


def cost(total: Total, whole: Total) -> str:
    """In dollars, with a plus where some of it has no known price."""
    if not total.priced:
        return "–"
    places = 2 if whole.dollars >= 10 else 4
    small = 0 < total.cost_nano_usd < 10 ** (9 - places)
    text = f"<${10**-places:.{places}f}" if small else f"${total.dollars:,.{places}f}"
    return text + ("+" if total.unpriced else "")


def remarks(whole: Total) -> list[str]:
    """How far the numbers can be trusted."""
    said = [f"{_count(whole.requests)}, {whole.failed:,} failed, {whole.client_gone:,} left by their client."]
    if whole.counted < whole.requests:
        said.append(f"{_count(whole.requests - whole.counted)} came to nothing that could be counted.")
    if whole.unpriced:
        said.append(f"{_count(whole.unpriced)} at no known price (+): [[prices]] in dragoman.toml may name one.")
    if whole.estimated:
        share = 100 * whole.estimated_tokens / max(1, whole.tokens)
        said.append(f"{_count(whole.estimated)} estimated: {whole.estimated_tokens:,} tokens, {share:.1f} % of all.")
    if whole.derived:
        said.append(f"{_count(whole.derived)} derived from how full the upstream's context was.")
    return said


def _count(number: int) -> str:
    return f"{number:,} request" + ("" if number == 1 else "s")
