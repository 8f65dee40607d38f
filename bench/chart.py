"""Draw a bar chart of CPU per request from the results, as SVG and PNG."""

import subprocess
from html import escape
from math import log10

from bench.beside import MOST_CPU, Comparison, compare_cpu
from bench.cases import CASES
from bench.results import Results

WIDTH = 860
LEFT = 190
RIGHT = 110
BAR = 13
GAP = 5
GROUP_GAP = 16
TOP = 84
COLOURS = {"nginx": "#8a9199", "dragoman": "#1f6feb", "litellm": "#d1742f"}
WORSE = "#cf222e"
LEFT_BESIDE = 260
SPAN = 30  # percent to either side
LEGEND_BESIDE = "Line: 95 % interval. Red: more than 5 % more CPU."
NAMES = {"nginx": "nginx, copying bytes", "dragoman": "dragoman", "litellm": "LiteLLM proxy"}


def draw(results: Results) -> str:
    """One group of bars per case at the highest common load, on a logarithmic scale."""
    connections = 32 if any(cell.connections == 32 for cell in results.cells) else results.cells[0].connections
    groups = _groups(results, connections)
    largest = max((value for _, bars in groups for _, value in bars), default=10.0)
    decades = max(2, int(log10(largest)) + 1)
    y = TOP
    marks = []
    for title, bars in groups:
        middle = y + len(bars) * (BAR + GAP) / 2
        marks.append(f'<text x="{LEFT - 12}" y="{middle + 2:.0f}" text-anchor="end">{escape(title)}</text>')
        for name, value in bars:
            marks.append(_bar(name, value, y, decades))
            y += BAR + GAP
        y += GROUP_GAP
    title = f"Gateway CPU per request, {connections} connections (logarithmic; less is better)"
    return _page(_grid(decades, y) + _legend(groups) + "\n".join(marks), y + 16, title)


def draw_beside(results: Results) -> str:
    """Draw a bar for each case that both commits serve, from 1.0 to the ratio, with a line over its 95 % interval."""
    rows = [(f"{case.title}, {connections}", found) for case, connections, found in compare_cpu(results)]
    y = TOP
    marks = []
    for title, found in rows:
        marks.append(f'<text x="{LEFT_BESIDE - 12}" y="{y + BAR - 3}" text-anchor="end">{escape(title)}</text>')
        marks.append(_ratio_bar(found, y))
        y += BAR + GAP + 2
    grid = []
    for percent in range(-SPAN, SPAN + 1, 10):
        x = _x_of_ratio(1 + percent / 100)
        grid.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{y}" class="grid"/>')
        label = f"{percent:+d} %" if percent else "same"
        grid.append(f'<text x="{x:.1f}" y="{y + 14}" text-anchor="middle" class="value">{label}</text>')
    title = f"CPU per request compared with commit {results.machine.beside} (bars to the left: less CPU)"
    legend = f'<text x="16" y="52" class="value">Number of connections after each case. {LEGEND_BESIDE}</text>'
    return _page("\n".join([*grid, legend, *marks]), y + 24, title)


def _ratio_bar(found: Comparison, y: float) -> str:
    end, start = _x_of_ratio(found.ratio), _x_of_ratio(1.0)
    colour = WORSE if found.ratio > MOST_CPU else COLOURS["dragoman"]
    (low, high), middle = map(_x_of_ratio, found.interval), y + BAR / 2
    return (
        f'<rect x="{min(start, end):.1f}" y="{y}" width="{abs(end - start):.1f}" height="{BAR}" fill="{colour}"/>'
        f'<line x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}" stroke="#24292f"/>'
        f'<text x="{WIDTH - 12}" y="{y + BAR - 3}" text-anchor="end" class="value">{found.ratio - 1:+.1%}</text>'
    )


def _x_of_ratio(ratio: float) -> float:
    """Return the place of a ratio; one beyond the scale is drawn at its end."""
    share = min(max((ratio - 1) * 100 / SPAN, -1.0), 1.0)
    return LEFT_BESIDE + (WIDTH - LEFT_BESIDE - RIGHT) * (share + 1) / 2


def as_png(svg: str) -> bytes:
    """For those who do not show SVG, in twice the size."""
    command = ["rsvg-convert", "--zoom", "2", "--format", "png"]
    return subprocess.run(command, input=svg.encode(), capture_output=True, check=True, timeout=30).stdout


def _groups(results: Results, connections: int) -> list[tuple[str, list[tuple[str, float]]]]:
    groups = []
    for case in CASES:
        found = [
            ("nginx", results.cpu_us("nginx", case.baseline.name, connections)),
            ("dragoman", results.cpu_us("dragoman", case.name, connections)),
            ("litellm", results.cpu_us("litellm", case.name, connections)),
        ]
        bars = [(name, value) for name, value in found if value is not None]
        if any(name == "dragoman" for name, _ in bars):
            groups.append((case.title, bars))
    return groups


def _x(value: float, decades: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * max(0.0, log10(max(value, 1.0))) / decades


def _bar(name: str, value: float, y: float, decades: int) -> str:
    end = _x(value, decades)
    label = f"{value:,.0f} µs" if value < 10_000 else f"{value / 1000:,.0f} ms"
    return (
        f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR}" rx="2" fill="{COLOURS[name]}"/>'
        f'<text x="{end + 6:.1f}" y="{y + BAR - 3}" class="value">{label}</text>'
    )


def _grid(decades: int, bottom: float) -> str:
    lines = []
    for power in range(decades + 1):
        x = _x(10.0**power, decades)
        label = f"{10**power:,} µs" if power < 3 else f"{10 ** (power - 3):,} ms"
        lines.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom - 8}" class="grid"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 6}" text-anchor="middle" class="value">{label}</text>')
    return "\n".join(lines)


def _legend(groups: list[tuple[str, list[tuple[str, float]]]]) -> str:
    present = [name for name in COLOURS if any(name == bar for _, bars in groups for bar, _ in bars)]
    parts = []
    for at, name in enumerate(present):
        x = LEFT + at * 180
        parts.append(f'<rect x="{x}" y="48" width="12" height="12" rx="2" fill="{COLOURS[name]}"/>')
        parts.append(f'<text x="{x + 18}" y="58">{escape(NAMES[name])}</text>')
    return "\n".join(parts)


def _page(content: str, height: float, title: str) -> str:
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}"
 viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{title}">
<style>
text {{ font: 12px system-ui, sans-serif; fill: #24292f; }}
.title {{ font-size: 15px; font-weight: 600; }}
.value {{ font-size: 11px; fill: #57606a; }}
.grid {{ stroke: #d8dee4; stroke-width: 1; }}
</style>
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="16" y="28" class="title">{title}</text>
{content}
</svg>
"""
