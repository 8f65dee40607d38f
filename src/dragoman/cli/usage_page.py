"""Usage as text: a table with charts, the tokens by kind and some remarks, no wider than a terminal."""

from collections.abc import Callable, Sequence
from datetime import datetime, time

from msgspec import Struct

from dragoman.admin.usage_totals import Total, add_totals, fill_days
from dragoman.cli.screen import count, fit, pad, remove_control
from dragoman.store.usage_rows import UsageSpan

WIDTH = 100
MAX_BAR_WIDTH = 24
MIN_BAR_WIDTH = 6
MIN_NAME_WIDTH = 12
GAP = "  "
SPARKS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"


class Column(Struct, frozen=True):
    heading: str
    format: Callable[[Total, Total], str]  # of one line and of the sum of all lines
    is_shown: Callable[[Total], object]  # of the sum: a column of zeros is left out


COLUMNS = (
    Column("REQUESTS", lambda total, whole: f"{total.requests:,}", lambda whole: True),
    Column("FAILED", lambda total, whole: f"{total.failed:,}", lambda whole: whole.failed),
    Column("INPUT", lambda total, whole: f"{total.input_tokens:,}", lambda whole: True),
    Column("OUTPUT", lambda total, whole: f"{total.output_tokens:,}", lambda whole: True),
    Column(
        "CREDITS", lambda total, whole: f"{total.credits:,.2f}" if total.credits else "–", lambda whole: whole.credits
    ),
    Column("COST", lambda total, whole: format_cost(total, whole), lambda whole: True),
)
TOKEN_KINDS: tuple[tuple[str, Callable[[Total], int]], ...] = (
    ("fresh input", lambda whole: whole.fresh_input_tokens),
    ("cache reads", lambda whole: whole.cache_read_tokens),
    ("cache writes", lambda whole: whole.cache_write_tokens),
    ("output", lambda whole: whole.output_tokens - whole.reasoning_tokens),
    ("reasoning", lambda whole: whole.reasoning_tokens),
)


def render_page(totals: Sequence[Total], by: str, span: UsageSpan) -> list[str]:
    whole = add_totals(totals)
    table, kinds = _table(totals, by, whole), _token_kinds(whole)
    return [_title(span), "", *table, "", *kinds, "", *render_remarks(whole)]


def render_remarks(whole: Total) -> list[str]:
    """Return how many requests there were, and which of the numbers are incomplete or estimated."""
    requests = count(whole.requests, "request")
    lines = [f"{requests}, {whole.failed:,} failed, {whole.client_gone:,} cancelled by the client."]
    if whole.counted < whole.requests:
        lines.append(f"{count(whole.requests - whole.counted, 'request')} without token counts.")
    if whole.unpriced:
        unpriced = count(whole.unpriced, "request")
        lines.append(f"{unpriced} without a known price (+). [[prices]] in dragoman.toml can set one.")
    if whole.estimated:
        share = 100 * whole.estimated_tokens / max(1, whole.tokens)
        tokens = count(whole.estimated_tokens, "token")
        lines.append(f"{count(whole.estimated, 'request')} with estimated counts: {tokens}, {share:.1f} % of all.")
    if whole.derived:
        lines.append(f"{count(whole.derived, 'request')} with counts derived from the upstream's context use.")
    return lines


def format_cost(total: Total, whole: Total) -> str:
    """Return the cost in dollars, with a plus where a part of it has no known price."""
    if not total.priced:
        return "–"
    places = 2 if whole.dollars >= 10 else 4
    is_tiny = 0 < total.cost_nano_usd < 10 ** (9 - places)
    text = f"<${10**-places:.{places}f}" if is_tiny else f"${total.dollars:,.{places}f}"
    return text + ("+" if total.unpriced else "")


def draw_bar(part: int, most: int, width: int) -> str:
    """Draw a bar in eighths of a character; anything above zero is visible."""
    eighths = max(round(8 * width * part / most), 1) if part else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + EIGHTHS[rest].strip()


def draw_sparks(values: Sequence[int]) -> str:
    """Draw one column for each value, the greatest a full one; zero is a gap."""
    most = max(values, default=0)
    return "".join(SPARKS[(8 * value - 1) // most] if value else " " for value in values)


def _title(span: UsageSpan) -> str:
    first = datetime.fromtimestamp(span.since_ms / 1000)
    last = datetime.fromtimestamp((span.until_ms - 1) / 1000).date()
    if span.since_ms == 0:
        return f"Usage up to {last}"
    since = str(first.date()) if first.time() == time() else first.strftime("%Y-%m-%d %H:%M")
    return f"Usage on {since}" if since == str(last) else f"Usage from {since} to {last}"


def _table(totals: Sequence[Total], by: str, whole: Total) -> list[str]:
    columns = [column for column in COLUMNS if column.is_shown(whole)]
    shown = [*totals, whole] if len(totals) > 1 else totals
    cells = [[column.heading for column in columns]]
    cells += [[column.format(total, whole) for column in columns] for total in shown]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    names = [by.upper(), *(remove_control(total.label) for total in shown)]
    room = WIDTH - sum(len(GAP) + width for width in widths)
    width = min(max(map(len, names)), max(MIN_NAME_WIDTH, room))
    charts = ["", *_charts(totals, by, whole, room - width - len(GAP)), ""]
    return [
        GAP.join([pad(fit(name, width), width), *map(str.rjust, line, widths), chart]).rstrip()
        for name, line, chart in zip(names, cells, charts, strict=False)
    ]


def _charts(totals: Sequence[Total], by: str, whole: Total, room: int) -> list[str]:
    """Draw a bar for each day; for any other group its days, or its share if they are too few or too many."""
    days = [] if by == "day" else fill_days(whole.days)
    if 2 <= len(days) <= room:
        return [draw_sparks([total.days.get(day, 0) for day in days]) for total in totals]
    width = min(MAX_BAR_WIDTH, room)
    if width < MIN_BAR_WIDTH:
        return [""] * len(totals)
    most = max(total.tokens for total in totals)
    return [draw_bar(total.tokens, most, width) for total in totals]


def _token_kinds(whole: Total) -> list[str]:
    counts = [(name, tokens(whole)) for name, tokens in TOKEN_KINDS if tokens(whole)]
    width = max((len(f"{number:,}") for _, number in counts), default=0)
    most = max((number for _, number in counts), default=0)
    return [
        f"{name:<12}{GAP}{number:>{width},}{GAP}{100 * number / max(1, whole.tokens):5.1f} %{GAP}"
        f"{draw_bar(number, most, MAX_BAR_WIDTH)}"
        for name, number in counts
    ]
